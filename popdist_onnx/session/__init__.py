"""Sessions with their devices, data and weights.

`pipeline` runs the passes from a model to the graph that runs: start there. `session` is what
sessions of training and inference share; `anchors`, `step_io` and `weights` move arrays.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    from popdist_onnx import published

    return published(__name__, name)
