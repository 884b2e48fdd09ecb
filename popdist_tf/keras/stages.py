"""The pipeline stage of each layer of a Keras model, or of each of its calls.

On the original hardware, stages run on devices of their own. A host computes the model as it is, so
stages are kept, and checked against the order of the layers.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow.compat.v2 as tf

from popdist_tf.errors import PipelineError, PipelineStateError
from popdist_tf.hooks import tag_made
from popdist_tf.versions import calls_of_function, input_shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_HELD = "_popdist_stages"
_CALLS = "_popdist_calls"
_TAG = "_popdist_stage"
_stage: ContextVar[int | None] = ContextVar("popdist_pipeline_stage", default=None)


@contextmanager
def PipelineStage(stage: int) -> Iterator[None]:  # noqa: N802 - published name
    """Assigns the layers that are made or called in this scope to a stage.

    Args:
        stage: The stage's number, from 0 on. That of a layer's call precedes that of the layer.

    Raises:
        PipelineError: The number is negative, or the scope stands in another one.
    """
    if not isinstance(stage, int) or stage < 0:
        raise PipelineError(
            "PD425", "a pipeline stage has a number from 0 on", value=stage, accepted="0, 1, ..."
        )
    if _stage.get() is not None:
        raise PipelineError(
            "PD425",
            "a PipelineStage stands in another one, and a layer has one stage",
            value=f"stage {stage} in stage {_stage.get()}",
            hint="leave the first scope before the next one",
        )
    tag_made(_TAG, _stage.get)
    token = _stage.set(stage)
    try:
        yield
    finally:
        _stage.reset(token)


class _Assignment:
    """What a model's layer is assigned to.

    Attributes:
        node_index: Which of the layer's calls it is.
    """

    is_nested_model = False

    def __init__(self, layer: Any, node_index: int) -> None:
        self._layer = layer
        self.node_index = node_index

    @property
    def inbound_layers(self) -> list[Any]:
        """The layers whose results the call takes."""
        return [node.layer for node in self._layer.inbound_nodes[self.node_index].parent_nodes]


class ModelLayerPipelineStageAssignment(_Assignment):
    """The stage of one call of a layer, in a model with a ``call`` of its own.

    Args:
        layer: The layer.
        node_index: Which of the layer's calls it is.
        pipeline_stage: The stage; None for a layer without one.
    """

    def __init__(self, layer: Any, node_index: int, pipeline_stage: int | None = None) -> None:
        super().__init__(layer, node_index)
        self.pipeline_stage = pipeline_stage

    @property
    def layer(self) -> Any:
        """The layer."""
        return self._layer

    def __str__(self) -> str:
        return (
            f"Layer: {self.layer.name} (node index {self.node_index}) is assigned to pipeline "
            f"stage: {self.pipeline_stage}"
        )


class FunctionalLayerPipelineStageAssignment(ModelLayerPipelineStageAssignment):
    """The stage of one call of a layer, in a functional model; arguments as above."""


class SequentialLayerPipelineStageAssignment(ModelLayerPipelineStageAssignment):
    """The stage of a layer of a sequential model.

    Args:
        layer: The layer.
        pipeline_stage: The stage; None for a layer without one.
    """

    def __init__(self, layer: Any, pipeline_stage: int | None = None) -> None:
        super().__init__(layer, 0, pipeline_stage)


class NestedModelPipelineStageAssignment(_Assignment):
    """The stages of the layers of a model that another model calls.

    Args:
        nested_model: The model that is called.
        node_index: Which of its calls it is.
        pipeline_stage_assignments: The assignments of its layers, in this call.
    """

    is_nested_model = True

    def __init__(
        self, nested_model: Any, node_index: int, pipeline_stage_assignments: Sequence[Any]
    ) -> None:
        super().__init__(nested_model, node_index)
        self._assignments = pipeline_stage_assignments

    @property
    def nested_model(self) -> Any:
        """The model that is called."""
        return self._layer

    @property
    def pipeline_stage_assignments(self) -> list[Any]:
        """The assignments of its layers."""
        return list(self._assignments)

    def __str__(self) -> str:
        lines = "".join(f"\n  {one}" for one in self._assignments)
        return (
            f"Model: {self.nested_model.name} (node index {self.node_index}) has the following "
            f"pipeline stage assignments:{lines}"
        )


class FunctionalNestedModelPipelineStageAssignment(NestedModelPipelineStageAssignment):
    """The stages of a model that a functional model calls; arguments as above."""


class SequentialNestedModelPipelineStageAssignment(NestedModelPipelineStageAssignment):
    """The stages of a model that stands in a sequential model.

    Args:
        nested_model: The model.
        pipeline_stage_assignments: The assignments of its layers.
    """

    def __init__(self, nested_model: Any, pipeline_stage_assignments: Sequence[Any]) -> None:
        super().__init__(nested_model, 0, pipeline_stage_assignments)


class _Call(NamedTuple):
    """One call of a layer; a sequential model's have no node."""

    layer: Any
    number: int
    node: Any


