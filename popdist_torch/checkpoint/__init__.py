"""Checkpoints from which a killed job resumes with identical results.

`file` reads and writes one file atomically, `folder` the sharded form, `parts` defines the state of
each kind of object and moves states between instances, and `checkpoint` combines them.
"""

from __future__ import annotations

from popdist_torch.checkpoint.checkpoint import Checkpoint

__all__ = ["Checkpoint"]
