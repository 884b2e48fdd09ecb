"""Weights on the host: `PyWeightsIO`, and the host's copies of a session's variables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.errors import ArgumentError, popart_exception
from popdist_onnx.session.arguments import rearranged, require_arrays

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

    from popdist_onnx.runtime.graph_reader import Reading
    from popdist_onnx.runtime.state import Array


class PyWeightsIO:
    """Arrays of weights by id, to be read from or written to.

    Args:
        weights: The arrays.

    Raises:
        ArgumentError: A value is not an array.
    """

    def __init__(self, weights: Mapping[str, Array]) -> None:
        require_arrays("PyWeightsIO", weights, "PD574")
        for name, array in weights.items():
            if not isinstance(array, np.ndarray):
                raise ArgumentError(
                    "PD574",
                    f"the weights of {name} are not a numpy array",
                    value=type(array).__name__,
                )
        self.weights = dict(weights)


class HostTensors:
    """The host's tensor data, which `weightsFromHost` loads.

    The data are separate from the device's and from those that `weightsToHost` fetched.

    Args:
        reading: The graph, whose initializers are the first content.
    """

    def __init__(self, reading: Reading) -> None:
        self._data: dict[str, Array] = {
            name: _content(value.const_value.numpy())
            for name, value in reading.variables.items()
            if value.const_value is not None
        }
        self.fetched: dict[str, Array] = {}

    @property
    def data(self) -> Mapping[str, Array]:
        """The data that the next `weightsFromHost` loads."""
        return self._data

    def write(self, weights: Mapping[str, Array]) -> None:
        """Replaces data; ids of no variable are ignored.

        Raises:
            popart_exception: An array does not fit its variable.
        """
        known = {name: array for name, array in weights.items() if name in self._data}
        for name, array in known.items():
            _require_fit(name, array, self._data[name])
        for name, array in known.items():
            like = self._data[name]
            self._data[name] = array.astype(like.dtype).reshape(like.shape).copy()

    def reset(
        self, model: ir.Model, constants: Mapping[str, Array], *, ignore_unknown: bool
    ) -> None:
        """Replaces data by a model's initializers; ``constants`` are not variables.

        Raises:
            popart_exception: The model has other initializers, or one does not fit.
        """
        found = {
            name: np.asarray(value.const_value.numpy())
            for name, value in model.graph.initializers.items()
            if value.const_value is not None
        }
        unknown = [name for name in found if name not in {*self._data, *constants}]
        if unknown and not ignore_unknown:
            raise popart_exception(
                "PD574",
                f"resetWeights, no tensor '{unknown[0]}' in tensors",
                accepted=", ".join(self._data),
                hint="pass ignoreWeightsInModelWithoutCorrespondingHostWeight=True to ignore it",
            )
        for name, array in found.items():
            if name in self._data:
                like = self._data[name]
                if (array.dtype, array.shape) != (like.dtype, like.shape):
                    raise popart_exception(
                        "PD574",
                        f"resetWeights, cannot set tensor '{name}', its type or shape differs",
                        value=f"{array.dtype.name} {list(array.shape)}",
                        accepted=f"{like.dtype.name} {list(like.shape)}",
                    )
            elif name in constants and not np.array_equal(array, constants[name]):
                raise popart_exception(
                    "PD574",
                    f"resetWeights, '{name}' is a constant of this session and has another value",
                    hint="make the session of the model that has this value",
                )
        for name, array in found.items():
            if name in self._data:
                self._data[name] = _content(array)

    def read_fetched(self, weights: Mapping[str, Array]) -> None:
        """Copies fetched data into arrays; ids of no variable are ignored.

        Raises:
            popart_exception: An array is of another size, or cannot be written.
        """
        for name, array in weights.items():
            if name not in self.fetched:
                continue
            source = self.fetched[name]
            _require_fit(name, array, source)
            if not array.flags.writeable or not array.flags.c_contiguous:
                raise popart_exception(
                    "PD574",
                    f"the array for {name} must be writeable and c-contiguous",
                    hint="numpy.empty(shape, dtype)",
                )
            np.copyto(array.reshape(source.shape), source, casting="no")

    def adopt(self, fetched: Mapping[str, Array]) -> None:
        """Makes what was fetched the host's data."""
        self.fetched = dict(fetched)
        self._data.update(fetched)


def _content(array: Array) -> Array:
    content: Array = np.ascontiguousarray(array).reshape(array.shape)
    return content


def _require_fit(name: str, array: Array, like: Array) -> None:
    if (array.nbytes, array.dtype) != (like.nbytes, like.dtype):
        raise popart_exception(
            "PD574",
            f"the array for weight {name} does not fit",
            value=f"{array.dtype.name} {list(array.shape)}, {array.nbytes} bytes",
            accepted=f"{like.dtype.name} {list(like.shape)}, {like.nbytes} bytes",
        )
    if array.ndim == like.ndim and rearranged(array.shape, like.shape):
        raise popart_exception(
            "PD574",
            f"the array for weight {name} has its dimensions in another order",
            value=list(array.shape),
            accepted=str(list(like.shape)),
            hint="numpy.ascontiguousarray(array.transpose(...))",
        )
