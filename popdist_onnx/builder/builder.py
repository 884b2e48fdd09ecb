"""`Builder`: writes an ONNX model operator by operator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import onnx

from popdist_onnx.builder import annotations as key
from popdist_onnx.builder.attributes import plain_attribute
from popdist_onnx.builder.graph_writer import DEFAULT_OPSETS, GraphWriter
from popdist_onnx.builder.graphcore_methods import FROM_PARENT, ai_graphcore
from popdist_onnx.builder.model_file import (
    as_tensor,
    external_folder,
    infer_all,
    model_proto,
    move_initializers,
)
from popdist_onnx.builder.naming import debug_name, require_unreserved
from popdist_onnx.builder.node_notes import NodeNotes
from popdist_onnx.builder.onnx_methods import ai_onnx
from popdist_onnx.errors import ArgumentError, OptionError, ValueRangeError
from popdist_onnx.graph.compat import OLDEST_OPSET, newest_opset
from popdist_onnx.graph.load import BuiltModel, read
from popdist_onnx.graph.values import static
from popdist_onnx.types.tensor_info import DataType, InputSettings, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager
    from os import PathLike

    import onnx_ir as ir

    from popdist_onnx.builder.methods import OperatorSet


_OPSET = re.compile(r"aiOnnxOpset(\d+)")


T = TypeVar("T")


def _of_type(made: Callable[[Any], T], kind: type, *, many: bool = False) -> Callable[..., T]:
    """A published method that returns an attribute of a type, or a list of that type."""

    def read(self: Builder, name: str, nodeOutputNames: Iterable[str]) -> T:
        return made(self._notes.typed(name, nodeOutputNames, kind, many=many))

    read.__doc__ = f"""An attribute of the type {kind.__name__}{" in a list" if many else ""}.

    Args:
        name: The attribute.
        nodeOutputNames: Outputs of the node.

    Returns:
        Its value.

    Raises:
        ValueRangeError: There is no such node or attribute, or it holds something else.
    """
    return read


class Builder:
    """Writes an ONNX model operator by operator.

    ``builder.aiOnnx.add([a, b])`` appends a node and returns its output's id; ``aiOnnxOpset11``
    and so on are other versions, ``aiGraphcore`` PopART's own operators.

    Args:
        modelProtoOrFilename: A model to continue, serialized or a file.
        opsets: Versions by domain; without, ``ai.onnx`` 10 and ``ai.graphcore`` 1, or what is used
            first.
        builderCore: The builder around a sub-graph; see `createSubgraphBuilder`.
    """

    def __init__(
        self,
        modelProtoOrFilename: bytes | str | PathLike[str] | None = None,
        opsets: Mapping[str, int] | None = None,
        builderCore: Builder | None = None,
    ) -> None:
        if not isinstance(opsets, Mapping | None):
            raise ArgumentError(
                "PD501",
                "opsets are versions by domain",
                value=opsets,
                accepted='a dict such as {"ai.onnx": 11}',
            )
        around = None if builderCore is None else builderCore._writer  # noqa: SLF001 - same class
        self._writer: GraphWriter = GraphWriter(around, opsets)
        self._notes = NodeNotes(self._writer)
        for domain in opsets or {}:
            if domain not in DEFAULT_OPSETS:
                raise ValueRangeError(
                    "PD502", "not a domain", value=domain, accepted=", ".join(DEFAULT_OPSETS)
                )
        if "ai.onnx" in self._writer.opsets:
            ai_onnx(self._writer.opsets["ai.onnx"])
        if modelProtoOrFilename is not None:
            self._take(modelProtoOrFilename)

    def _take(self, source: bytes | str | PathLike[str]) -> None:
        model = read(source)
        for domain, version in model.opset_imports.items():
            self._writer.use_opset(domain or "ai.onnx", version)
        self._writer.metadata.update(model.metadata_props)
        self._writer.continue_graph(model.graph)

    @property
    def graph(self) -> ir.Graph:
        """The graph under construction."""
        return self._writer.graph

    @property
    def aiOnnx(self) -> OperatorSet:
        """The operators of the version of ``ai.onnx`` in use."""
        return ai_onnx(self._writer.onnx_opset)(self._writer)

    @property
    def aiGraphcore(self) -> OperatorSet:
        """PopART's own operators."""
        return ai_graphcore()(self._writer)

    @property
    def aiGraphcoreOpset1(self) -> OperatorSet:
        """PopART's own operators."""
        return self.aiGraphcore

    def __dir__(self) -> list[str]:
        versions = range(OLDEST_OPSET, newest_opset() + 1)
        return [*super().__dir__(), *(f"aiOnnxOpset{version}" for version in versions)]

    def __getattr__(self, name: str) -> Any:
        # Called for missing attributes only.
        if match := _OPSET.fullmatch(name):
            version = int(match[1])
            operators = ai_onnx(version)
            if self._writer.opsets.get("ai.onnx", version) != version:
                self._writer.use_opset("ai.onnx", version)
            return operators(self._writer)
        raise OptionError("PD501", f"Builder has no attribute {name}")

    def addInputTensor(self, *arguments: Any, debugContext: object = "", **old: object) -> str:
        """Adds an input that a program feeds.

        Args:
            *arguments: A `TensorInfo`, or an element type and a shape; then perhaps
                `InputSettings`, and a name.
            debugContext: Its name; ``input`` without one.
            **old: ``debugPrefix``, an older name of ``debugContext``.

        Returns:
            Its id.

        Raises:
            ArgumentError: The arguments are neither of these.
        """
        info, rest = _input_info(arguments)
        # Settings have been checked when they were made, and change nothing here.
        rest = tuple(one for one in rest if not isinstance(one, InputSettings))
        name = _input_name("addInputTensor", rest, debugContext, old) or "input"
        return str(self._writer.add_input(name, info).name)

    def addUntypedInputTensor(self, debugContext: object = "") -> str:
        """Adds an input of a sub-graph, whose type and shape the caller decides.

        Args:
            debugContext: Its name.

        Returns:
            Its id.

        Raises:
            ValueRangeError: This is not a sub-graph.
        """
        if self._writer.parent is None:
            raise ValueRangeError(
                "PD504",
                "Can not add untyped tensors to the top-level graph.",
                hint="addInputTensor(TensorInfo(...)), or createSubgraphBuilder()",
            )
        return str(self._writer.add_input(debug_name(debugContext) or "input", None).name)

    def addInputTensorFromParentGraph(self, tensorId: str) -> None:
        """Makes a tensor of the graph around visible in this sub-graph.

        Where the sub-graph is called with as many tensors as it has inputs and such tensors
        together, both are bound to the arguments in the order in which they were added.

        Args:
            tensorId: The tensor.

        Raises:
            ValueRangeError: There is no graph around, or it has no such tensor.
        """
        parent = self._writer.parent
        if parent is None:
            raise ValueRangeError("PD504", "this builder has no graph around it", value=tensorId)
        value = self._writer.values[tensorId] = parent.value(tensorId)
        graph = self._writer.graph
        graph.meta.setdefault(FROM_PARENT, []).append((len(graph.inputs), value))

    def addInitializedInputTensor(
        self, initVal: np.ndarray[Any, Any] | np.generic, debugContext: object = "", **old: object
    ) -> str:
        """Adds an input with content: a weight, where a session trains.

        Args:
            initVal: Its content.
            debugContext: Its name; ``init_input`` without one.
            **old: ``debugPrefix``, an older name of ``debugContext``.

        Returns:
            Its id.

        Raises:
            ArgumentError: The content is not an array, or of a type that PopART does not take.
        """
        content: Any = np.asarray(initVal) if isinstance(initVal, np.generic) else initVal
        if not isinstance(content, np.ndarray):
            raise ArgumentError(
                "PD507",
                "an initialized input takes a numpy array",
                value=type(initVal).__name__,
                hint="write np.array(value, dtype=np.float32)",
            )
        DataType.of(content.dtype)
        name = _input_name("addInitializedInputTensor", (), debugContext, old) or "init_input"
        value = self._writer.add_input(name, TensorInfo(content))
        value.const_value = as_tensor(content, str(value.name))
        self.graph.register_initializer(value)
        return str(value.name)

    def addOutputTensor(self, outputTensorId: str) -> None:
        """Makes a tensor an output of the model; anchors are independent of outputs.

        Args:
            outputTensorId: The tensor.

        Raises:
            ValueRangeError: There is no such tensor, or its name is reserved.
        """
        value = self._writer.value(outputTensorId)
        require_unreserved(outputTensorId)
        self.graph.outputs.append(value)

    def getNameScope(self, name: str = "") -> str:
        """A name in the current scope, without a number.

        Args:
            name: The name.

        Returns:
            The scopes that are open and the name, with slashes between and after each scope.
        """
        return self._writer.ids.scoped(name)

    def nameScope(self, name: str) -> AbstractContextManager[None]:
        """Puts ``name/`` before ids made meanwhile.

        Args:
            name: The scope.

        Returns:
            A context manager.
        """
        return self._writer.ids.scope(name)

    def setGraphName(self, name: str) -> None:
        """Names the graph.

        Args:
            name: The name.
        """
        self.graph.name = name

    def createSubgraphBuilder(self) -> Builder:
        """A builder for a graph inside this one: a branch, a loop's body, a called function.

        Returns:
            A builder of its own, for a graph inside this one.
        """
        return Builder(builderCore=self)

    def reshape_const(
        self,
        aiOnnx: OperatorSet,
        args: Sequence[str],
        shape: Sequence[int],
        debugContext: object = "",
    ) -> str:
        """Reshapes to a shape known now.

        Args:
            aiOnnx: The operator set to use.
            args: The tensor's id, in a list.
            shape: The shape.
            debugContext: A name for the output.

        Returns:
            The output's id.
        """
        constant = aiOnnx.constant(np.asarray(shape, np.int64), debugContext=debugContext)
        return str(aiOnnx.reshape([*args, constant], debugContext=debugContext))

    def customOp(
        self,
        opName: str,
        opVersion: int,
        domain: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Any],
        numOutputs: int = 1,
        name: str = "",
    ) -> list[str]:
        """Appends an operator of any domain; what runs the model must know it.

        Args:
            opName: The operator.
            opVersion: The domain's version.
            domain: The domain.
            inputs: Ids of its inputs.
            attributes: Its attributes; each has the type of its value.
            numOutputs: How many outputs it has.
            name: A name for the outputs.

        Returns:
            The outputs' ids.
        """
        self._writer.use_opset(domain, opVersion)
        made = [plain_attribute(one, value) for one, value in attributes.items()]
        return self._writer.add_node(domain, opName, inputs, made, numOutputs, name)

    def getModelProto(self) -> bytes:
        """The model, with weights in typed fields such as ``float_data``.

        Returns:
            A serialized ``onnx.ModelProto``.

        Raises:
            popart_exception: Its weights are larger than 2 GiB.
        """
        content = bytes(model_proto(self._writer).SerializeToString())
        folder = external_folder(self._writer)
        return content if folder is None else BuiltModel(content, folder)

    def saveModelProto(self, fn: str | PathLike[str]) -> None:
        """Writes the model to a file.

        Args:
            fn: The file.

        Raises:
            popart_exception: Its weights are larger than 2 GiB, and not in a file of their own.
        """
        onnx.save(model_proto(self._writer), Path(fn))

    def saveInitializersExternally(self, ids: Iterable[str], fn: str | PathLike[str]) -> None:
        """Moves the content of initializers to a file beside the model's.

        The model that is written afterwards refers to that file by its name, so both belong into
        the same folder. A session of this process finds the file of what `getModelProto` gives.

        Args:
            ids: The initializers.
            fn: The file; it must not exist.

        Raises:
            ValueRangeError: An id is not an initializer, or the file exists.
        """
        move_initializers(self._writer, ids, fn)

    def getInputTensorIds(self) -> list[str]:
        """The model's inputs, initialized ones among them.

        Returns:
            Their ids, in the order in which they were added.
        """
        return [str(value.name) for value in self.graph.inputs]

    def getOutputTensorIds(self) -> list[str]:
        """The model's outputs.

        Returns:
            Their ids, in the order in which they were added.
        """
        return [str(value.name) for value in self.graph.outputs]

    def getValueTensorIds(self) -> list[str]:
        """The tensors that operators make, outputs among them.

        Returns:
            Their ids, in the order in which they were made.
        """
        inputs = set(self.getInputTensorIds())
        return [one for one in self._writer.values if one not in inputs]

    def getTrainableTensorIds(self) -> list[str]:
        """The initialized inputs, which training changes.

        Returns:
            Their ids, in the order in which they were added.
        """
        return [one for one in self.getInputTensorIds() if self.isInitializer(one)]

    def isInitializer(self, tensor_id: str) -> bool:
        """Whether a tensor has its content from the model.

        Args:
            tensor_id: The tensor.

        Returns:
            True for tensors of `addInitializedInputTensor`; False for ids that do not exist, too.
        """
        return tensor_id in self.graph.initializers

    def getTensorShape(self, tensor_id: str) -> list[int]:
        """The dimensions of a tensor.

        Args:
            tensor_id: The tensor.

        Returns:
            Its dimensions.

        Raises:
            ValueRangeError: There is no such tensor, or its shape cannot be told yet.
        """
        value = self._inferred(tensor_id)
        dims = None if value.shape is None else list(value.shape)
        if dims is None or not all(isinstance(dim, int) for dim in dims):
            raise ValueRangeError(
                "PD507",
                f"the shape of '{tensor_id}' cannot be inferred",
                value=None if dims is None else [str(dim) for dim in dims],
                hint="an operator before it gets its shape from data, or mismatched operands",
            )
        return [dim for dim in dims if isinstance(dim, int)]

    def getTensorDtypeString(self, tensor_id: str) -> str:
        """The element type of a tensor.

        Args:
            tensor_id: The tensor.

        Returns:
            Its name in lower case, as in ``float32``.

        Raises:
            ValueRangeError: There is no such tensor, or its type cannot be told yet.
        """
        value = self._inferred(tensor_id)
        if value.dtype is None:
            raise ValueRangeError("PD507", f"the type of '{tensor_id}' cannot be inferred")
        return DataType.from_onnx(int(value.dtype)).lower

    def _inferred(self, tensor_id: str) -> ir.Value:
        value = self._writer.value(tensor_id)
        if not static(value) or value.dtype is None:
            infer_all(self._writer)
        return value

    # Attributes of nodes that exist.

    def addNodeAttribute(self, name: str, value: Any, nodeOutputNames: Iterable[str]) -> None:
        """Gives a node an attribute.

        Args:
            name: The attribute.
            value: A number, text, array, sub-graph builder, or a list of numbers or texts.
            nodeOutputNames: The ids of the node's outputs.

        Raises:
            ValueRangeError: There is no such node, or it has the attribute already.
        """
        self._notes.add(name, value, nodeOutputNames)

    def nodeHasAttribute(self, name: str, nodeOutputNames: Iterable[str]) -> bool:
        """Whether a node has an attribute.

        Args:
            name: The attribute.
            nodeOutputNames: The ids of the node's outputs.

        Returns:
            True if it has.
        """
        return self._notes.find(name, nodeOutputNames) is not None

    def getAllNodeAttributeNames(self, nodeOutputNames: Iterable[str]) -> list[str]:
        """The attributes of a node.

        Args:
            nodeOutputNames: The ids of the node's outputs.

        Returns:
            Their names.
        """
        return self._notes.names(nodeOutputNames)

    def removeNodeAttribute(self, name: str, nodeOutputNames: Iterable[str]) -> None:
        """Takes an attribute from a node.

        Args:
            name: The attribute.
            nodeOutputNames: The ids of the node's outputs.

        Raises:
            ValueRangeError: There is no such node or attribute.
        """
        self._notes.remove(name, nodeOutputNames)

    getInt64NodeAttribute = _of_type(int, int)
    """An attribute that is a whole number: its value, with 64 bits in the file."""

    getInt64VectorNodeAttribute = _of_type(list, int, many=True)
    """An attribute that is a list of whole numbers: its values in order."""

    getFloatNodeAttribute = _of_type(float, float)
    """An attribute that is a number: its value, with 32 bits in the file."""

    getFloatVectorNodeAttribute = _of_type(list, float, many=True)
    """An attribute that is a list of numbers: its values in order."""

    getStringNodeAttribute = _of_type(str, str)
    """An attribute that is a text: its text."""

    getStringVectorNodeAttribute = _of_type(list, str, many=True)
    """An attribute that is a list of texts: its texts in order."""

    getBoolNodeAttribute = _of_type(bool, int)
    """An attribute that is a switch: whether it is another number than 0."""

    # Where work is placed on IPUs: kept with each node, without effect on a host.

    def virtualGraph(self, *arguments: Any) -> Any:
        """Sets which IPU computes: a node that exists, or all that are made in a context.

        Write ``virtualGraph(id, v)``, or ``with virtualGraph(v):``.

        Args:
            *arguments: The value, after the ids of the outputs where the node exists already.

        Returns:
            A context manager, or None where ids were given.
        """
        return self._notes.placed("virtualGraph", key.VIRTUAL_GRAPH, arguments)

    def pipelineStage(self, *arguments: Any) -> Any:
        """Sets which pipeline stage computes; arguments as for `virtualGraph`."""
        return self._notes.placed("pipelineStage", key.PIPELINE_STAGE, arguments)

    def executionPhase(self, *arguments: Any) -> Any:
        """Sets which execution phase computes; arguments as for `virtualGraph`."""
        return self._notes.placed("executionPhase", key.EXECUTION_PHASE, arguments)

    def schedulePriority(self, *arguments: Any) -> Any:
        """Sets how early to compute; arguments as for `virtualGraph`."""
        return self._notes.placed("schedulePriority", key.SCHEDULE_PRIORITY, arguments)

    def recomputeOutput(self, *arguments: Any) -> Any:
        """Sets whether an output is computed again; arguments as for `virtualGraph`."""
        return self._notes.placed("recomputeOutput", key.RECOMPUTE, arguments)

    def recomputeOutputInBackwardPass(self, ids: Iterable[str] | str, value: int = 1) -> None:
        """Sets whether an output is computed again in backward.

        Args:
            ids: The outputs of a node.
            value: A `RecomputeType`, or 0 or 1.
        """
        self._notes.annotate(ids, key.RECOMPUTE, int(value))

    def getRecomputeOutputInBackwardPass(self, ids: Iterable[str] | str) -> bool:
        """Whether an output is computed again in backward.

        Args:
            ids: The outputs of a node.

        Returns:
            What was said of it.
        """
        return bool(self._notes.find(key.RECOMPUTE, ids))

    def checkpointOutput(self, ids: Iterable[str], debugContext: object = "") -> list[str]:
        """Marks tensors that backward keeps; a host keeps all of them.

        Args:
            ids: The tensors.
            debugContext: Ignored.

        Returns:
            The same ids.
        """
        del debugContext
        kept = list(ids)
        for tensor in kept:
            if self._writer.value(tensor).producer() is not None:
                self._notes.annotate(tensor, key.RECOMPUTE, 0)
        return kept

    def hasVirtualGraph(self, ids: Iterable[str] | str | None = None) -> bool:
        """Whether an IPU is set for a node, or for what is made here.

        Args:
            ids: Outputs of the node; None for the contexts of `virtualGraph` that are open.

        Returns:
            True after a `virtualGraph` around the node or for it, or within one.
        """
        if ids is None:
            return bool(self._notes.current(key.VIRTUAL_GRAPH))
        return self.nodeHasAttribute(key.VIRTUAL_GRAPH, ids)

    def getVirtualGraph(self, ids: Iterable[str] | str | None = None) -> int:
        """The IPU that computes a node, or what is made here.

        Args:
            ids: Outputs of the node; None for the innermost context of `virtualGraph`.

        Returns:
            Its number, from 0.

        Raises:
            ValueRangeError: None is set.
        """
        if ids is None:
            if not self.hasVirtualGraph():
                raise ValueRangeError("PD505", "Virtual graph not set in current scope")
            return int(self._notes.current(key.VIRTUAL_GRAPH)[-1])
        return self.getInt64NodeAttribute(key.VIRTUAL_GRAPH, ids)

    def hasPipelineStage(self) -> bool:
        """Whether a context of `pipelineStage` is open.

        Returns:
            False outside of every such context.
        """
        return bool(self._notes.current(key.PIPELINE_STAGE))

    def getPipelineStage(self) -> int:
        """The stage of the innermost context of `pipelineStage`.

        Returns:
            Its number, from 0.

        Raises:
            ValueRangeError: None is open.
        """
        if not self.hasPipelineStage():
            raise ValueRangeError("PD505", "Pipeline stage not set in current scope")
        return int(self._notes.current(key.PIPELINE_STAGE)[-1])

    def excludePatterns(self, ids: Iterable[str] | str, patterns: Iterable[str]) -> None:
        """Names patterns that leave a node alone."""
        self._notes.annotate(ids, key.EXCLUDE_PATTERNS, list(patterns))

    def setPartialsType(self, ids: Iterable[str] | str, partialsType: str) -> None:
        """Says in which type partial sums are kept."""
        self._notes.annotate(ids, key.PARTIALS_TYPE, partialsType)

    def getPartialsType(self, ids: Iterable[str] | str) -> str:
        """What `setPartialsType` said; ``FLOAT`` if nothing.

        Args:
            ids: Outputs of the node.

        Returns:
            ``FLOAT`` or ``HALF``.
        """
        return str(self._notes.find(key.PARTIALS_TYPE, ids) or "FLOAT")

    def setAvailableMemoryProportion(self, ids: Iterable[str] | str, proportion: float) -> None:
        """Sets the share of a tile's memory an operator may use.

        Args:
            ids: The outputs of a node.
            proportion: The share.

        Raises:
            ValueRangeError: It does not lie between 0 and 1.
        """
        if not 0 < proportion <= 1:
            raise ValueRangeError(
                "PD501", "availableMemoryProportion must be in (0,1]", value=proportion
            )
        self._notes.annotate(ids, key.MEMORY_PROPORTION, float(proportion))

    def setSerializeMatMul(
        self,
        ids: Iterable[str] | str,
        mode: str,
        factor: int = 0,
        keep_precision: bool = False,
    ) -> None:
        """Says along which dimension a matmul is computed piece by piece.

        Args:
            ids: The outputs of a node.
            mode: ``none``, ``input_channels``, ``reducing_dim`` or ``output_channels``.
            factor: The number of pieces.
            keep_precision: Whether partial results keep their precision.

        Raises:
            ValueRangeError: There is no such mode.
        """
        if mode not in ("none", "input_channels", "reducing_dim", "output_channels"):
            raise ValueRangeError(
                "PD501",
                f"Unsupported mat mul serialization mode '{mode}'. Supported modes are "
                "'input_channels', 'reducing_dim', 'output_channels' or 'none'",
            )
        self._notes.annotate(ids, key.SERIALIZE_MATMUL, [mode, factor, keep_precision])

    def setInplacePreferences(
        self, ids: Iterable[str] | str, preferences: Mapping[str, float]
    ) -> None:
        """Sets which in-place variants of an operator are liked."""
        self._notes.annotate(ids, key.INPLACE, dict(preferences))

    def outlineAttributes(self, attributes: Mapping[str, Any]) -> Any:
        """Attributes that tell parts apart whose code would be shared.

        Args:
            attributes: Values by key.

        Returns:
            A context manager.
        """
        return self._notes.meanwhile(
            key.OUTLINE, {name: str(one) for name, one in attributes.items()}
        )


