"""``popdist-sdk check``: lists the SDK's names in programs, and the edits that programs need.

Sources are parsed and never run. `resolve` finds and parses sources and resolves their dotted
names. `verdicts` judges each name by the lists and by the table of `idioms`, and prints the result.
"""