def _is_sequential(model: Any) -> bool:
    return isinstance(model, tf.keras.Sequential)


def _calls(model: Any) -> list[_Call]:
    """The calls of layers that a model is made of, in the order in which they run."""
    if _is_sequential(model):
        return [_Call(layer, 0, None) for layer in model.layers]
    if getattr(model, "_is_graph_network", False):
        return _of_nodes(model._nodes_by_depth)
    if _CALLS not in vars(model):
        shapes = input_shapes(model)
        if shapes is None:
            raise PipelineStateError(
                "PD425",
                f"Cannot get pipeline stage assignments for model `{model.name}` which has not "
                "been built yet",
                hint="call model.build() first",
            )
        vars(model)[_CALLS] = _of_nodes(calls_of_function(model.call, shapes))
    found: list[_Call] = vars(model)[_CALLS]
    return found


def _of_nodes(by_depth: dict[int, list[Any]]) -> list[_Call]:
    nodes = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
    return [
        _Call(node.layer, node.layer.inbound_nodes.index(node), node)
        for node in nodes
        if not node.is_input
    ]


def _kinds(model: Any) -> tuple[type[Any], type[Any]]:
    """The assignments that a model has: of layers, and of models that it calls."""
    if _is_sequential(model):
        return SequentialLayerPipelineStageAssignment, SequentialNestedModelPipelineStageAssignment
    if getattr(model, "_is_graph_network", False):
        return FunctionalLayerPipelineStageAssignment, FunctionalNestedModelPipelineStageAssignment
    return ModelLayerPipelineStageAssignment, NestedModelPipelineStageAssignment


def _unassigned(model: Any) -> list[Any]:
    """The assignments of a model that has been given none: of `PipelineStage` scopes, or empty."""
    calls = _calls(model)
    tags = [getattr(call.node, _TAG, None) for call in calls]
    tags = [
        getattr(call.layer, _TAG, None) if tag is None else tag
        for call, tag in zip(calls, tags, strict=True)
    ]
    made: list[Any] = []
    kinds = _kinds(model)
    for call, tag in zip(calls, tags, strict=True):
        is_nested = isinstance(call.layer, tf.keras.Model)
        if not is_nested and tag is None and set(tags) != {None}:
            raise PipelineError(
                "PD425",
                "All layers of a pipelined model must have an associated pipeline stage. However, "
                f"{call.layer.name} has not been assigned to one.",
                hint="make or call each layer in a PipelineStage scope",
            )
        held: Any = assignments(call.layer) if is_nested else tag
        place = () if _is_sequential(model) else (call.number,)
        made.append(kinds[is_nested](call.layer, *place, held))
    return made


def assignments(model: Any) -> list[Any]:
    """A copy of a model's assignments, as `get_pipeline_stage_assignment` returns it."""
    held = vars(model).get(_HELD)
    return _unassigned(model) if held is None else [copy.copy(one) for one in held]


def leaves(found: Sequence[Any]) -> list[Any]:
    """The assignments of layers, also those of nested models."""
    return [
        leaf
        for one in found
        for leaf in (leaves(one.pipeline_stage_assignments) if one.is_nested_model else [one])
    ]


def stages_of(model: Any) -> set[int]:
    """The stages of a model; none where it is not a pipeline."""
    has_calls = _is_sequential(model) or hasattr(model, "_nodes_by_depth")
    if not has_calls and vars(model).get(_HELD) is None and input_shapes(model) is None:
        return set()
    return {leaf.pipeline_stage for leaf in leaves(assignments(model))} - {None}


