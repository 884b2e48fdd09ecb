"""Loads models from a file, bytes or a proto into the form for passes, and saves them."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import onnx
import onnx_ir as ir
import onnx_ir.passes.common
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.compat import (
    OLDEST_OPSET,
    WORKING_OPSET,
    clone,
    newest_opset,
    subgraphs,
)
from popdist_onnx.graph.conform import conform
from popdist_onnx.graph.expand import expand, split_slices
from popdist_onnx.graph.exporters import Untie
from popdist_onnx.graph.fold import fold
from popdist_onnx.graph.inference import annotate_graph, annotate_value
from popdist_onnx.graph.large_files import resolve_external_data
from popdist_onnx.graph.names import OPSET
from popdist_onnx.graph.operands import require_inferred, require_operands, require_steps
from popdist_onnx.graph.passes import Pass, Sequential, require_sound, skeleton, sound
from popdist_onnx.graph.stored_tensors import densified, require_stored

if TYPE_CHECKING:
    from typing_extensions import Self


Source: TypeAlias = "ir.Model | onnx.ModelProto | bytes | str | PathLike[str]"

# Larger tensors are weights; shape inference copies a model several times.
_SMALL = 1024

# ONNX Runtime has no CPU kernels for these operators, but for the nodes of their functions.
_WITHOUT_KERNEL = ("Swish",)

_OF_RUNTIME = "com.microsoft"


_UNREADABLE = (
    "Failed to load a ModelProto from the string '{}'.\nCheck that it is either a valid path to an "
    "existing onnx model file, or is a valid onnx ModelProto string."
)


class BuiltModel(bytes):
    """A serialized model of a builder of this process, whose tensors may lie in a file.

    Attributes:
        folder: The folder of that file.
    """

    folder: Path

    def __new__(cls, content: bytes, folder: Path) -> Self:
        """The content, with its folder."""
        made = super().__new__(cls, content)
        made.folder = folder
        return made


def load(source: Source) -> ir.Model:
    """Reads a model into the form that passes work on.

    Afterwards the graph is sorted, has no functions, uses opset 18 or newer (the oldest that says
    the same: ONNX Runtime knows the newest ones later than onnx), its shapes are inferred, what
    depends on shapes only is folded to constants, and initializers are not inputs. Names of values
    stay.

    Args:
        source: A file's path, a serialized model, a proto, or a model in memory (left as it is).

    Returns:
        The model.

    Raises:
        popart_exception: There is no such file, it holds no model, or its opset is out of range.
        ValueRangeError: The operands of a node do not fit each other.
    """
    stored = _stored(source)
    with sound(stored):
        return _loaded(_readable(stored))


def _loaded(model: ir.Model) -> ir.Model:
    opset = _require_opset(model)
    model.graph.meta[OPSET] = opset
    for node in model.graph.all_nodes():
        require_steps(node)
    _annotate_dynamic(model)
    _drop_initializer_inputs(model.graph)
    annotate_graph(model.graph, opset)
    require_operands(model.graph, opset)
    _dissolve(model.graph, opset)
    if opset < WORKING_OPSET:
        from popdist_onnx.graph.opset_upgrades import upgrade

        upgrade(model)
    else:
        model.graph.opset_imports[""] = _least_opset(model.graph, opset)
        expand(model.graph, [node for node in model.graph if node.op_type in _WITHOUT_KERNEL])
        fold(model)
    if any(node.domain == _OF_RUNTIME for node in model.graph.all_nodes()):
        from popdist_onnx.graph.runtime_operators import write_out

        write_out(model.graph, model.graph.opset_imports[""])
    # Lengths and positions that only folding finds.
    while _dissolve(model.graph, model.graph.opset_imports[""]):
        fold(model)
    split_slices(model.graph, model.graph.opset_imports[""])
    _conform(model)
    require_inferred(model.graph)
    require_sound(model, "load")
    return model


def _dissolve(graph: ir.Graph, opset: int) -> bool:
    """Makes readers of sequences and optional values read tensors; false where there are none."""
    names = {node.op_type for node in graph.all_nodes() if not node.domain}
    if not any("Sequence" in name or name.startswith("Optional") for name in names):
        return False
    from popdist_onnx.graph.sequences import dissolve

    return dissolve(graph, opset)


def _conform(model: ir.Model) -> None:
    """Rewrites nodes, and infers what only the formula of an `Attention` tells of shapes behind."""
    before = _count(model, "Attention")
    conform(model)
    while (left := _count(model, "Attention")) < before:
        before = left
        fold(model)
        if left:
            conform(model)


def _count(model: ir.Model, op_type: str) -> int:
    return sum(node.op_type == op_type for node in model.graph.all_nodes())


def read(source: Source) -> ir.Model:
    """Reads a model as it is; shared weights of equal content become separate weights.

    Local functions are inlined.

    Weights of loops and branches become weights of the main graph, where training finds them.

    Large weights in a file of their own stay there; see `popdist_onnx.graph.large_files`.

    Args:
        source: A file's path, a serialized model, a proto, or a model in memory (left as it is).

    Returns:
        A model of its own, which shares its weights with an `onnx_ir.Model` that was given.

    Raises:
        popart_exception: There is no such file, or it holds no model.
    """
    stored = _stored(source)
    with sound(stored):
        return _readable(stored)


def _stored(source: Source) -> ir.Model | onnx.ModelProto:
    """The model or the message of a source, after the checks of its file."""
    if not isinstance(source, ir.Model | onnx.ModelProto | bytes | str | PathLike):
        raise popart_exception(
            "PD520",
            "this is not a model of ONNX",
            value=type(source).__name__,
            accepted="the path of an .onnx file, its bytes, or a ModelProto",
            hint="popdist_onnx.from_torch(module, example_inputs) makes a model of a torch module"
            if hasattr(source, "state_dict")
            else None,
        )
    if isinstance(source, ir.Model):
        return source
    if isinstance(source, onnx.ModelProto):
        require_stored(source, Path.cwd(), own=True)
        _require_tensors(source)
        own = onnx.ModelProto()
        own.CopyFrom(source)  # the program may change its own later
        return own
    try:
        if isinstance(source, bytes):
            proto = onnx.load_from_string(source)
            folder = source.folder if isinstance(source, BuiltModel) else Path.cwd()
            require_stored(proto, folder)
            if isinstance(source, BuiltModel):
                resolve_external_data(proto, folder)
        else:
            proto = onnx.load(Path(source), load_external_data=False)
            folder = Path(source).absolute().parent
            require_stored(proto, folder)
            resolve_external_data(proto, folder)
    except FileNotFoundError as missing:
        raise popart_exception(
            "PD520",
            _UNREADABLE.format(missing.filename or source),
            value="there is no such file",
            hint="give the path of an .onnx file, or the bytes of builder.getModelProto()",
        ) from None
    except (DecodeError, OSError, onnx.checker.ValidationError) as broken:
        raise popart_exception(
            "PD520",
            _UNREADABLE.format("bytes" if isinstance(source, bytes) else source),
            value=str(broken),
            accepted="an ONNX model (a serialized ModelProto)",
        ) from None
    if not proto.opset_import or not proto.HasField("graph"):
        raise popart_exception(
            "PD520",
            "this is not an ONNX model: it has no graph or no opset",
            value="bytes" if isinstance(source, bytes) else str(source),
            accepted="an ONNX model (a serialized ModelProto)",
        )
    _require_tensors(proto)
    return proto


def _readable(stored: ir.Model | onnx.ModelProto) -> ir.Model:
    """A model in the form for passes, after those that say the same in fewer ways."""
    model = clone(stored) if isinstance(stored, ir.Model) else ir.from_proto(densified(stored))
    model.graph.sort()
    lifting = []
    nodes = (node for graph in (model.graph, *model.functions.values()) for node in graph)
    if any(True for node in nodes for _ in subgraphs(node)):
        from popdist_onnx.graph.nested_weights import LiftWeights

        lifting = [LiftWeights()]
    Sequential(StateOpset(), Inline(), *lifting, Untie())(model)
    return model


class StateOpset(Pass):
    """States an opset of ``ai.onnx``, which files of other domains only leave open."""

    def change(self, model: ir.Model) -> bool:
        """Adds it; false where it is stated or nodes need it to be."""
        imports = model.opset_imports
        stated = {domain: version for domain, version in imports.items() if version}
        own = any(not node.domain for node in model.graph)
        if own or not stated or not stated.keys().isdisjoint({"", "ai.onnx"}):
            return False
        imports.clear()
        imports.update(stated | {"": WORKING_OPSET})
        return True


class Inline(Pass):
    """Writes the nodes of local functions where the functions are called.

    onnx-ir's pass is used, as the inliner of onnx 1.18 ignores default values of attributes.
    """

    def change(self, model: ir.Model) -> bool:
        """Replaces the calls; false where there are no functions.

        Raises:
            popart_exception: A function cannot be inlined.
        """
        if not model.functions:
            return False
        try:
            ir.passes.common.InlinePass()(model)
        except ValueError as error:
            raise popart_exception(
                "PD520",
                f"a local function of the model cannot be inlined: {error}",
                accepted="functions of the model's own opsets, without graphs as attributes",
                hint="export the model without functions, or inline them with onnx.inliner",
            ) from None
        return True


def _require_tensors(proto: onnx.ModelProto) -> None:
    """Refuses dictionaries, which the form for passes does not have."""
    for value in proto.graph.input:
        if _holds_maps(value.type):
            raise popart_exception(
                "PD573",
                f"input {value.name} is not a tensor",
                value=value.type.WhichOneof("value"),
                accepted="inputs that are tensors",
                hint="give the model an input for each key of the dictionary",
            )
    maps = [value.name for value in proto.graph.output if _holds_maps(value.type)]
    if maps:
        raise popart_exception(
            "PD520",
            "an output of the model holds dictionaries instead of tensors",
            value=maps,
            accepted="outputs that are tensors",
            hint='of scikit-learn: skl2onnx.to_onnx(model, X[:1], options={"zipmap": False})',
        )


def _holds_maps(kind: onnx.TypeProto) -> bool:
    if kind.HasField("sequence_type"):
        return _holds_maps(kind.sequence_type.elem_type)
    return bool(kind.HasField("map_type"))


def save(model: ir.Model, path: str | PathLike[str] | None = None) -> onnx.ModelProto:
    """Turns a model into a proto, and writes it where a path is given.

    Args:
        model: The model.
        path: The file to write; None writes none.

    Returns:
        The proto.
    """
    proto: onnx.ModelProto = ir.to_proto(model)
    if path is not None:
        onnx.save(proto, Path(path))
    return proto


def _require_opset(model: ir.Model) -> int:
    imports = model.opset_imports
    version = next((imports[name] for name in imports if name in ("", "ai.onnx")), 0)
    if 0 < version < OLDEST_OPSET and _means_the_same(model.graph, version):
        return OLDEST_OPSET
    if not OLDEST_OPSET <= version <= newest_opset():
        raise popart_exception(
            "PD521",
            "the model's ai.onnx opset is not supported",
            value=version,
            accepted=f"{OLDEST_OPSET} to {newest_opset()} (with the installed onnx)",
            hint="export the model again with another opset, or install a newer onnx",
        )
    return version


def _means_the_same(graph: ir.Graph, opset: int) -> bool:
    """Whether all operators of a graph have kept their definition until the oldest opset read."""
    return all(
        onnx.defs.has(node.op_type, opset, "")
        and onnx.defs.get_schema(node.op_type, OLDEST_OPSET, "").since_version <= opset
        for node in graph.all_nodes()
        if not node.domain
    )


def _least_opset(graph: ir.Graph, opset: int) -> int:
    """The oldest opset, from the working one on, in which all nodes have the same definition."""
    since = [
        int(onnx.defs.get_schema(node.op_type, opset, "").since_version)
        for node in graph.all_nodes()
        if node.domain == "" and onnx.defs.has(node.op_type, opset, "")
    ]
    return max([WORKING_OPSET, *since])


def _annotate_dynamic(model: ir.Model) -> None:
    """Sets shapes that onnx infers for computed shapes, for example with a free batch."""
    try:
        inferred = onnx.shape_inference.infer_shapes(skeleton(model, _SMALL), data_prop=True).graph
    except onnx.shape_inference.InferenceError as invalid:
        raise popart_exception(
            "PD520",
            f"the model is not valid: {invalid}",
            accepted="a model that onnx.checker.check_model accepts",
        ) from None
    known = {one.name: one.type for one in [*inferred.value_info, *inferred.output]}
    for node in model.graph:
        for value in node.outputs:
            if value.name in known:
                annotate_value(value, known[value.name])


def _drop_initializer_inputs(graph: ir.Graph) -> None:
    for value in [one for one in graph.inputs if one.name in graph.initializers]:
        graph.inputs.remove(value)
