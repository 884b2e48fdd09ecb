"""Runs training graphs on ONNX Runtime.

`reading` finds state, phases and exchange points in a model; `stages` cuts it there; `wiring` says
where tensors lie; `extract` makes each stage a model of its own; `compiled` turns those into
sessions; `state` holds what lives from one run to the next; `engine` runs the stages in order.
"""
