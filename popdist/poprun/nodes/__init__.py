"""A job over several machines without ssh: a poprun on each node, which the first one directs."""
