"""Loops, queues, pipelines and optimizers for programs that compile whole training loops."""
