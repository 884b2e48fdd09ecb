"""Hooks in methods of Keras and TensorFlow: each is installed once, and calls functions by name.

Methods of Keras that differ between its versions are replaced in the modules of
`popdist_tf.versions`.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.python.eager import def_function

from popdist_tf.errors import AgreementError, StrategyError
from popdist_tf.patches import surround
from popdist_tf.program_code import program_code
from popdist_tf.versions import (
    LOSSES,
    NODES,
    UPDATE_METHOD,
    gradients_and_variables,
    optimizer_kinds,
    update_arguments,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from popdist.errors import PopdistError

_FUNCTIONS = "_popdist_functions_of"
_CALLBACKS = "_popdist_callbacks"
_RUNS = ("evaluate", "fit", "predict")


def before_training(name: str, check: Callable[[Any], None]) -> None:
    """Makes Keras call a function with each model that is about to be trained; safe to call again.

    Args:
        name: A later function of the same name replaces an earlier one.
        check: Called by ``fit`` and ``train_on_batch``.
    """
    change_arguments("make_train_function", name, lambda given: check(given["self"]))


def before_batches(name: str, check: Callable[[Any, Any], None]) -> None:
    """Makes Keras call a function with each model whose ``train_on_batch`` is called; as above.

    Args:
        name: A later function of the same name replaces an earlier one.
        check: Called before each batch, with the model and the batch's inputs.
    """
    change_arguments("train_on_batch", name, lambda given: check(given["self"], given.get("x")))


def before_evaluations(name: str, check: Callable[[Any, str], None]) -> None:
    """Makes Keras call a function with each model that is evaluated or predicts; as above.

    Args:
        name: A later function of the same name replaces an earlier one.
        check: Called with the model and ``"evaluate"`` or ``"predict"``.
    """
    change_arguments("make_test_function", name, lambda given: check(given["self"], "evaluate"))
    change_arguments("make_predict_function", name, lambda given: check(given["self"], "predict"))


def before_steps(model: Any, note: Callable[[Any], None]) -> Any:
    """Makes a model call a function with the batch of each step that is built or run.

    Args:
        model: A model of Keras.
        note: Called by each replica, with its batch.

    Returns:
        The ``train_step`` that the model had.
    """
    known = model.train_step

    # Not `functools.wraps`, by which AutoGraph would take this for a function of the program.
    def train_step(data: Any) -> Any:
        note(data)
        return program_code(known)(data)

    model.train_step = train_step
    return known


def before_updates(name: str, check: Callable[[Any, list[Any], list[Any]], None]) -> None:
    """Makes Keras call a function before each update that an optimizer builds or runs.

    Args:
        name: A later function of the same name replaces an earlier one.
        check: Called with the optimizer, the variables and the gradients. An update whose
            gradients the program says are summed already (``skip_gradients_aggregation``) is not
            checked.
    """
    for kind in optimizer_kinds():
        _functions_of(kind, UPDATE_METHOD, _check_update)[name] = check


def _functions_of(kind: Any, method: str, by: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The functions that a method calls, by their names.

    Args:
        kind: A class that has the method.
        method: Its name.
        by: Called with these functions, the method that was there, and its arguments.
    """
    owner: Any = next(one for one in kind.__mro__ if method in vars(one))
    functions: dict[str, Callable[..., Any]] = {}

    def called(known: Any, *args: Any, **kwargs: Any) -> Any:
        return by(functions, known, *args, **kwargs)

    attribute = f"{_FUNCTIONS}_{method}"
    if surround(owner, method, attribute, called):
        setattr(owner, attribute, functions)
    found: dict[str, Callable[..., Any]] = getattr(owner, attribute)
    return found


def _check_update(checks: Mapping[str, Any], known: Any, *args: Any, **kwargs: Any) -> Any:
    optimizer = args[0]
    given, args, kwargs = update_arguments(args[1:], kwargs)
    pairs = list(given)
    gradients, variables, reduced = gradients_and_variables(pairs, args, kwargs)
    if not reduced:
        for check in checks.values():
            check(optimizer, variables, gradients)
    return known(optimizer, pairs, *args, **kwargs)


