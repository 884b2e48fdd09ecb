"""Runs training graphs on ONNX Runtime.

`graph_reader` finds state, phases and exchange points in a model. `convolutions` and `fusion`
rewrite the graph for this machine. `stages` cuts the graph at the exchange points, and `wiring`
assigns memory to tensors. `compiled` makes a session of each stage, and `state` holds what outlives
a run. `engine` runs the stages in order, and `collectives` sums gradients over all instances.
"""
