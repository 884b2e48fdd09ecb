"""Checks that stop a job whose instances diverge or run out of data unequally."""
