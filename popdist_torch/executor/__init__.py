"""Execution of wrapped models: combined batches, local replicas, gradients, weights and outputs."""
