"""Methods of ``ai.onnx``, made from the schemas of the installed onnx."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx.defs import OpSchema

from popdist._version import __version__
from popdist_onnx.builder.attributes import Kind
from popdist_onnx.builder.methods import REQUIRED, Method, OperatorSet, Parameter, make
from popdist_onnx.errors import NotOnHostError, ValueRangeError
from popdist_onnx.graph.compat import OLDEST_OPSET, newest_opset
from popdist_onnx.lowering import DOMAIN, OPERATORS

# Names that are, or nearly are, words of C++ or Python.
_NAMES = {name: f"logical_{name.lower()}" for name in ("And", "If", "Not", "Or", "Xor")}

# Attributes that hold an element type as a number.
_DTYPES = frozenset({"to", "dtype", "output_datatype", "output_dtype"})

# Attributes that the published methods lack; they are taken by name.
_LATE = frozenset({"auto_pad"})

_KINDS = {
    OpSchema.AttrType.INT: Kind.INT,
    OpSchema.AttrType.FLOAT: Kind.FLOAT,
    OpSchema.AttrType.STRING: Kind.STRING,
    OpSchema.AttrType.INTS: Kind.INTS,
    OpSchema.AttrType.FLOATS: Kind.FLOATS,
    OpSchema.AttrType.STRINGS: Kind.STRINGS,
    OpSchema.AttrType.TENSOR: Kind.TENSOR,
    OpSchema.AttrType.GRAPH: Kind.GRAPH,
}
_LISTS = (Kind.INTS, Kind.FLOATS, Kind.STRINGS)


@cache
def ai_onnx(version: int) -> type[OperatorSet]:
    """The operators of a version of ``ai.onnx``.

    Raises:
        ValueRangeError: There is no such opset.
    """
    if not OLDEST_OPSET <= version <= newest_opset():
        raise ValueRangeError(
            "PD502",
            "ai.onnx has no such opset",
            value=version,
            accepted=f"{OLDEST_OPSET} to {newest_opset()}",
        )
    names = {
        schema.name
        for schema in onnx.defs.get_all_schemas_with_history()
        if not schema.domain and schema.since_version <= version
    }
    members: dict[str, Any] = {
        "domain": "ai.onnx",
        "version": version,
        "__doc__": f"The operators of ai.onnx opset {version}.",
    }
    for name in sorted(names):
        method = _method(onnx.defs.get_schema(name, version, ""), version)
        members[method.name] = make(method)
    return type(f"AiOnnxOpset{version}", (OperatorSet,), members)


def _method(schema: OpSchema, version: int) -> Method:
    parameters = [_parameter(one) for one in schema.attributes.values()]
    # Required ones first, then the published order, which is that of the alphabet.
    first = "value" if schema.name == "Constant" else ""
    parameters.sort(key=lambda one: (one.default is not REQUIRED, one.name != first, one.name))
    prepare = None
    if schema.name == "Split" and "num_outputs" in schema.attributes:
        # The attribute of opset 18 says what the published parameter says anyway.
        parameters = [one for one in parameters if one.name != "num_outputs"]
        parameters.append(
            Parameter("equal_parts", Kind.INT, None, attribute_name="num_outputs", hidden=True)
        )
        prepare = _split_in_equal_parts
    if schema.name.startswith("Reduce") and "axes" in schema.attributes:
        parameters = [replace(one, keep_empty=one.name == "axes") for one in parameters]
    if schema.name == "Constant" and "sparse_value" in schema.attributes:
        # The published method asks whether the array is dense: numpy's always are.
        parameters = [replace(one, late=one.name != "value") for one in parameters]
        parameters.insert(1, Parameter("is_value", Kind.FLAG, default=True))
        prepare = _forget_density
    if schema.name.startswith("Random"):
        prepare = _require_drawable
    if schema.deprecated:
        prepare = _refuse_deprecated(schema.name, version)
    least, most = schema.min_output, schema.max_output
    return Method(
        name=_NAMES.get(schema.name, schema.name.lower()),
        op_type=schema.name,
        domain="ai.onnx",
        version=version,
        inputs=(schema.min_input, schema.max_input),
        outputs=(least, most),
        parameters=tuple(parameters),
        summary=_summary(schema),
        prepare=prepare,
    )


def _parameter(declared: OpSchema.Attribute) -> Parameter:
    kind = _KINDS.get(declared.type, Kind.PROTO)
    if kind is Kind.INT and declared.name in _DTYPES:
        kind = Kind.DTYPE
    default: Any = REQUIRED
    if not declared.required:
        default = _default(declared, kind)
    return Parameter(declared.name, kind, default, late=declared.name in _LATE)


def _default(declared: OpSchema.Attribute, kind: Kind) -> Any:
    if declared.default_value.type != onnx.AttributeProto.UNDEFINED:
        value = onnx.helper.get_attribute_value(declared.default_value)
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, (list, tuple)):
            return [one.decode() if isinstance(one, bytes) else one for one in value]
        if isinstance(value, float):
            # As it was meant, not as single precision holds it: 1e-05, not 9.99999974e-06.
            return float(str(np.float32(value)))
        return value if isinstance(value, int) else None
    # The published methods leave reductions' axes out by None, other lists by an empty one.
    return [] if kind in _LISTS and declared.name != "axes" else None


def _summary(schema: OpSchema) -> str:
    text = re.sub(r"\s+", " ", (schema.doc or "").strip())
    sentence = re.split(r"(?<=[.:]) ", text, maxsplit=1)[0] if text else schema.name
    return f"{schema.name} (since opset {schema.since_version}). {sentence}"


def _split_in_equal_parts(inputs: list[Any], bound: dict[str, Any]) -> None:
    bound["equal_parts"] = bound["num_outputs"] if len(inputs) == 1 else None


def _require_drawable(inputs: list[Any], bound: dict[str, Any]) -> None:
    """Refuses what PopART refuses of random operators, in its words."""
    del inputs
    if bound["seed"] is not None:
        raise ValueRangeError(
            "PD502",
            "Optional seed attribute is not supported. Use session::setRandomSeed instead.",
            value=bound["seed"],
        )
    if bound["dtype"] == onnx.TensorProto.DOUBLE:
        raise ValueRangeError("PD502", "The data type DOUBLE is not supported in Poplar")


def _forget_density(inputs: list[Any], bound: dict[str, Any]) -> None:
    del inputs
    bound["is_value"] = None


_REGIONS_FROM = 11
"""The opset from which `Resize` takes regions before scales, and says how it counts positions."""


def _replacement(op_type: str, version: int) -> str:
    """The call that does what a deprecated operator did."""
    if op_type == "Scatter":
        return "use scatterelements([data, indices, updates], axis)"
    if version < _REGIONS_FROM:
        return "use resize([x, scales], mode)"
    return (
        "use resize([x, '', scales], coordinate_transformation_mode='asymmetric', "
        "nearest_mode='floor', mode=mode)"
    )


def _refuse_deprecated(op_type: str, version: int) -> Any:
    def refuse(inputs: list[Any], bound: dict[str, Any]) -> None:
        del inputs, bound
        raise NotOnHostError(
            "PD503",
            f"ONNX Runtime refuses {op_type}, which ai.onnx opset {version} deprecates",
            hint=f"{_replacement(op_type, version)}, or a Builder with an older opset",
        )

    return refuse


# `getSupportedOperations`: what a model may hold.


class OperatorIdentifier(NamedTuple):
    """One operator.

    Args:
        domain: Its domain.
        type: Its name.
        version: The opset that its definition is from.
    """

    domain: str
    type: str
    version: int


def getSupportedOperations(includeInternal: bool = False) -> list[OperatorIdentifier]:
    """The operators that a model may hold.

    Args:
        includeInternal: Whether those that only training adds are listed as well.

    Returns:
        All definitions of ``ai.onnx`` that the installed onnx knows and does not deprecate, and
        PopART's operators that a host can run.
    """
    found = [
        OperatorIdentifier("ai.onnx", schema.name, schema.since_version)
        for schema in onnx.defs.get_all_schemas_with_history()
        if not schema.domain and not schema.deprecated
    ]
    internal = ["GradCopyFromHost", "GradCopyToHost"] if includeInternal else []
    found += [OperatorIdentifier(DOMAIN, name, 1) for name in (*OPERATORS, *internal)]
    return sorted(found)


class OpOperand(NamedTuple):
    """An input or output of an operator.

    Attributes:
        name: Its name.
        supportedTensors: The element types that it may have.
    """

    name: str
    supportedTensors: tuple[str, ...]


class OpAttribute(NamedTuple):
    """An attribute of an operator.

    Attributes:
        supportedValuesRegex: A pattern of the values that are taken: any that ONNX's text allows.
    """

    supportedValuesRegex: str = ".*"


class OpDefinition(NamedTuple):
    """What an operator takes and makes.

    Attributes:
        inputs: Its inputs. Operators of ``ai.graphcore`` name none: their lowering decides.
        outputs: Its outputs.
        attributes: Its attributes by name.
    """

    inputs: list[OpOperand]
    outputs: list[OpOperand]
    attributes: dict[str, OpAttribute]


def getSupportedOperationsDefinition(
    includeInternal: bool = False,
) -> dict[OperatorIdentifier, OpDefinition]:
    """The operators that a model may hold, with what each takes and makes.

    Args:
        includeInternal: Whether those that only training adds are listed as well.

    Returns:
        The definition of each operator of `getSupportedOperations`.
    """
    from popdist_onnx.builder.graphcore_methods import METHODS

    own = {one.op_type: tuple(each.attribute for each in one.parameters) for one in METHODS}
    found = {}
    for one in getSupportedOperations(includeInternal):
        if one.domain == DOMAIN:
            found[one] = OpDefinition([], [], dict.fromkeys(own.get(one.type, ()), OpAttribute()))
            continue
        schema = onnx.defs.get_schema(one.type, one.version, "")
        found[one] = OpDefinition(
            [OpOperand(each.name, tuple(sorted(each.types))) for each in schema.inputs],
            [OpOperand(each.name, tuple(sorted(each.types))) for each in schema.outputs],
            dict.fromkeys(sorted(schema.attributes), OpAttribute()),
        )
    return found


# What is installed.


def versionString() -> str:
    """The version of the installed popdist.

    Returns:
        The version as in ``popdist.__version__``.
    """
    return __version__


def versionNumber() -> tuple[int, int, int]:
    """The version of the installed popdist, as numbers.

    Returns:
        Major, minor and patch version.
    """
    major, minor, patch = re.findall(r"\d+", __version__)[:3]
    return int(major), int(minor), int(patch)


@cache
def packageHash() -> str:
    """A digest of this package's source files, by which a program tells two installations apart."""
    root = Path(__file__).parents[1]
    content = sha256()
    for path in sorted(root.rglob("*.py")):
        content.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return content.hexdigest()
