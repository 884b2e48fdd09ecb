"""Sessions with their devices, data and weights.

`pipeline` runs the passes from a model to the graph that runs: start there. `session` is what
sessions of training and inference share; `anchors`, `step_io` and `weights` move arrays.
"""
