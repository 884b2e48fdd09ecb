"""The guard, a process beside each program of a job: starts the program, relays, and ends it."""
