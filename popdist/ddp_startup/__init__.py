"""Programs use popdist's exchange for DistributedDataParallel (``poprun --ddp popdist``).

Interpreters that start with this folder on ``PYTHONPATH`` load its `sitecustomize`, which installs
the finder of `patch`.
"""
