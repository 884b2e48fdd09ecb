"""The published optimizers: their settings, their formulas, and their updates as nodes.

`settings` declares what each takes, `scalars` the numbers that updates read; `sgd`, `adam` and
`adaptive` are the published classes, and ``<name>_update`` writes their formula as nodes.
"""