def require_whole(model: Any) -> None:
    """Checks, before a model runs, that its stages are numbered without gaps.

    Raises:
        PipelineStateError: A stage has no layer.
    """
    found = stages_of(model)
    missing = sorted(set(range(max(found, default=0))) - found)
    if missing:
        raise PipelineStateError(
            "PD425",
            "All stages in a pipeline must have at lease one layer assigned to them. The highest "
            f"stage with an assignment is stage {max(found)}, however the preceeding stages "
            f"{missing} had no assignments.",
            accepted="0, 1, ...",
        )


def _check(model: Any, given: Sequence[Any]) -> None:
    """Checks that assignments are those of a model's layers, in their order."""
    expected = _unassigned(model)
    if len(given) != len(expected):
        raise PipelineError(
            "PD425",
            f"The length of the provided `pipeline_stage_assignment` ({len(given)}) does not match "
            f"the number of layers in the graph ({len(expected)}).",
            hint="change what get_pipeline_stage_assignment() returns",
        )
    for index, (own, one) in enumerate(zip(expected, given, strict=True)):
        if not isinstance(one, type(own)):
            raise PipelineError("PD425", _of_another_kind(model, own), value=type(one).__name__)
        if one._layer is not own._layer or one.node_index != own.node_index:
            raise PipelineError("PD425", _of_another_layer(model, index, own, one))
        if one.is_nested_model:
            _check(one.nested_model, one.pipeline_stage_assignments)
        elif one.pipeline_stage is None:
            where = "" if _is_sequential(model) else f" with node_index {one.node_index}"
            raise PipelineError(
                "PD425",
                f"Layer {one.layer.name}{where} has not been assigned a pipeline stage in "
                "`pipeline_stage_assignment`.",
                accepted="a stage for every layer",
            )
    for before, after in _edges(model, given):
        first = min(leaf.pipeline_stage for leaf in leaves([before]))
        second = max(leaf.pipeline_stage for leaf in leaves([after]))
        if first > second:
            raise PipelineError(
                "PD425",
                f"Layer {after._layer.name} in pipeline stage {second} has a dependency from a "
                "pipeline stage which has not yet been executed.",
                value=f"{after._layer.name} (stage {second}) takes the result of "
                f"{before._layer.name} (stage {first})",
                accepted="stages in the order of the data",
            )


def _of_another_kind(model: Any, own: Any) -> str:
    if _is_sequential(model):
        return (
            "All elements of `pipeline_stage_assignment` must be instances of "
            "`SequentialLayerPipelineStageAssignment` for layers or "
            "`SequentialNestedModelPipelineStageAssignment` for nested models."
        )
    kind = "nested model" if own.is_nested_model else "layer"
    return (
        f"The pipeline stage assignment for {kind} {own._layer.name} in {model.name} must be an "
        f"instance of `{type(own).__name__}`."
    )


def _of_another_layer(model: Any, index: int, own: Any, one: Any) -> str:
    if _is_sequential(model):
        return (
            f"The provided assignment at index {index} `pipeline_stage_assignment` is for layer "
            f"{one._layer.name}, but the layer in the Sequential model at index {index} is "
            f"{own._layer.name}."
        )
    return (
        "The order of `pipeline_stage_assignment` does not match the post-order generated from the "
        f"graph ({one._layer.name}, call {one.node_index} != {own._layer.name}, call "
        f"{own.node_index})."
    )


def _check_sequence(given: Sequence[Any]) -> None:
    """Checks that the stages of a sequential model of layers begin with 0, and go up by one."""
    first = given[0].pipeline_stage
    if first != 0:
        raise PipelineError(
            "PD425",
            "The first layer in a pipelined sequential model needs to be assigned to the 0th "
            f"pipeline stage, however it was assigned to {first}.",
        )
    for before, after in pairwise(given):
        if after.pipeline_stage - before.pipeline_stage not in (0, 1):
            raise PipelineError(
                "PD425",
                f"Layer {after.layer.name} has been assigned to pipeline stage "
                f"{after.pipeline_stage}, however the previous layer in the Sequential model was "
                f"assigned to pipeline stage {before.pipeline_stage}. A layer in a Sequential "
                "model can only be assigned to the same pipeline stage as the previous layer or to "
                "the next pipeline stage.",
            )


