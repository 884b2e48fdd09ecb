"""What runs beside each program of a job: starts it, forwards signals and output, ends it."""
