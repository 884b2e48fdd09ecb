"""Builds the real Horovod for the frameworks and the MPI of this Python environment.

Run it as ``python -m popdist.horovod_build``. The steps, each a module of its own::

    options -> facts, frameworks (looked up)
            -> requirements, plan (pure)
            -> cache -> source + patches -> compilation (with diagnose)
            -> check (two ranks run `ranks`)

`session` puts them in this order and talks to the user.

Nothing outside the standard library is imported, and no framework: their versions are read from the
metadata of the installed distributions.
"""