def _edges(model: Any, given: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Pairs of assignments of which the second's call takes the first one's result."""
    if _is_sequential(model):
        return list(pairwise(given)) if any(one.is_nested_model for one in given) else []
    calls = _calls(model)
    held = {id(call.node): one for call, one in zip(calls, given, strict=True)}
    return [
        (held[id(parent)], held[id(call.node)])
        for call in calls
        for parent in call.node.parent_nodes
        if id(parent) in held
    ]


# What models learn under the strategies. Each function becomes a method of `tf.keras.Model`.


def get_pipeline_stage_assignment(self: Any) -> list[Any]:
    """The assignments of a model's layers to stages, in the order in which they run.

    Args:
        self: The model.

    Returns:
        An assignment for each layer of a `tf.keras.Sequential`, and for each call of a layer of
        another model. That of a model which the model calls has assignments of its own.

    Raises:
        PipelineStateError: The calls are not known before the model is built.
    """
    return assignments(self)


def set_pipeline_stage_assignment(self: Any, pipeline_stage_assignment: list[Any]) -> None:
    """Assigns the layers of a model to stages.

    Args:
        self: The model.
        pipeline_stage_assignment: As `get_pipeline_stage_assignment` returns it; of a
            `tf.keras.Sequential`, the stages are enough.

    Raises:
        PipelineError: It does not fit the model, or the order of its layers.
    """
    given = pipeline_stage_assignment
    if not isinstance(given, list):
        raise PipelineError(
            "PD425", "`pipeline_stage_assignment` needs to be a list.", value=type(given).__name__
        )
    if _is_sequential(self) and len(given) == len(self.layers):
        for index, (layer, stage) in enumerate(zip(self.layers, given, strict=True)):
            if isinstance(stage, int):
                given[index] = SequentialLayerPipelineStageAssignment(layer, stage)
    _check(self, given)
    if _is_sequential(self) and not any(one.is_nested_model for one in given):
        _check_sequence(given)
    vars(self)[_HELD] = [copy.copy(one) for one in given]


def reset_pipeline_stage_assignment(self: Any) -> None:
    """Takes all layers out of their stages.

    Args:
        self: The model.
    """
    vars(self).pop(_HELD, None)


def print_pipeline_stage_assignment_summary(
    self: Any, line_length: int | None = None, print_fn: Callable[[str], Any] | None = None
) -> None:
    """Prints the stage of each layer.

    Args:
        self: The model.
        line_length: Characters of a line; None for 60, or 89 where inputs are shown.
        print_fn: Called with each line; None for `print`.
    """
    show = print_fn or print
    has_inputs = not _is_sequential(self)
    length = line_length or (89 if has_inputs else 60)
    ends = [int(length * part) for part in ((0.4, 0.8, 1.0) if has_inputs else (0.5, 1.0))]

    def row(*cells: str) -> None:
        line = ""
        for end, cell in zip(ends, cells, strict=True):
            line = f"{line[:-1] + ' ' if line else ''}{cell}"[:end].ljust(end)
        show(line)

    def rows(found: Sequence[Any]) -> None:
        for number, one in enumerate(found, 1):
            if one.is_nested_model:
                show(f'Nested Model: "{one.nested_model.name}"')
                show("-" * length)
                rows(one.pipeline_stage_assignments)
                continue
            name = f"{one.layer.name} ({type(one.layer).__name__})"
            if has_inputs:
                first, *others = [layer.name for layer in one.inbound_layers] or [""]
                row(f"{name} ({one.node_index})", first, str(one.pipeline_stage))
                for other in others:
                    row("", other, "")
            else:
                row(name, str(one.pipeline_stage))
            is_last = number == len(found) or found[number].is_nested_model
            show(("=" if is_last else "_") * length)

    show(f'Model: "{self.name}"')
    show("_" * length)
    if has_inputs:
        row("Layer (type) (node index)", "Input Layers", "Pipeline Stage")
    else:
        row("Layer (type)", "Pipeline Stage")
    show("=" * length)
    rows(assignments(self))


METHODS: tuple[Any, ...] = (
    get_pipeline_stage_assignment,
    print_pipeline_stage_assignment_summary,
    reset_pipeline_stage_assignment,
    set_pipeline_stage_assignment,
)
