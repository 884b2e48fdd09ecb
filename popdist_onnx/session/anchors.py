"""Anchors of a step: the shapes of their arrays, and the values that a step returns."""

from __future__ import annotations

import difflib
import logging
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.names import FAILED_INFERENCE, GRADIENT
from popdist_onnx.graph.values import failed_inference, why_unknown
from popdist_onnx.runtime.engine import is_finite
from popdist_onnx.transforms.autodiff import why_no_gradient
from popdist_onnx.types.enums import AnchorReturnTypeId

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir

    from popdist_onnx.runtime.engine import Layout
    from popdist_onnx.runtime.graph_reader import Reading, Spec
    from popdist_onnx.runtime.state import Array
    from popdist_onnx.session.step_io import StepIO
    from popdist_onnx.types.data_flow import AnchorReturnType, DataFlow


logger = logging.getLogger("popdist.onnx")


def array_shape(spec: Spec, art: AnchorReturnType, batches: int, layout: Layout) -> tuple[int, ...]:
    """Batches, accumulation and replicas where present and not 1, then the tensor's own shape.

    Raises:
        popart_exception: The tensor's shape is not known before it is computed.
    """
    if spec.shape is None:
        raise popart_exception(
            "PD508",
            "a tensor whose shape depends on values cannot be anchored",
            value=spec.name,
        )
    leading = [layout.replicas]
    if art.id() in {AnchorReturnTypeId.All, AnchorReturnTypeId.EveryN}:
        leading = [batches // art.rp(), layout.accumulation, layout.replicas]
    return (*(length for length in leading if length != 1), *spec.shape)


def why_missing(reading: Reading, name: str) -> str | None:
    """Why a graph has no such anchor: no shape inference, no gradient, or a misspelt name."""
    values = _values(reading)
    if name in values:
        return why_unknown(values[name])
    tensor = name.removeprefix(GRADIENT)
    if tensor != name and tensor in values:
        return why_no_gradient(reading.model, values[tensor])
    near = difflib.get_close_matches(name, reading.specs, n=3)
    return f"did you mean {' or '.join(near)}?" if near else None


def failed_shape(reading: Reading, name: str) -> bool:
    """Whether an anchor's shape is unknown because inference failed, not because of data."""
    if reading.specs[name].shape is not None:
        return False
    node = failed_inference(_values(reading)[name])
    return node is not None and FAILED_INFERENCE in node.meta


def _values(reading: Reading) -> dict[str, ir.Value]:
    graph = reading.model.graph
    values = {str(value.name): value for value in graph.inputs} | dict(graph.initializers)
    return values | {str(value.name): value for node in graph for value in node.outputs}


class StepPort:
    """The data of one step, given to the engine micro-batch by micro-batch.

    Args:
        io: Source of inputs and target of anchors; None in synthetic mode.
        flow: Batches and anchors.
        layout: Micro-batches per update.
        inputs: The inputs.
        anchors: The anchored tensors.
        invented: Data for synthetic mode, by input.
        watched: Inputs to check for NaN; an input with NaN is named in a warning and removed.
    """

    def __init__(
        self,
        io: StepIO | None,
        flow: DataFlow,
        layout: Layout,
        inputs: Mapping[str, Spec],
        anchors: Mapping[str, Spec],
        invented: Mapping[str, Array],
        watched: set[str] | None = None,
    ) -> None:
        self._io = io
        self._flow = flow
        self._layout = layout
        self._inputs = inputs
        self._anchors = anchors
        self._invented = invented
        self._watched = watched
        self._batch = 0
        self._scratch: dict[str, Array] = {}
        self._sums: dict[tuple[str, int], Array] = {}
        self._open: dict[tuple[str, int], Array] = {}

    def next_batch(self) -> None:
        """Moves to the next update."""
        self._batch += 1
        self._open.clear()

    def feed(self, run: int) -> dict[str, Array]:
        """The inputs of a micro-batch; ``run`` counts within the update."""
        del run
        if self._io is None:
            return dict(self._invented)
        taken = {name: self._io.take(spec) for name, spec in self._inputs.items()}
        for name in sorted(self._watched or ()):
            if name in taken and not is_finite(taken[name]):
                self._watched.discard(name)  # type: ignore[union-attr]  # not empty here
                logger.warning(
                    "input %s holds NaN or infinite numbers, which training spreads to all "
                    "weights: clean the data, for example with numpy.nan_to_num "
                    "(SessionOptions.enableFloatingPointChecks stops at them)",
                    name,
                )
        return taken

    def used(self) -> None:
        """Reports that the inputs of a micro-batch are no longer needed."""
        if self._io is not None:
            for name in self._inputs:
                self._io.taken(name)

    def target(self, run: int, anchor: str) -> Array:
        """The program's array where the value is returned unchanged, else an internal array."""
        key = (anchor, run)
        if key not in self._open:
            spec = self._anchors[anchor]
            if self._io is not None and self._comes_back(anchor, run):
                self._open[key] = self._io.place(spec)
            else:
                if anchor not in self._scratch:
                    self._scratch[anchor] = np.empty(spec.shape or (), spec.dtype.numpy())
                self._open[key] = self._scratch[anchor]
        return self._open[key]

    def filled(self, run: int, anchor: str) -> None:
        """Reports that an anchor is in its memory."""
        if self._io is None:
            return
        if self._flow.art(anchor).id() is AnchorReturnTypeId.Sum:
            self._add(anchor, run)
        elif self._comes_back(anchor, run):
            self._io.placed(anchor)

    def finish(self) -> None:
        """Writes the sums over the step."""
        for (anchor, _replica), total in sorted(self._sums.items(), key=lambda item: item[0]):
            assert self._io is not None  # noqa: S101 - sums exist only with it
            np.copyto(self._io.place(self._anchors[anchor]), total)
            self._io.placed(anchor)

    def _comes_back(self, anchor: str, run: int) -> bool:
        art = self._flow.art(anchor)
        match art.id():
            case AnchorReturnTypeId.All:
                return True
            case AnchorReturnTypeId.EveryN:
                # N counts the micro-batches of a replica, as in PopART, not updates.
                step = self._batch * self._layout.accumulation + run // self._layout.replicas
                return (step + 1) % art.rp() == 0
            case AnchorReturnTypeId.Final:
                last_run = run >= self._layout.runs - self._layout.replicas
                return self._batch == self._flow.batchesPerStep() - 1 and last_run
            case _:
                return False

    def _add(self, anchor: str, run: int) -> None:
        key = (anchor, run % self._layout.replicas)
        value = self._open[anchor, run]
        if key in self._sums:
            self._sums[key] += value
        else:
            self._sums[key] = value.copy()


def elements(flow: DataFlow, anchors: Mapping[str, Spec], layout: Layout) -> dict[str, int]:
    """By anchor, the number of elements that a step returns."""
    return {
        name: prod(array_shape(spec, flow.art(name), flow.batchesPerStep(), layout))
        for name, spec in anchors.items()
    }
