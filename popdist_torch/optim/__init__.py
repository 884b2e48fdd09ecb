"""Optimizers, and how they update the executor's weights."""
