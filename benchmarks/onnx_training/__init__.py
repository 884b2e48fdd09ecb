"""Training steps of ONNX graphs beside the same models in torch eager.

`models` holds the networks and exports them; `job` measures in processes of its own; `comparison`
starts those and makes the rows.
"""

from __future__ import annotations

from benchmarks.onnx_training.comparison import AIMS, measure

__all__ = ["AIMS", "measure"]
