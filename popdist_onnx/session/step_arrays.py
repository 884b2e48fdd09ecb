"""Checks of the arrays that a program hands over for a step."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.errors import ArgumentError, popart_runtime_error

if TYPE_CHECKING:
    from popdist_onnx.runtime.cells import Array
    from popdist_onnx.runtime.reading import Spec

logger = logging.getLogger("popdist.onnx")


def typed(array: Array, spec: Spec) -> Array:
    """Checks an array's element type.

    Args:
        array: The array.
        spec: The input that it is for.

    Returns:
        The array; int64 given for int32 is converted, as numpy makes int64 of every list.

    Raises:
        popart_runtime_error: The type is another one.
    """
    wanted = spec.dtype.numpy()
    if array.dtype == wanted:
        return array
    if array.dtype == np.int64 and wanted == np.int32:
        if array.size and (array.min() < -(2**31) or array.max() >= 2**31):
            raise popart_runtime_error(
                "PD571", f"Values of Tensor {spec.name} do not fit into int32", value=array.max()
            )
        _warn_of_conversion(spec.name)
        return array.astype(np.int32)
    raise discrepancy(spec, array)


@cache
def _warn_of_conversion(name: str) -> None:
    # Once per process: it happens in every step.
    logger.warning("input %s is int64 and is converted to int32", name)


def discrepancy(spec: Spec, array: Array) -> popart_runtime_error:
    """The error for an array of another element type.

    Args:
        spec: The tensor that it is for.
        array: The array.

    Returns:
        The error.
    """
    wanted = np.dtype(spec.dtype.numpy()).name
    return popart_runtime_error(
        "PD571",
        f"Type discrepancy for tensor {spec.name}: expected {wanted}, but the array holds "
        f"{array.dtype.name}",
        hint=f"array.astype(numpy.{wanted})",
    )


def flattened(name: str, array: object, side: str) -> Array:
    """Checks that an array can be read, or written, without a copy.

    Args:
        name: The tensor that it is for.
        array: The array.
        side: ``input`` or ``output``, which is written.

    Returns:
        A view of it of one dimension.

    Raises:
        ArgumentError: It is no array, not C-contiguous, or an output that cannot be written.
    """
    if not isinstance(array, np.ndarray):
        raise ArgumentError(
            "PD571", f"the {side} for tensor {name} is no numpy array", value=type(array).__name__
        )
    if not array.flags.c_contiguous:
        raise ArgumentError(
            "PD571",
            f"the {side} array for tensor {name} is not c-contiguous",
            value=f"shape {array.shape}, strides {array.strides}",
            hint="numpy.ascontiguousarray(array)",
        )
    if side == "output" and not array.flags.writeable:
        raise ArgumentError(
            "PD571",
            f"the output array for tensor {name} is read-only",
            hint="session.initAnchorArrays() makes arrays to write to",
        )
    return array.reshape(-1)
