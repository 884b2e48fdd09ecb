"""Pure steps from a command line to mpirun's argument list: job, placement, command."""
