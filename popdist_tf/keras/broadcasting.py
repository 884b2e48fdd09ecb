"""Giving all instances the variables of one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from popdist_tf.collectives.agreement import agree, agree_on_weights
from popdist_tf.collectives.instances import job_collectives
from popdist_tf.versions import describe, tensorflow_variable, variable_name

if TYPE_CHECKING:
    from collections.abc import Iterable


def broadcast_variables(variables: Iterable[Any], root_rank: int = 0) -> None:
    """Assigns the root's values to variables, on every instance.

    Args:
        variables: Variables of Keras or of TensorFlow, the same ones on every instance.
        root_rank: The instance whose values count.

    Raises:
        AgreementError: The instances pass different variables.
    """
    collectives = job_collectives()
    held = list(variables)
    if collectives.horovod is None or not held:
        return
    agree(collectives, f"{len(held)} variables to broadcast: {describe(held)}")

    @tf.function  # type: ignore[untyped-decorator]
    def assign_all() -> None:
        for variable in map(tensorflow_variable, held):
            variable.assign(collectives.broadcast(variable, root_rank))

    assign_all()


def check_weights(variables: Iterable[Any], when: str = "here") -> None:
    """Checks that all instances hold the same weights, bit for bit; every instance must call it.

    For loops that update weights by themselves: optimizers of `DistributedOptimizer`, and any
    optimizer under the strategies, are checked after their first step in any case.

    Args:
        variables: Variables of Keras or of TensorFlow, the same ones on every instance; in a graph
            of TensorFlow 1, pairs of a name and the value that a session returned.
        when: At which point, in words, for the message.

    Raises:
        AgreementError: Weights differ; raised on all instances, and names those that do.
    """
    held = [
        one if isinstance(one, tuple) else (variable_name(one), tensorflow_variable(one).numpy())
        for one in variables
    ]
    agree_on_weights(job_collectives(), held, when)


def broadcast_training_state(model: Any, root_rank: int) -> None:
    """Broadcasts a model's weights and all that its optimizer keeps.

    Args:
        model: A model of Keras that is built and compiled.
        root_rank: The instance whose values count.
    """
    optimizer = model.optimizer
    # An instance that has resumed from a file has slots already; the others need them to receive.
    optimizer.build(list(model.trainable_variables))
    broadcast_variables([*model.weights, *optimizer.variables], root_rank)
