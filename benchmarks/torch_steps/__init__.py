"""Training steps of PyTorch on one rank and on two: popdist beside DDP, Horovod and plain torch.

`models` are what is trained; `contenders` the ways to train them; `job` takes turns with them on
the ranks; `comparison` starts the jobs and makes the rows; `memory` does both for peak memory,
and `lightning` for steps under Lightning.
"""

from __future__ import annotations

from benchmarks.torch_steps.comparison import AIMS, measure

__all__ = ["AIMS", "measure"]
