"""`PyStepIO`, `PyStepIOCallback`: the inputs and anchors of a step."""

from __future__ import annotations

import logging
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from popdist_onnx.errors import ArgumentError, popart_exception, popart_runtime_error
from popdist_onnx.session.arguments import rearranged, require_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from popdist.recording import Recording
    from popdist_onnx.runtime.graph_reader import Spec
    from popdist_onnx.runtime.state import Array


# Checks of a step's arrays.


logger = logging.getLogger("popdist.onnx")


def typed(array: Array, spec: Spec) -> Array:
    """An array of the input's type; int64 for int32 is converted, as numpy makes lists int64.

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
    # Once per process, as every step would warn again.
    logger.warning("input %s is int64 and is converted to int32", name)


@cache
def _warn_of_initialized(name: str) -> None:
    logger.warning(
        "input %s has its content from the model: data for it in PyStepIO are passed over; "
        "session.writeWeights and weightsFromHost change it",
        name,
    )


def _check_order(name: str, given: tuple[int, ...], spec: Spec, front: tuple[int, ...]) -> None:
    shape = tuple(spec.shape or ())
    if rearranged(given, shape, front):
        _warn_of_order(name, given, front + shape)


@cache
def _warn_of_order(name: str, given: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    logger.warning(
        "the array for input %s, of shape %s, has the dimensions of %s in another order; its "
        "numbers are read as they lie in memory, so transpose it first",
        name,
        list(given),
        list(wanted),
    )


def discrepancy(spec: Spec, array: Array) -> popart_runtime_error:
    """The error for an array of another element type."""
    wanted = np.dtype(spec.dtype.numpy()).name
    return popart_runtime_error(
        "PD571",
        f"Type discrepancy for tensor {spec.name}: expected {wanted}, but the array holds "
        f"{array.dtype.name}",
        hint=f"array.astype(numpy.{wanted})",
    )


def flattened(name: str, array: object, side: str) -> Array:
    """A view of one dimension; ``side`` is ``input``, or ``output`` for an array to write.

    Raises:
        ArgumentError: It is not an array, not C-contiguous, or an output that cannot be written.
    """
    if not isinstance(array, np.ndarray):
        raise ArgumentError(
            "PD571",
            f"the {side} for tensor {name} is not a numpy array",
            value=type(array).__name__,
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


class StepIO(Protocol):
    """The source of a session's data, one micro-batch of one tensor at a time."""

    def take(self, spec: Spec) -> Array:
        """The next micro-batch of an input."""

    def taken(self, name: str) -> None:
        """Reports that a micro-batch of an input has been used."""

    def place(self, spec: Spec) -> Array:
        """Memory for the next value of an anchor."""

    def placed(self, name: str) -> None:
        """Reports that the value of an anchor has been written."""


class RecordedIO:
    """Data of a step that are recorded as they are taken.

    Args:
        stepio: The data.
        recording: Where to.
    """

    def __init__(self, stepio: StepIO, recording: Recording) -> None:
        self._stepio = stepio
        self._recording = recording
        self.taken, self.place, self.placed = stepio.taken, stepio.place, stepio.placed

    def take(self, spec: Spec) -> Array:
        """The next micro-batch of an input."""
        found = self._stepio.take(spec)
        self._recording.note_input(spec.name, found)
        return found


