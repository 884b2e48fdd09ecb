"""Checkpoints from which a killed job goes on as if nothing had happened.

`file` writes and reads one file atomically; `job` moves states between instances; `parts` says what
of a model, an optimizer or a loader is shared and what is each instance's own; `randomness` knows
the host's random streams; `checkpoint` puts them together.
"""

from __future__ import annotations

from popdist_torch.checkpoint.checkpoint import Checkpoint

__all__ = ["Checkpoint"]
