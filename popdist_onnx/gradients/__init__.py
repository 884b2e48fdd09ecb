"""Gradient rules: one file per family of operators, one small function per rule."""
