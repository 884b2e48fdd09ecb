"""poprun: starts the instances of a job over the real mpirun, and reports how each of them ended.

A pipeline of pure steps with one impure end::

    options -> machines -> plan (job, placement, mpirun's argument list) -> launch -> supervisor

`guard` runs beside each program, `protocol` is shared by supervisor and guard, `output` writes
tables and reports, and `partitions` reserves devices. `doctor` checks a machine before a job.
"""