def _input_info(arguments: tuple[Any, ...]) -> tuple[TensorInfo, tuple[Any, ...]]:
    """Reads type and shape off the arguments of an input.

    Args:
        arguments: A `TensorInfo`, or an element type and a shape; then perhaps more.

    Returns:
        Type and shape, and what is left.

    Raises:
        ArgumentError: The arguments are neither of these.
    """
    match arguments:
        case (TensorInfo() as info, *rest):
            return info, tuple(rest)
        case (dtype, shape, *rest) if not isinstance(shape, str):
            return TensorInfo(dtype, shape), tuple(rest)
        case _:
            raise ArgumentError(
                "PD507",
                "addInputTensor takes a TensorInfo, or an element type and a shape",
                value=arguments,
                hint='write addInputTensor("FLOAT", [2, 3])',
            )


def _input_name(
    method: str, rest: tuple[object, ...], context: object, old: Mapping[str, object]
) -> str:
    """Reads an input's name off its arguments, of which it is the last, or one of two by name.

    Args:
        method: What was called, for messages.
        rest: What is left of the arguments by place.
        context: The argument ``debugContext``.
        old: Other arguments by name.

    Returns:
        The name; empty without one.

    Raises:
        ArgumentError: There are other arguments.
    """
    given = [*rest, *[one for name, one in old.items() if name == "debugPrefix"]]
    unknown = [name for name in old if name != "debugPrefix"]
    if unknown or len(given) > 1:
        raise ArgumentError(
            "PD501",
            f"{method} was given arguments that it does not take",
            value=unknown or given,
            accepted="debugContext",
        )
    return debug_name(given[0] if given else context)
