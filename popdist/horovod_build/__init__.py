"""Builds the real Horovod for the frameworks and the MPI of this Python environment.

The command is ``python -m popdist.horovod_build``. The steps, each a module of its own::

    options -> facts, frameworks (looked up)
            -> requirements, plan (pure)
            -> cache -> source + patches -> compilation (with diagnose)
            -> check (two ranks run `ranks`)

`session` runs the steps in this order and prints the messages.

Only the standard library is imported. Versions of frameworks are read from the metadata of the
installed distributions.
"""
