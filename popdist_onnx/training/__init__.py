"""`train` and `Trainer`: training from a model and data, without sessions.

`trainer` has both. `model` adds the loss, `data` divides the samples, and `updates` compiles the
model and runs its updates in epochs. `divisors` computes a loss as on the whole global batch.
`torch_modules` exports modules of torch, which `export_check` compares with their files.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    from popdist_onnx import published

    return published(__name__, name)
