"""Gradient rules: one file per family of operators, one small function per rule.

`registry` says which file has the rule of an operator, and what a rule gets to see.
"""
