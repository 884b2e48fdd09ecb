"""Starts interpreters with the SDK's names, by their environment or by a ``.pth`` file."""
