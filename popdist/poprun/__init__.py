"""poprun: starts the instances of a job over the real mpirun and stays honest about how it ends.

A pipeline of pure steps with one impure end::

    options (table) -> parser -> job (frozen) -> hosts -> placement -> mpirun (argv, environment)
        -> supervise (the only one that starts and kills) -> report

Beside each program runs a small `guard`, which relays its output, reports its end, and takes it
down when the launcher disappears.
"""
