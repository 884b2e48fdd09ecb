"""poprun: starts the instances of a job over the real mpirun and stays honest about how it ends.

A pipeline of pure steps with one impure end, and a folder for each::

    command (options, parser) -> plan (job, placement, mpirun's argument list) with facts from
        machines and devices of partitions -> supervision (the only one that starts and kills)
        -> seeing

Beside each program runs a small guard (`supervision.guard`), which relays its output, reports its
end, and takes it down when the launcher disappears. `doctor` looks at everything that a job needs
on a machine.
"""
