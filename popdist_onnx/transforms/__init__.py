"""The passes that turn a model into a training graph, one module each.

`popdist_onnx.session.pipeline` has their order.
"""
