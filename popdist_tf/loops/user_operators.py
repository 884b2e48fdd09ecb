"""`ipu.custom_ops`: operators in libraries that are compiled for an IPU, as functions of a host.

An IPU's operator is a shared library and the name of a function in it. Here each is a Python
function, which the user registers by the name of the library's file and that of the function. The
program is not changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow.compat.v2 as tf

from popdist import host_functions
from popdist.nearest import did_you_mean
from popdist_tf.errors import OperatorError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    Function = Callable[["Call"], Any]


class Call(NamedTuple):
    """A call of an operator.

    Attributes:
        inputs: Its tensors.
        attributes: Its attributes, a text; None where the program gives none.
        output_types: The types of its results.
        output_shapes: Their shapes.
    """

    inputs: Sequence[Any]
    attributes: str | None
    output_types: Sequence[Any]
    output_shapes: Sequence[Any]


class Registry:
    """Host functions by the name of a library and that of an operator in it."""

    def __init__(self) -> None:
        self._functions: dict[tuple[str, str], Function] = {}
        self._is_loaded = False

    def add(self, function: Function, library: str, op_name: str) -> None:
        """Registers a function; it replaces an earlier one of the same names."""
        self._functions[Path(library).stem, op_name] = function

    def find(self, library: str, op_name: str) -> Function:
        """The function of an operator.

        Raises:
            OperatorError: There is none, or the variable names a file that cannot be imported.
        """
        unread = [] if self._is_loaded else host_functions.sources()
        self._is_loaded = True
        for source in unread:
            _load(source)
        stem = Path(library).stem
        if (stem, op_name) in self._functions:
            return self._functions[stem, op_name]
        known = sorted(map(".".join, self._functions))
        raise OperatorError(
            "PD438",
            "this operator is compiled IPU code, which a host does not have, and no host function "
            "is registered for it",
            value=f"{op_name} of {library}",
            accepted=", ".join(known) or "an operator with a host function",
            hint=did_you_mean(f"{stem}.{op_name}", known, shown="{}")
            or f"compute it with TensorFlow in a file, @ipu.custom_ops.host_op({stem!r}, "
            f"{op_name!r}) on a function of one argument, and name the file in "
            f"{host_functions.VARIABLE}",
        )


def _load(source: str) -> None:
    try:
        host_functions.load(source)
    except Exception as error:
        raise OperatorError(
            "PD438",
            f"{host_functions.VARIABLE} names something that cannot be imported",
            value=source,
            accepted="Python files and modules, separated by colons",
            hint=f"{type(error).__name__}: {error}",
        ) from error


REGISTRY = Registry()


def host_op(library: str, op_name: str = "Build") -> Callable[[Function], Function]:
    """Registers a function that computes a compiled operator on a host.

    The function gets one argument with ``inputs``, ``attributes``, ``output_types`` and
    ``output_shapes``, and returns a tensor or a sequence of tensors. Gradients flow through the
    operations that it calls; `tf.custom_gradient` gives it others.

    Args:
        library: The file of the library, or its name without folder and suffix.
        op_name: The operator's name in it.

    Returns:
        A decorator, which returns the function.
    """

    def register(function: Function) -> Function:
        REGISTRY.add(function, library, op_name)
        return function

    return register


def precompiled_user_op(
    inputs: Sequence[Any],
    library_path: str,
    gp_path: str = "",
    outs: Mapping[str, Sequence[Any]] | None = None,
    name: str = "UserOp",
    op_name: str = "Build",
    separate_gradients: bool = False,
    inputs_with_gradients: Iterable[int] | None = None,
    attributes: str | None = None,
    gradient_attributes: str | None = None,
) -> list[Any]:
    """Computes an operator of a library by the host function that is registered for it.

    Args:
        inputs: Its tensors.
        library_path: The library, which is not read.
        gp_path: Accepted as published, without effect on a host.
        outs: ``output_types`` and ``output_shapes``; None for no results.
        name: Of the operation.
        op_name: Of the function in the library.
        separate_gradients: Accepted as published, without effect on a host.
        inputs_with_gradients: The numbers of the inputs that have gradients; None for all.
        attributes: A text for the function.
        gradient_attributes: Accepted as published, without effect on a host.

    Returns:
        The results, a list.

    Raises:
        ValueError: Attributes are not a text.
        OperatorError: No function is registered, or its results are not those of ``outs``.
    """
    del gp_path, separate_gradients
    for label, given in ("attributes", attributes), ("gradient_attributes", gradient_attributes):
        if given and not isinstance(given, str):
            raise ValueError(f"Expected {label} to be a 'str' type, but was {type(given)}.")
    function = REGISTRY.find(library_path, op_name)
    types = list((outs or {}).get("output_types", ()))
    shapes = list((outs or {}).get("output_shapes", ()))
    with tf.name_scope(name):
        held = [tf.convert_to_tensor(one) for one in inputs]
        if inputs_with_gradients is not None:
            kept = set(inputs_with_gradients)
            held = [one if i in kept else tf.stop_gradient(one) for i, one in enumerate(held)]
        results = function(Call(held, attributes, types, shapes))
        listed = [] if results is None else results
        listed = list(listed) if isinstance(listed, (list, tuple)) else [listed]
        made = [tf.convert_to_tensor(one) for one in listed]
    fit = len(made) == len(types) and all(
        one.dtype == kind and one.shape.is_compatible_with(shape)
        for one, kind, shape in zip(made, types, shapes, strict=True)
    )
    if not fit:
        raise OperatorError(
            "PD438",
            "a host function returns other tensors than the program asks for",
            value=[f"{one.dtype.name}{one.shape}" for one in made],
            accepted=", ".join(
                f"{tf.as_dtype(kind).name}{tf.TensorShape(shape)}"
                for kind, shape in zip(types, shapes, strict=True)
            ),
        )
    return made


def cpu_user_operation(
    inputs: Sequence[Any],
    library_path: str,
    outs: Mapping[str, Sequence[Any]] | None = None,
    name: str = "UserOp",
    op_name: str = "Callback",
    separate_gradients: bool = False,
    inputs_with_gradients: Iterable[int] | None = None,
    attributes: str | None = None,
    gradient_attributes: str | None = None,
) -> list[Any]:
    """Computes a library's function of the host, as `precompiled_user_op` computes an IPU's.

    Args:
        inputs: Its tensors.
        library_path: The library, which is not read.
        outs: ``output_types`` and ``output_shapes``; None for no results.
        name: Of the operation.
        op_name: Of the function in the library.
        separate_gradients: Accepted as published, without effect on a host.
        inputs_with_gradients: The numbers of the inputs that have gradients; None for all.
        attributes: A text for the function.
        gradient_attributes: Accepted as published, without effect on a host.

    Returns:
        The results, a list.
    """
    return precompiled_user_op(
        inputs,
        library_path,
        outs=outs,
        name=name,
        op_name=op_name,
        separate_gradients=separate_gradients,
        inputs_with_gradients=inputs_with_gradients,
        attributes=attributes,
        gradient_attributes=gradient_attributes,
    )
