"""Refuses to train a Keras model that no strategy looks after, in a job of several instances.

A strategy looks after the variables that are created in its scope, and no others. A model that is
created outside starts from weights of its own on each instance and reduces nothing: every instance
trains another model, and Keras raises no error.
"""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v2 as tf

from popdist_tf.checks import EXCHANGE, warn
from popdist_tf.checks.end import compare_at_end
from popdist_tf.collectives.agreement import agree
from popdist_tf.errors import StrategyError
from popdist_tf.hooks import before_evaluations, before_training, before_updates
from popdist_tf.progress import report_fits
from popdist_tf.together.epochs import compare_epochs
from popdist_tf.together.reductions import AVERAGES, collectives_of, optimizers_of, reduces
from popdist_tf.versions import (
    UPDATE_METHOD,
    before_first_batch,
    strategy_of,
    tensorflow_variable,
    variable_name,
)


def refuse_training_outside(strategy: str, instances: int) -> None:
    """Makes Keras refuse to train models that were created outside of any strategy of the job.

    Args:
        strategy: The name of the strategy that the program has created, for the message.
        instances: Instances of the job. One alone trains what it likes.
    """
    if instances == 1:
        return

    def check(model: Any) -> None:
        _refuse_unreduced(model)
        if not _is_looked_after(model):
            raise StrategyError(
                "PD414",
                "this model was created outside of the strategy's scope: each instance would "
                "train a model of its own",
                value=f"{type(model).__name__} '{model.name}', in a job of {instances} instances",
                accepted=f"a model that is created in the scope of a {strategy}",
                hint="create and compile the model inside of `with strategy.scope():`; where each "
                "instance is to train a model of its own, use the scope of an IPUStrategy",
            )

    before_training("scope", check)
    before_updates("scope", _refuse_update_outside)
    before_updates("end", lambda optimizer, variables, _: compare_at_end(optimizer, variables))
    before_evaluations("scope", _refuse_to_evaluate_alone)
    before_first_batch(_refuse_to_begin_alone)
    compare_epochs()
    report_fits()


def _refuse_to_evaluate_alone(model: Any, call: str) -> None:
    """Compares what the instances call, as each of these calls exchanges values between them."""
    _refuse_to_begin_alone(model, f"{call} of a model")


def _refuse_to_begin_alone(model: Any, call: str) -> None:
    collectives = collectives_of(strategy_of(model))
    if collectives is not None:
        agree(
            collectives,
            call,
            "the same calls of fit, evaluate and predict on every instance",
            "call evaluate and predict on all instances, and print on one; each instance gives its "
            "own rows",
        )


def warn_of_unwrapped(instances: int) -> None:
    """Warns of Keras models whose optimizers reduce nothing, where a program uses no strategy.

    Args:
        instances: Instances of the job.
    """

    def check(model: Any) -> None:
        if instances > 1 and not _is_looked_after(model):
            warn(
                EXCHANGE,
                "nothing reduces the gradients of this model: each instance trains a model of its "
                f"own ({type(model).__name__} '{model.name}'). Compile it with "
                "popdist_tf.keras.DistributedOptimizer(optimizer).",
            )

    before_training("wrapper", check)


def _refuse_unreduced(model: Any) -> None:
    extended = getattr(strategy_of(model), "extended", None)
    if getattr(extended, "reduces_on_device", True) or hasattr(model.optimizer, AVERAGES):
        return
    raise StrategyError(
        "PD436",
        "nothing reduces the gradients of this model: each instance would train a model of its own",
        value=f"add_ipu_cross_replica_reductions=False, and {type(model.optimizer).__name__}",
        accepted="a strategy that reduces, or an optimizer that does",
        hint="create the strategy without add_ipu_cross_replica_reductions=False",
    )


def _is_looked_after(model: Any) -> bool:
    strategy = strategy_of(model)
    if strategy is not None:
        extended = strategy.extended
        # A strategy of ours for one instance is a choice; Keras takes its default one by itself.
        if hasattr(extended, "collectives") or extended._in_multi_worker_mode():
            return True
    held = optimizers_of(model)
    return bool(held) and all(map(reduces, held))


def _refuse_update_outside(optimizer: Any, variables: list[Any], _: list[Any]) -> None:
    """Refuses an update of a strategy's variables where the strategy can reduce no gradients."""
    if reduces(optimizer) or hasattr(optimizer, AVERAGES):
        return
    for variable in map(tensorflow_variable, variables):
        strategy = getattr(variable, "distribute_strategy", None)
        collectives = collectives_of(strategy)
        if getattr(collectives, "size", 1) > 1 and tf.distribute.get_strategy() is not strategy:
            raise StrategyError(
                "PD414",
                "an optimizer updates a strategy's variables outside of strategy.run: each "
                "instance would apply the gradients of its own data alone",
                value=f"{type(optimizer).__name__}.{UPDATE_METHOD} of {variable_name(variable)}",
                accepted="a step that strategy.run is given: the strategy sums gradients there",
                hint="put the step into a function, and call strategy.run(step, args=(batch,))",
            )
