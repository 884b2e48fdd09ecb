"""What interpreters do as they start, where a launcher or a command asks for it.

`environment` asks: it puts this folder on ``PYTHONPATH`` and names parts in ``POPDIST_STARTUP``.
`sitecustomize` runs in each interpreter, before its program, and loads those parts:
`popdist.sdk.finder` and `imports`.
"""
