"""Loads models, infers shapes, names values and writes nodes, for all passes.

`load` reads a file; `exporters` knows what other libraries write in a way of their own, and
`large_files` keeps large weights in their file. `tensor` has `Tape` and `Tensor`, with which passes
and rules write nodes like arithmetic. `passes` is the base of a pass. `inference`, `fold`, `expand`
and `conform` bring a graph into the form that all passes expect.
"""
