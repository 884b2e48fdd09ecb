"""The published optimizers: their settings, their formulas, and their updates as nodes.

`hyperparameters` declares settings and the numbers that updates read; `sgd`, `adam` and `adaptive`
are the published classes, each with its formula; `weight_update` writes formulas as nodes.
"""
