"""Machines that run instances: their processors, their host lists, and how to reach them."""