class PyStepIO:
    """Arrays that hold the data of whole steps.

    They are read and written in order, micro-batch by micro-batch, and again from the start when
    their end is reached. Only numbers of elements count, not shapes; see `enableRuntimeAsserts`. A
    shape whose dimensions are in another order than the input's is warned of.

    Args:
        inputs: Arrays by input id, C-contiguous.
        outputs: Arrays by anchor id, C-contiguous.

    Raises:
        ArgumentError: An array is not C-contiguous, or no array.
    """

    def __init__(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        require_arrays("PyStepIO", inputs)
        require_arrays("PyStepIO", outputs)
        self._inputs = {name: flattened(name, array, "input") for name, array in inputs.items()}
        self._outputs = {name: flattened(name, array, "output") for name, array in outputs.items()}
        self._shapes = {name: array.shape for name, array in inputs.items()}
        self._read = dict.fromkeys(inputs, 0)
        self._written = dict.fromkeys(outputs, 0)
        self._asserts = True
        self._checked = False

    def enableRuntimeAsserts(self, enable: bool) -> None:
        """Switches the check of numbers of elements on the first run.

        Args:
            enable: Whether it is made.
        """
        self._asserts = enable

    def check(
        self,
        inputs: Mapping[str, Spec],
        factors: Mapping[str, int],
        outputs: Mapping[str, int],
        initialized: Collection[str] = (),
    ) -> None:
        """Checks, once, that the arrays are of the model's inputs and hold one step.

        Args:
            inputs: Type and shape of each input of the model.
            factors: What the number of micro-batches of a step is the product of.
            outputs: For each anchor the number of elements of a step.
            initialized: The inputs that have their content from the model; as in PopART, data for
                them are passed over.

        Raises:
            popart_exception: An array is missing, is not of an anchor or input, or has another
                size.
        """
        if self._checked:
            return
        self._checked = True
        for name in self._inputs:
            if name in initialized:
                _warn_of_initialized(name)
            elif name not in inputs:
                raise popart_exception(
                    "PD590",
                    f"The tensor {name} was provided as an input to PyStepIO, but is not an input "
                    "of the model",
                    accepted=", ".join(inputs) or "the model has no inputs",
                )
        if not self._asserts:
            return
        for name, spec in inputs.items():
            expected = prod(spec.shape or ()) * prod(factors.values())
            array = self._array(self._inputs, name, "inputs")
            if array.size != expected:
                raise popart_exception(
                    "PD571",
                    f"Unexpected number of input elements for Tensor {name}. "
                    f"Expected {expected}, but received {array.size}.",
                    accepted=f"{list(spec.shape or ())} x "
                    + " x ".join(f"{number} {what}" for what, number in factors.items()),
                )
            _check_order(name, self._shapes[name], spec, tuple(factors.values()))
        for name, expected in outputs.items():
            array = self._array(self._outputs, name, "outputs")
            if array.size != expected:
                raise popart_exception(
                    "PD571",
                    f"Unexpected number of output elements for Tensor {name}. "
                    f"Expected {expected}, but received {array.size}.",
                    hint="session.initAnchorArrays() makes arrays of the right shapes",
                )

    def take(self, spec: Spec) -> Array:
        """The next micro-batch of an input.

        Args:
            spec: The input.

        Returns:
            A view of the array.
        """
        array = self._array(self._inputs, spec.name, "inputs")
        array = self._inputs[spec.name] = typed(array, spec)
        return _chunk(array, spec, self._read)

    def taken(self, name: str) -> None:
        """Does nothing: the program keeps the arrays."""

    def place(self, spec: Spec) -> Array:
        """Memory for the next value of an anchor.

        Args:
            spec: The anchor.

        Returns:
            A view of the array.
        """
        array = self._array(self._outputs, spec.name, "outputs")
        if array.dtype != spec.dtype.numpy():
            raise discrepancy(spec, array)
        return _chunk(array, spec, self._written)

    def placed(self, name: str) -> None:
        """Does nothing: the program keeps the arrays."""

    def _array(self, arrays: Mapping[str, Array], name: str, side: str) -> Array:
        if name not in arrays:
            raise popart_exception(
                "PD590",
                f"No tensor {name} provided in PyStepIO's {side}",
                value=sorted(arrays),
            )
        return arrays[name]


class PyStepIOCallback:
    """Functions that provide and accept one micro-batch at a time.

    Args:
        input_callback: Called with an input's id and whether this is for later; returns its array,
            or None where it has none yet, which only a call for later may do.
        input_complete_callback: Called with the id once the array is no longer needed.
        output_callback: Called with an anchor's id; returns the array to write.
        output_complete_callback: Called with the id once it is written.
    """

    def __init__(
        self,
        input_callback: Callable[[str, bool], Any],
        input_complete_callback: Callable[[str], None],
        output_callback: Callable[[str], Any],
        output_complete_callback: Callable[[str], None],
    ) -> None:
        self._input = input_callback
        self._taken = input_complete_callback
        self._output = output_callback
        self._placed = output_complete_callback

    def take(self, spec: Spec) -> Array:
        """The next micro-batch of an input.

        Args:
            spec: The input.

        Returns:
            The array, in the input's shape.
        """
        return self._fit(self._input(spec.name, False), spec, "input")  # noqa: FBT003 - published

    def taken(self, name: str) -> None:
        """Reports that a micro-batch of an input has been used.

        Args:
            name: The input.
        """
        self._taken(name)

    def place(self, spec: Spec) -> Array:
        """Memory for the next value of an anchor.

        Args:
            spec: The anchor.

        Returns:
            The array, in the anchor's shape.
        """
        return self._fit(self._output(spec.name), spec, "output")

    def placed(self, name: str) -> None:
        """Reports that the value of an anchor has been written.

        Args:
            name: The anchor.
        """
        self._placed(name)

    def _fit(self, array: object, spec: Spec, side: str) -> Array:
        if array is None:
            raise popart_runtime_error(
                "PD571", f"The {side} callback returned no array for tensor {spec.name}"
            )
        flat = flattened(spec.name, array, side)
        if side == "input":
            flat = typed(flat, spec)
        elif flat.dtype != spec.dtype.numpy():
            raise discrepancy(spec, flat)
        if flat.size != prod(spec.shape or ()):
            raise popart_exception(
                "PD571",
                f"Unexpected number of {side} elements for Tensor {spec.name}. "
                f"Expected {prod(spec.shape or ())}, but received {flat.size}.",
                accepted="one micro-batch",
            )
        return flat.reshape(spec.shape or ())


def _chunk(array: Array, spec: Spec, positions: dict[str, int]) -> Array:
    """The next micro-batch of a flat array; advances the array's position."""
    count = prod(spec.shape or ())
    start = positions[spec.name]
    if start + count > array.size:
        start = 0
    if count > array.size:
        raise popart_exception(
            "PD571",
            f"Unexpected number of elements for Tensor {spec.name}. Expected a multiple of "
            f"{count}, but received {array.size}.",
        )
    positions[spec.name] = start + count
    return array[start : start + count].reshape(spec.shape or ())
