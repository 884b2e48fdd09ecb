"""``popdist-sdk check``: which names of the SDK programs use, and what else they have to change.

Sources are parsed and never run. `sources` finds and parses them, `resolve` says which dotted names
stand where, `verdicts` judges a name by the lists and by the table of `idioms`, `report` prints.
"""
