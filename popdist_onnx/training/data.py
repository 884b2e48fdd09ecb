"""Checks a program's arrays against a model's inputs, and selects the samples of each process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from popdist_onnx.errors import popart_exception
from popdist_onnx.training.model import LABELS

if TYPE_CHECKING:
    import onnx


class Data(NamedTuple):
    """The inputs of a model.

    Attributes:
        shapes: The shape of one sample of each input, the labels of a loss included.
        types: The element type of each of them.
        classes: The number of classes of the labels; None where labels are not class numbers.
    """

    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, np.dtype[Any]]
    classes: int | None = None

    @classmethod
    def of(cls, proto: onnx.ModelProto, classes: int | None) -> Data:
        """Reads inputs and types from a model with its loss and with fixed shapes."""
        import onnx

        initializers = {tensor.name for tensor in proto.graph.initializer}
        inputs = [value for value in proto.graph.input if value.name not in initializers]
        return cls(
            {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim[1:]) for v in inputs},
            {
                v.name: np.dtype(onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type))
                for v in inputs
            },
            classes,
        )

    def named(self, inputs: object, labels: object = None) -> dict[str, Array]:
        """Checked arrays by input; labels are None where there is nothing to compare.

        Raises:
            popart_exception: The arrays do not belong to the model's inputs, or do not fit them.
        """
        wanted = [name for name in self.shapes if name != LABELS]
        if not isinstance(inputs, Mapping):
            if len(wanted) != 1:
                raise popart_exception(
                    "PD579",
                    "the model has several inputs, but one array was given",
                    accepted=f"arrays by id: {', '.join(wanted)}",
                )
            inputs = {wanted[0]: inputs}
        elif labels is None and LABELS in inputs:
            inputs = dict(inputs)
            labels = inputs.pop(LABELS)
        if labels is None and LABELS in self.shapes:
            raise popart_exception(
                "PD579",
                "the loss compares with labels, but no labels were given",
                value=sorted(inputs),
                hint="fit(inputs, labels), or a dictionary with 'labels'",
            )
        given = dict(inputs) if labels is None else {**inputs, LABELS: labels}
        known = {*wanted, LABELS} if labels is not None else set(wanted)
        if set(given) != known:
            raise popart_exception(
                "PD579",
                "the data are not those of the model's inputs",
                value=sorted(given),
                accepted=", ".join(sorted(known)),
            )
        return {name: self._fitting(name, content) for name, content in given.items()}

    def _fitting(self, name: str, content: object) -> Array:
        array = np.asarray(content)
        if name not in self.shapes:
            raise popart_exception(
                "PD579",
                "labels were given, but the model computes its loss without them",
                hint='leave them out, or train with loss="cross_entropy" or loss="mse"',
            )
        shape, dtype = self.shapes[name], self.types[name]
        # Lists hold Python's numbers, and every integer type can hold class numbers.
        whole = self.classes is not None and name == LABELS and array.dtype.kind in "iu"
        if array.dtype != dtype and (whole or not isinstance(content, np.ndarray)):
            array = array.astype(dtype)
        if not _fits(array.shape[1:], shape):
            hint = None
            if sorted(array.shape[1:]) == sorted(shape):
                hint = f"reorder the axes with numpy.transpose({name}, ...)"
            elif name == LABELS and array.shape[-1:] == (self.classes,):
                hint = "cross entropy takes class numbers: labels.argmax(-1) of one-hot labels"
            raise popart_exception(
                "PD579",
                f"the samples of {name} have another shape than the model's input",
                value=list(array.shape[1:]),
                accepted=str(list(shape)),
                hint=hint,
            )
        if name == LABELS and self.classes is not None and array.dtype.kind in "iu":
            self._require_classes(array)
        return array

    def _require_classes(self, labels: Array) -> None:
        if labels.size and not 0 <= labels.min() <= labels.max() < (self.classes or 0):
            raise popart_exception(
                "PD579",
                "labels are numbers of classes that the model does not have",
                value=f"{labels.min()} to {labels.max()}",
                accepted=f"0 to {(self.classes or 0) - 1}, one class per element of the output",
            )


def _fits(have: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether shapes agree but for dimensions of length 1, as in columns of labels."""
    return [n for n in have if n != 1] == [n for n in wanted if n != 1]


# The samples of a process in an epoch.


Array = np.ndarray[Any, np.dtype[Any]]


def sample_count(arrays: Mapping[str, Array]) -> int:
    """The number of samples of a data set.

    Raises:
        popart_exception: There are no arrays, or their numbers of samples differ.
    """
    counts = {name: len(array) for name, array in arrays.items() if array.ndim}
    if len(set(counts.values())) != 1 or len(counts) != len(arrays):
        raise popart_exception(
            "PD579",
            "the arrays of a data set need the same number of samples, first dimension",
            value={name: array.shape for name, array in arrays.items()},
        )
    return next(iter(counts.values()))
