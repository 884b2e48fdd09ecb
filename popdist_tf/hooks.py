"""Hooks in methods of Keras and TensorFlow: each is installed once, and calls functions by name.

Methods of Keras that differ between its versions are replaced in the modules of
`popdist_tf.versions`.
"""

from __future__ import annotations

import functools
import inspect
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.python.eager import def_function

from popdist_tf.errors import AgreementError, StrategyError
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

_MARK = "_popdist_asks"
_CHECK = "_popdist_checks_before_training"
_CALLBACKS = "_popdist_callbacks"
_ARGUMENTS = "_popdist_arguments"


def before_training(name: str, check: Callable[[Any], None]) -> None:
    """Makes Keras call a function with each model that is about to be trained; safe to call again.

    Args:
        name: A later function of the same name replaces an earlier one.
        check: Called by ``fit`` and ``train_on_batch``.
    """
    _before("make_train_function", name, lambda model, _: check(model))


def before_batches(name: str, check: Callable[[Any, Any], None]) -> None:
    """Makes Keras call a function with each model whose ``train_on_batch`` is called; as above.

    Args:
        name: A later function of the same name replaces an earlier one.
        check: Called before each batch, with the model and the batch's inputs.
    """
    _before("train_on_batch", name, lambda model, given: check(model, given.get("x")))


def before_evaluations(name: str, check: Callable[[Any, str], None]) -> None:
    """Makes Keras call a function with each model that is evaluated or predicts; as above.

    Args:
        name: A later function of the same name replaces an earlier one.
        check: Called with the model and ``"evaluate"`` or ``"predict"``.
    """
    _before("make_test_function", name, lambda model, _: check(model, "evaluate"))
    _before("make_predict_function", name, lambda model, _: check(model, "predict"))


def _before(method: str, name: str, check: Callable[[Any, Mapping[str, Any]], None]) -> None:
    owner = _owner(method)
    checks = f"{_CHECK}_{method}"
    if not hasattr(owner, checks):
        setattr(owner, method, _checked(getattr(owner, method), checks))
        setattr(owner, checks, {})
    getattr(owner, checks)[name] = check


def _owner(method: str) -> Any:
    """The class of Keras' models that defines a method."""
    model: Any = tf.keras.Model
    return next(one for one in model.__mro__ if method in vars(one))


def _checked(method: Callable[..., Any], checks: str) -> Any:
    names = list(inspect.signature(method).parameters)[1:]

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        for check in getattr(self, checks).values():
            check(self, dict(zip(names, args, strict=False)) | kwargs)
        return method(self, *args, **kwargs)

    return wrapped


def before_updates(name: str, check: Callable[[Any, list[Any], list[Any]], None]) -> None:
    """Makes Keras call a function before each update that an optimizer builds or runs.

    Args:
        name: A later function of the same name replaces an earlier one.
        check: Called with the optimizer, the variables and the gradients. An update whose
            gradients the program says are summed already (``skip_gradients_aggregation``) is not
            checked.
    """
    method = UPDATE_METHOD
    for kind in optimizer_kinds():
        owner: Any = next(one for one in kind.__mro__ if method in vars(one))
        if not hasattr(owner, _CHECK):
            setattr(owner, method, _checked_update(getattr(owner, method)))
            setattr(owner, _CHECK, {})
        getattr(owner, _CHECK)[name] = check


def _checked_update(method: Callable[..., Any]) -> Any:
    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        given, args, kwargs = update_arguments(args, kwargs)
        pairs = list(given)
        gradients, variables, reduced = gradients_and_variables(pairs, args, kwargs)
        if not reduced:
            for check in getattr(self, _CHECK).values():
                check(self, variables, gradients)
        return method(self, pairs, *args, **kwargs)

    return wrapped


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
    owner = _owner("fit")
    if not hasattr(owner, _CALLBACKS):
        owner.fit = _with_callbacks(owner.fit)
        setattr(owner, _CALLBACKS, {})
    getattr(owner, _CALLBACKS)[name] = callbacks


def _with_callbacks(method: Callable[..., Any]) -> Any:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = signature.bind(self, *args, **kwargs)
        given = call.arguments.get("callbacks")
        held = getattr(given, "callbacks", given) or []
        held = list(held) if isinstance(held, (list, tuple)) else [held]
        arguments = {**call.arguments, "callbacks": held}
        found = [make(self, arguments) for make in getattr(self, _CALLBACKS).values()]
        before = [one for first, _ in found for one in first]
        after = [one for _, last in found for one in last]
        if not (before or after):
            return method(self, *args, **kwargs)
        call.arguments["callbacks"] = [*before, *held, *after]
        return method(*call.args, **call.kwargs)

    return wrapped


def change_arguments(method: str, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Makes Keras' models call a function with the arguments of a method; safe to call again.

    Errors of ours with which a graph fails leave the method as they are.

    Args:
        method: Such as ``fit``.
        name: A later function of the same name replaces an earlier one.
        change: Called with the arguments by name, which it may change.
    """
    owner = _owner(method)
    changes = f"{_ARGUMENTS}_{method}"
    if not hasattr(owner, changes):
        setattr(owner, method, _changed(getattr(owner, method), changes))
        setattr(owner, changes, {})
    getattr(owner, changes)[name] = change


def _changed(method: Callable[..., Any], changes: str) -> Any:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = signature.bind(self, *args, **kwargs)
        for change in getattr(self, changes).values():
            change(call.arguments)
        try:
            return method(*call.args, **call.kwargs)
        except tf.errors.OpError as error:
            own = _own_error(error)
            if own is None:
                raise
            raise own from None

    return wrapped


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
    for kind in (import_module(NODES).Node, tf.keras.layers.Layer):
        if hasattr(kind.__new__, _MARK):
            continue
        kind.__new__ = staticmethod(_tagging(kind.__new__, attribute, tag))


def _tagging(made: Any, attribute: str, tag: Callable[[], Any]) -> Any:
    @functools.wraps(made)
    def wrapped(kind: Any, *args: Any, **kwargs: Any) -> Any:
        one = made(kind) if made is object.__new__ else made(kind, *args, **kwargs)
        if tag() is not None:
            vars(one)[attribute] = tag()
        return one

    setattr(wrapped, _MARK, True)
    return wrapped


def divide_losses_where(divides: Callable[[], bool]) -> None:
    """Makes Keras ask before it divides a loss by the number of replicas; safe to call again.

    Args:
        divides: Whether the gradients of the current strategy's replicas are summed.
    """
    module: Any = import_module(LOSSES)
    for method in ("scale_loss_for_distribution", "unscale_loss_for_distribution"):
        known = getattr(module, method, None)
        if known is not None and not hasattr(known, _MARK):
            setattr(module, method, _asked(known, divides))


def _asked(method: Callable[[Any], Any], divides: Callable[[], bool]) -> Any:
    @functools.wraps(method)
    def wrapped(value: Any) -> Any:
        return method(value) if divides() else value

    setattr(wrapped, _MARK, True)
    return wrapped


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
