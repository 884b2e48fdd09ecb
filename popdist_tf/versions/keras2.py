"""Keras 2, which TensorFlow has up to 2.15, and with ``TF_USE_LEGACY_KERAS``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf

from popdist_tf.patches import surround

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

UPDATE_METHOD = "apply_gradients"
NODES = "keras.src.engine.node"
LOSSES = "keras.src.utils.losses_utils"


def optimizer_kinds() -> tuple[Any, ...]:
    """The base classes of Keras' optimizers: the new one, and that until 2.10."""
    kinds = tf.keras.optimizers
    # Under the SDK's names, `Optimizer` is the old kind.
    return (kinds.experimental.Optimizer, kinds.legacy.Optimizer)


def build_optimizer(optimizer: Any, variables: Sequence[Any]) -> None:
    """Creates the slots of an optimizer, where they do not exist."""
    if isinstance(optimizer, optimizer_kinds()[1:]):
        optimizer._create_all_weights(list(variables))
    elif hasattr(optimizer, "build"):  # one of TensorFlow 1 creates them when it is applied
        optimizer.build(list(variables))


def tensorflow_variable(variable: Any) -> Any:
    """The variable of TensorFlow inside one of Keras."""
    return variable


def correct_epoch_steps(corrected: Callable[[int], int]) -> None:
    """Makes Keras correct the steps that it infers for an epoch; those of the user are kept."""

    def infer(known: Any, handler: Any, steps: int | None, dataset: Any) -> Any:
        inferred = known(handler, steps, dataset)
        return inferred if steps is not None or inferred is None else corrected(inferred)

    handler: Any = import_module("keras.src.engine.data_adapter").DataHandler
    surround(handler, "_infer_steps", "replicas", infer)


def support_loss_scaling() -> None:
    """Makes Keras scale losses under more strategies than TensorFlow's own."""

    def supports(known: Any) -> bool:
        strategy = tf.distribute.get_strategy()
        return bool(getattr(strategy, "supports_loss_scaling", False) or known())

    module: Any = import_module("keras.src.mixed_precision.loss_scale_optimizer")
    surround(module, "strategy_supports_loss_scaling", "strategies", supports)


def clip_sums_where(reduces: Callable[[], bool]) -> None:
    """Makes Keras clip sums of gradients over replicas; it does so by itself."""
    del reduces


def before_first_batch(check: Callable[[Any, str], None]) -> None:
    """Has Keras call a function before it takes a batch to build a model from; it takes none."""
    del check


def gradients_and_variables(
    given: Iterable[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], list[Any], bool]:
    """Gradients, variables, and whether they are summed already, of an update's arguments."""
    del args
    reduced = kwargs.get("skip_gradients_aggregation", False) or not kwargs.get(
        "experimental_aggregate_gradients", True
    )
    pairs = list(given)  # they may be those of an iterator
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs], reduced


def support_backups(callbacks: Sequence[Any], strategy: Any) -> None:
    """Lets ``BackupAndRestore`` work under a strategy of ours."""
    for one in callbacks:
        known = getattr(one, "_supported_strategies", None)
        if known is not None and not isinstance(strategy, known):
            one._supported_strategies = (*known, type(strategy))


def input_shapes(model: Any) -> Any:
    """The shapes that a model with a ``call`` of its own was built for; None before."""
    shapes = getattr(model, "_build_input_shape", None)
    if shapes is None:
        return None
    return import_module("keras.src.utils.tf_utils").convert_shapes(shapes, to_tuples=False)


def calls_of_function(function: Callable[[Any], Any], shapes: Any) -> dict[int, list[Any]]:
    """The calls of layers in a function, by their distance from its results."""
    inputs = tf.nest.map_structure(
        lambda shape: tf.keras.Input(batch_size=shape[0], shape=shape[1:]), shapes
    )
    outputs = function(inputs)
    network = import_module("keras.src.engine.functional")._map_graph_network
    found: dict[int, list[Any]] = network(tf.nest.flatten(inputs), tf.nest.flatten(outputs))[1]
    return found


def strategy_of(model: Any) -> Any:
    """The strategy in whose scope a model was created, or None."""
    held = getattr(model, "_distribution_strategy", None)
    return held or getattr(model, "_distribute_strategy", None)
