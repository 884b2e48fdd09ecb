"""Collectives over the host network, safe inside graphs, functions and eager code."""
