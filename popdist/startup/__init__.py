"""The start of a program's interpreters, where a launcher or a command asks for a part of popdist.

`environment` asks: it puts this folder on ``PYTHONPATH`` and names parts in ``POPDIST_STARTUP``.
`sitecustomize` runs in each interpreter, before its program, and loads those parts:
`popdist.sdk.finder`, `popdist.program_status` and `imports`.
"""
