"""Methods of operator sets: each is declared as data, and made into a function with a signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from popdist.nearest import did_you_mean
from popdist_onnx.builder.attributes import Kind, attribute
from popdist_onnx.errors import ArgumentError, OptionError, ValueRangeError

if TYPE_CHECKING:
    import onnx_ir as ir

    from popdist_onnx.builder.graph_writer import GraphWriter

REQUIRED = inspect.Parameter.empty
"""Default of parameters without one."""

# Published names that are older, or that Python keeps for itself.
_OTHER_NAMES = {"debugPrefix": "debugContext", "lambda": "lambda_"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of an operator's method.

    Args:
        name: Its name.
        kind: What it takes.
        default: What it is without an argument; None and empty lists leave the attribute out.
        attribute_name: The node's attribute, where it is called differently.
        late: Whether it is given by name only, because the published method lacks it.
        hidden: Whether only `Method.prepare` gives it.
        keep_empty: Whether an empty list is written, because it says something else than None.
    """

    name: str
    kind: Kind
    default: Any = REQUIRED
    attribute_name: str | None = None
    late: bool = False
    hidden: bool = False
    keep_empty: bool = False

    @property
    def attribute(self) -> str:
        """The node's attribute."""
        return self.attribute_name or self.name


@dataclass(frozen=True)
class Method:
    """An operator as a method of an operator set.

    Args:
        name: The method's name.
        op_type: The operator.
        domain: Its domain.
        version: The operator set's version.
        inputs: The least and the greatest number of inputs.
        outputs: The least and the greatest number of outputs.
        parameters: What becomes attributes, in the order of the signature.
        summary: What the operator does.
        prepare: Changes the arguments (inputs, attributes by name) before a node is made of them.
        outputs_follow: Whether `prepare` says how many outputs there are.
        takes_id: Whether a single id may stand for the list of them.
    """

    name: str
    op_type: str
    domain: str
    version: int
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    parameters: tuple[Parameter, ...]
    summary: str
    prepare: Callable[[list[Any], dict[str, Any]], None] | None = None
    outputs_follow: bool = False
    takes_id: bool = False

    @property
    def counts_outputs(self) -> bool:
        """Whether the program says how many outputs it wants."""
        return self.outputs[0] != self.outputs[1] and not self.outputs_follow

    def signature(self) -> inspect.Signature:
        """The method's signature, with self."""
        by_place = inspect.Parameter.POSITIONAL_OR_KEYWORD
        by_name = inspect.Parameter.KEYWORD_ONLY

        def parameter(name: str, kind: Any, default: Any = REQUIRED) -> inspect.Parameter:
            return inspect.Parameter(name, kind, default=default)

        shown = [one for one in self.parameters if not one.hidden]
        early = [one for one in shown if not one.late]
        names = [parameter("self", by_place)]
        if self.inputs[1]:
            names.append(parameter("args", by_place, REQUIRED if self.inputs[0] else ()))
        if self.counts_outputs:
            names.append(parameter("num_outputs", by_place))
        names += [parameter(one.name, by_place, one.default) for one in early]
        # A default before a parameter without one can only be that of args.
        if self.inputs[1] and not self.inputs[0]:
            needed = any(one.default is REQUIRED for one in names[2:])
            if needed:
                names[1] = names[1].replace(default=REQUIRED)
        names.append(parameter("debugContext", by_place, ""))
        late = [one for one in shown if one.late]
        names += [parameter(one.name, by_name, one.default) for one in late]
        return inspect.Signature(names)

    def documentation(self) -> str:
        """The method's docstring."""
        lines = [self.summary, "", "Args:"]
        if self.inputs[1]:
            least, most = self.inputs
            many = f"{least}" if least == most else f"{least} to {most}"
            lines.append(f"    args: Ids of {_at_most(many, most)} tensors.")
        if self.counts_outputs:
            lines.append("    num_outputs: How many outputs the node has.")
        shown = [one for one in self.parameters if not one.hidden]
        lines += [f"    {one.name}: {one.kind.value.strip()}." for one in shown]
        lines += [
            "    debugContext: A name for the outputs.",
            "",
            "Returns:",
            "    A list of ids." if self.outputs != (1, 1) else "    The output's id.",
        ]
        return "\n".join(lines)


def _at_most(many: str, most: int) -> str:
    return many.split(" to ", maxsplit=1)[0] + " or more" if most > _MANY else many


_MANY = 1 << 20


