"""Finds the first tensor that is not finite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.errors import popart_runtime_error
from popdist_onnx.runtime.execution import make_session
from popdist_onnx.runtime.extract import extract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from popdist_onnx.runtime.cells import Array, Buffer
    from popdist_onnx.runtime.execution import Execution
    from popdist_onnx.runtime.reading import Reading
    from popdist_onnx.runtime.wiring import Wiring


def all_finite(arrays: Iterable[Array]) -> bool:
    """Whether arrays hold numbers only.

    Args:
        arrays: The arrays.

    Returns:
        False where one holds NaN or an infinity.
    """
    return all(bool(np.isfinite(array).all()) for array in arrays if _is_float(array))


def blame(
    reading: Reading, wiring: Wiring, execution: Execution, located: Callable[[str], Buffer]
) -> popart_runtime_error:
    """Computes a stage again to see where its numbers went wrong.

    Args:
        reading: The graph.
        wiring: The stage, one of whose outputs is not finite.
        execution: How to run it.
        located: Where its inputs lie.

    Returns:
        An error that names the first tensor that is not finite, and what made it.
    """
    inputs = {name: located(name) for name in wiring.stage.reads if name not in reading.constants}
    for name, buffer in inputs.items():
        if not all_finite([buffer.array]):
            return _error(name, buffer.array, "it came into the step like that")
    steps = [reading.steps[i] for i in wiring.stage.steps]
    names = [n for step in steps for n in step.writes if n in reading.specs]
    model = extract(reading, wiring.stage, extra=names)
    session = make_session(model.SerializeToString(), execution)
    values = session.run_with_ort_values(names, {n: b.value for n, b in inputs.items()})
    made = dict(zip(names, values, strict=True))
    for step in steps:
        for name in step.writes:
            if name in made and not all_finite([array := made[name].numpy()]):
                node = step.node
                return _error(
                    name, array, f"the first one, made by {node.op_type} ({node.name or 'no name'})"
                )
    return popart_runtime_error(
        "PD566",
        "A tensor of the step is not finite, but it was when the step was computed again",
        hint="another thread may have changed the inputs meanwhile",
    )


def _error(name: str, array: Array, origin: str) -> popart_runtime_error:
    wide = array.astype(np.float64)
    return popart_runtime_error(
        "PD566",
        f"Tensor {name} is not finite: {origin}",
        value=f"{int(np.isnan(wide).sum())} NaN and {int(np.isinf(wide).sum())} infinite of "
        f"{array.size} elements",
        accepted="finite numbers (SessionOptions.enableFloatingPointChecks is on)",
    )


def _is_float(array: Array) -> bool:
    return array.dtype.kind not in "biu"