def add_callbacks(
    name: str,
    callbacks: Callable[[Any, Mapping[str, Any]], tuple[Sequence[Any], Sequence[Any]]],
) -> None:
    """Gives ``fit`` of Keras' models more callbacks; safe to call again.

    Args:
        name: A later function of the same name replaces an earlier one.
        callbacks: From a model and the arguments of its ``fit`` (the user's callbacks as a list)
            to callbacks that are called before the user's, and to those that are called after.
    """
    model: Any = tf.keras.Model
    if not hasattr(model, _CALLBACKS):
        setattr(model, _CALLBACKS, {})
    getattr(model, _CALLBACKS)[name] = callbacks
    change_arguments("fit", "callbacks", _add_callbacks)


def _add_callbacks(arguments: dict[str, Any]) -> None:
    model, given = arguments["self"], arguments.get("callbacks")
    held = getattr(given, "callbacks", given) or []
    held = list(held) if isinstance(held, (list, tuple)) else [held]
    known = {**arguments, "callbacks": held}
    found = [make(model, known) for make in getattr(model, _CALLBACKS).values()]
    before = [one for first, _ in found for one in first]
    after = [one for _, last in found for one in last]
    if before or after:
        arguments["callbacks"] = [*before, *held, *after]


def change_arguments(method: str, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Makes Keras' models call a function with the arguments of a method; safe to call again.

    Errors of ours with which a graph fails leave ``fit``, ``evaluate`` and ``predict`` as they are.

    Args:
        method: Such as ``fit``.
        name: A later function of the same name replaces an earlier one.
        change: Called with the arguments by name, which it may change; ``self`` is the model.
    """
    _functions_of(tf.keras.Model, method, _change)[name] = change


def _change(changes: Mapping[str, Any], known: Any, *args: Any, **kwargs: Any) -> Any:
    call = inspect.signature(known).bind(*args, **kwargs)
    for change in changes.values():
        change(call.arguments)
    try:
        return known(*call.args, **call.kwargs)
    except tf.errors.OpError as error:
        own = _own_error(error) if known.__name__ in _RUNS else None
        if own is None:
            raise
        raise own from None


def _own_error(error: Any) -> PopdistError | None:
    """The error of ours that a running graph has failed with; None for TensorFlow's own."""
    found = re.search(r"\[(PD\d{3})\] (.*?)\s*(\n\t \[\[|\Z)", error.message, re.DOTALL)
    if found is None:
        return None
    kind = AgreementError if found[1] == "PD007" else StrategyError
    return kind(found[1], found[2])


def extend_models(methods: dict[str, Any]) -> None:
    """Gives Keras' models more methods; safe to call again.

    Args:
        methods: Functions by their names.
    """
    model: Any = tf.keras.Model
    for name, method in methods.items():
        setattr(model, name, method)


def tag_made(attribute: str, tag: Callable[[], Any]) -> None:
    """Makes Keras tag each layer, and each call of a layer in a model; safe to call again.

    Args:
        attribute: The name of the tag on the layer, and on the call's node.
        tag: The tag of what is made now; None for no tag.
    """

    def made(known: Any, kind: Any, *args: Any, **kwargs: Any) -> Any:
        one = known(kind) if known is object.__new__ else known(kind, *args, **kwargs)
        if tag() is not None:
            vars(one)[attribute] = tag()
        return one

    for kind in (import_module(NODES).Node, tf.keras.layers.Layer):
        surround(kind, "__new__", "tags", made)


def divide_losses_where(divides: Callable[[], bool]) -> None:
    """Makes Keras ask before it divides a loss by the number of replicas; safe to call again.

    Args:
        divides: Whether the gradients of the current strategy's replicas are summed.
    """
    module: Any = import_module(LOSSES)
    for function in ("scale_loss_for_distribution", "unscale_loss_for_distribution"):
        if hasattr(module, function):
            surround(
                module,
                function,
                "sums",
                lambda known, value: known(value) if divides() else value,
            )


def compile_where(compiles: Callable[[], bool]) -> None:
    """Makes ``tf.function`` ask before XLA compiles it; safe to call again.

    Programs of the SDK compile their loops for the device by ``jit_compile=True``. XLA on a host
    can compile neither queues nor exchanges.

    Args:
        compiles: Whether functions that are called now are compiled, as the program asks.
    """
    kind: Any = def_function.Function
    if hasattr(kind, "_jit_compile"):
        return

    def asked(self: Any) -> Any:
        held = vars(self)["_jit_compile"]
        return held if not held or compiles() else None

    def hold(self: Any, value: Any) -> None:
        vars(self)["_jit_compile"] = value

    kind._jit_compile = property(asked, hold)