def make(method: Method) -> Callable[..., Any]:
    """A function for a class of operators.

    Args:
        method: What it does.

    Returns:
        The function; its signature and help are those of the declaration.
    """
    signature = method.signature()

    def call(self: OperatorSet, *arguments: Any, **named: Any) -> Any:
        named = {_OTHER_NAMES.get(name, name): value for name, value in named.items()}
        bound = _bound(method, signature, (self, *arguments), named)
        return self._emit(method, bound)

    call.__name__ = call.__qualname__ = method.name
    call.__doc__ = method.documentation()
    call.__signature__ = signature  # type: ignore[attr-defined]  # inspect looks for it
    return call


def _bound(
    method: Method, signature: inspect.Signature, arguments: tuple[Any, ...], named: dict[str, Any]
) -> dict[str, Any]:
    for name in named:
        if name not in signature.parameters:
            known = [one for one in signature.parameters if one != "self"]
            near = did_you_mean(name, known, cutoff=0.5)
            raise _incompatible(method, signature, f"there is no argument {name}", near)
    try:
        bound = signature.bind(*arguments, **named)
    except TypeError as error:
        raise _incompatible(method, signature, str(error)) from None
    bound.apply_defaults()
    return dict(bound.arguments)


def _incompatible(
    method: Method, signature: inspect.Signature, reason: str, near: str | None = None
) -> ArgumentError:
    shown = f"{method.name}{signature}".replace("(self, ", "(")
    return ArgumentError(
        "PD501",
        f"{method.name}(): incompatible function arguments. The following argument types are "
        f"supported: {shown}",
        hint=f"{reason}; {near}" if near else reason,
    )


class OperatorSet:
    """The operators of one version of a domain, as methods that return ids.

    Args:
        writer: Where the nodes go.
    """

    domain: str
    version: int

    def __init__(self, writer: GraphWriter) -> None:
        self._writer = writer

    def __getattr__(self, name: str) -> Any:
        # Called for missing attributes only.
        if name.startswith("_"):
            raise AttributeError(name)
        raise OptionError(
            "PD501",
            f"{self.domain} opset {self.version} has no operator {name}",
            hint=did_you_mean(name, operators(type(self)), cutoff=0.5),
        )

    def __str__(self) -> str:
        return type(self).__name__.replace("Opset", "")

    def __dir__(self) -> list[str]:
        return operators(type(self))

    def _emit(self, method: Method, bound: dict[str, Any]) -> Any:
        inputs = _ids(method, bound.get("args", ()))
        if method.prepare is not None:
            method.prepare(inputs, bound)
        _require_count(method, "inputs", len(inputs), method.inputs)
        outputs = bound.get("num_outputs", method.outputs[0])
        _require_count(method, "outputs", outputs, method.outputs)
        attributes: list[ir.Attr] = []
        for parameter in method.parameters:
            value = bound[parameter.name]
            empty = isinstance(value, (list, tuple)) and not value
            if value is None or (empty and not parameter.keep_empty):
                continue
            # As published, so that a program may add the attribute afterwards.
            may_follow = method.domain == "ai.onnx" and parameter.name != "group"
            may_follow = (parameter.late or may_follow) and not isinstance(value, np.ndarray)
            if may_follow and value == parameter.default:
                continue
            what = (
                f"{method.name}(): incompatible function arguments. The following argument types "
                f"are supported: {{}} for {parameter.name}"
            )
            attributes.append(attribute(parameter.kind, parameter.attribute, value, what))
        self._writer.use_opset(method.domain, method.version)
        ids = self._writer.add_node(
            method.domain, method.op_type, inputs, attributes, outputs, bound["debugContext"]
        )
        return ids[0] if method.outputs == (1, 1) else ids


def operators(operator_set: type[OperatorSet]) -> list[str]:
    """The methods of an operator set."""
    return sorted(
        name
        for name in vars(operator_set)
        if not name.startswith("_") and name not in ("domain", "version")
    )


def _ids(method: Method, given: Any) -> list[str]:
    if isinstance(given, str) and method.takes_id:
        return [given]
    if isinstance(given, str) or not isinstance(given, Sequence):
        near = f"write [{given!r}]" if isinstance(given, str) else None
        reason = f"args is a list of ids, not {given!r}"
        raise _incompatible(method, method.signature(), reason, near)
    return list(given)


def _require_count(method: Method, what: str, seen: Any, allowed: tuple[int, int]) -> None:
    least, most = allowed
    if isinstance(seen, int) and least <= seen <= most:
        return
    if least == most:
        accepted = f"{least}"
    elif most > _MANY:
        accepted = f"{least} or more"
    else:
        accepted = f"{least} to {most}"
    raise ValueRangeError(
        "PD500",
        f"{method.op_type} has invalid number of {what}: it was given {seen}, and takes {accepted}",
    )
