"""Builds the real Horovod for the frameworks and the MPI of this Python environment.

Run it as ``python -m popdist.horovod_build``. The steps, each a module of its own::

    options -> facts (looked up by machine, mpi, frameworks)
            -> requirements, plan (pure)
            -> cache -> source + patches -> compilation (+ progress, diagnose)
            -> install -> check

Nothing outside the standard library is imported, and no framework: their versions are read from the
metadata of the installed distributions.
"""
