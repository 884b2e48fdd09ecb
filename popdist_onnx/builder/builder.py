"""`Builder`: writes an ONNX model operator by operator."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from popdist_onnx.builder.annotations import Annotations
from popdist_onnx.builder.attributes import plain_attribute
from popdist_onnx.builder.core import DEFAULT_OPSETS
from popdist_onnx.builder.graphcore_methods import ai_graphcore
from popdist_onnx.builder.model_files import Queries, as_tensor
from popdist_onnx.builder.naming import debug_name, require_unreserved
from popdist_onnx.builder.onnx_methods import OLDEST_OPSET, ai_onnx, newest_opset
from popdist_onnx.errors import ArgumentError, OptionError, ValueRangeError
from popdist_onnx.graph.load import read
from popdist_onnx.types import DataType, InputSettings, TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from os import PathLike

    from popdist_onnx.builder.methods import OperatorSet


# The published ways to say what an input is.


def input_info(arguments: tuple[Any, ...]) -> tuple[TensorInfo, tuple[Any, ...]]:
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


def input_name(
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


_OPSET = re.compile(r"aiOnnxOpset(\d+)")


class Builder(Annotations, Queries):
    """Writes an ONNX model operator by operator.

    ``builder.aiOnnx.add([a, b])`` appends a node and returns its output's id; ``aiOnnxOpset11``
    and so on are other versions, ``aiGraphcore`` PopART's own operators.

    Args:
        modelProtoOrFilename: A model to go on with, serialized or a file.
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
        super().__init__(builderCore, opsets)
        for domain in opsets or {}:
            if domain not in DEFAULT_OPSETS:
                raise ValueRangeError(
                    "PD502", "not a domain", value=domain, accepted=", ".join(DEFAULT_OPSETS)
                )
        if "ai.onnx" in self._opsets:
            ai_onnx(self._opsets["ai.onnx"])
        if modelProtoOrFilename is not None:
            self._take(modelProtoOrFilename)

    def _take(self, source: bytes | str | PathLike[str]) -> None:
        proto = read(source)
        for imported in proto.opset_import:
            self.use_opset(imported.domain or "ai.onnx", imported.version)
        self.graph = ir.from_proto(proto).graph
        values = [*self.graph.inputs, *self.graph.initializers.values()]
        values += [output for node in self.graph for output in node.outputs]
        self._values = {str(value.name): value for value in values}
        self._ids.take(self._values)

    @property
    def aiOnnx(self) -> OperatorSet:
        """The operators of the version of ``ai.onnx`` in use."""
        return ai_onnx(self.onnx_opset)(self)

    @property
    def aiGraphcore(self) -> OperatorSet:
        """PopART's own operators."""
        return ai_graphcore()(self)

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
            if self._opsets.get("ai.onnx", version) != version:
                self.use_opset("ai.onnx", version)
            return operators(self)
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
        info, rest = input_info(arguments)
        # Settings have been checked when they were made, and change nothing here.
        rest = tuple(one for one in rest if not isinstance(one, InputSettings))
        name = input_name("addInputTensor", rest, debugContext, old) or "input"
        return self._add_input(name, info)

    def addUntypedInputTensor(self, debugContext: object = "") -> str:
        """Adds an input of a sub-graph, whose type and shape the caller decides.

        Args:
            debugContext: Its name.

        Returns:
            Its id.
        """
        return self._add_input(debug_name(debugContext) or "input", None)

    def addInputTensorFromParentGraph(self, tensorId: str) -> None:
        """Makes a tensor of the graph around visible in this sub-graph.

        Args:
            tensorId: The tensor.

        Raises:
            ValueRangeError: There is no graph around, or it has no such tensor.
        """
        if self._parent is None:
            raise ValueRangeError("PD504", "this builder has no graph around it", value=tensorId)
        self._values[tensorId] = self._parent.value(tensorId)

    def _add_input(self, name: str, info: TensorInfo | None) -> str:
        require_unreserved(name)
        value = ir.Value(name=self._ids.fresh(name))
        if info is not None:
            value.type = ir.TensorType(ir.DataType(info.dataType().onnx))
            value.shape = ir.Shape(info.shape())
        self.graph.inputs.append(value)
        return self._known(value)

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
            ArgumentError: The content is no array, or of a type that PopART does not take.
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
        name = input_name("addInitializedInputTensor", (), debugContext, old) or "init_input"
        tensor_id = self._add_input(name, TensorInfo(content))
        value = self._values[tensor_id]
        value.const_value = as_tensor(content, tensor_id)
        self.graph.register_initializer(value)
        return tensor_id

    def addOutputTensor(self, outputTensorId: str) -> None:
        """Makes a tensor an output of the model; anchors are independent of outputs.

        Args:
            outputTensorId: The tensor.

        Raises:
            ValueRangeError: There is no such tensor, or its name is reserved.
        """
        require_unreserved(outputTensorId)
        self.graph.outputs.append(self.value(outputTensorId))

    def nameScope(self, name: str) -> AbstractContextManager[None]:
        """Puts ``name/`` before ids made meanwhile.

        Args:
            name: The scope.

        Returns:
            A context manager.
        """
        return self._ids.scope(name)

    def setGraphName(self, name: str) -> None:
        """Names the graph.

        Args:
            name: The name.
        """
        self.graph.name = name

    def createSubgraphBuilder(self) -> Builder:
        """A builder for a graph inside this one: a branch, a loop's body, a called function."""
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
        self.use_opset(domain, opVersion)
        made = [plain_attribute(key, value) for key, value in attributes.items()]
        return self.add_node(domain, opName, inputs, made, numOutputs, name)

    def _known(self, value: ir.Value) -> str:
        self._values[str(value.name)] = value
        return str(value.name)
