"""Loops, queues and scopes of programs that compile whole training loops."""
