"""Rewrites a term of a loss so that its statistics are those of the whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from popdist_onnx.training.amounts import WIDE
from popdist_onnx.training.loss_reading import Reader, attributes
from popdist_onnx.training.loss_terms import TermPlan, is_sum

INPUT = "popdist.divisor/{}"
"""The input that has the number of the whole batch for a statistic."""

_COPY = "popdist.whole/{}/"
_OURS = "ai.graphcore"
_FLOAT = onnx.TensorProto.FLOAT
_FLOATING = (*WIDE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


class Rewriting:
    """Copies the nodes between the statistics of a term and the term, with other statistics.

    In half precision the copies are computed in float32: sums of rows may be infinite in it, where
    their mean is not.

    Args:
        proto: The model, changed in place.
        reader: What the model was before all rewriting.
        plan: The term and its statistics.
        parts: Parts of a global batch.

    Attributes:
        inputs: The new inputs by name.
    """

    def __init__(self, proto: onnx.ModelProto, reader: Reader, plan: TermPlan, parts: int) -> None:
        self._proto, self._reader, self._plan, self._parts = proto, reader, plan, parts
        self.inputs: dict[str, onnx.ValueInfoProto] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._copies: dict[str, str] = {}
        self._types: dict[str, int] = {}
        self._inner: dict[str, bool] = {}
        self._prefix = _COPY.format(plan.name)

    def apply(self) -> None:
        """Rewrites the term."""
        graph, name = self._proto.graph, self._plan.name
        found = self._copy(name)
        kind = self._reader.elements(name) or _FLOAT
        place = next(index for index, one in enumerate(graph.node) if name in one.output)
        maker = graph.node[place]
        maker.output[list(maker.output).index(name)] = f"{self._prefix}part/{name}"
        # A statistic that is the term itself now has another name.
        for node in self._nodes:
            for index, one in enumerate(node.input):
                if one == name:
                    node.input[index] = f"{self._prefix}part/{name}"
        self._nodes.append(helper.make_node("Cast", [found], [name], to=kind))
        for offset, node in enumerate(self._nodes):
            graph.node.insert(place + 1 + offset, node)
        present = {one.name for one in graph.input}
        graph.input.extend(one for key, one in self.inputs.items() if key not in present)
        if all(one.domain != _OURS for one in self._proto.opset_import):
            self._proto.opset_import.append(helper.make_opsetid(_OURS, 1))

    def _type(self, name: str) -> int:
        return self._types.get(name) or self._reader.elements(name)

    def _add(self, op_type: str, inputs: list[str], output: str, kind: int, **said: Any) -> str:
        self._nodes.append(helper.make_node(op_type, inputs, [output], **said))
        self._types[output] = kind
        return output

    def _widened(self, name: str) -> str:
        """A tensor in float32, where it is in half precision."""
        kind = self._type(name)
        if not name or kind in WIDE or kind not in _FLOATING:
            return name
        wide = f"{self._prefix}{name}/wide"
        if wide not in self._types:
            self._add("Cast", [name], wide, _FLOAT, to=_FLOAT)
        return wide

    def _copy(self, name: str) -> str:
        """The tensor with other statistics; the tensor itself where it has none."""
        if name not in self._copies:
            self._copies[name] = self._copied(name)
        return self._copies[name]

    def _copied(self, name: str) -> str:
        node = self._reader.makers.get(name)
        if node is None or not self._has_statistics(name):
            return self._widened(name)
        inputs = [self._copy(one) if one else "" for one in node.input]
        kind = self._reader.elements(name) or _FLOAT
        kind = _FLOAT if kind in _FLOATING and kind not in WIDE else kind
        made = name
        if inputs != list(node.input):
            made = self._prefix + name
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.name = ""
            copy.input[:] = inputs
            copy.output[:] = [made]
            if node.op_type == "Cast" and attributes(node)["to"] in _FLOATING:
                del copy.attribute[:]
                copy.attribute.append(helper.make_attribute("to", kind))
            self._nodes.append(copy)
            self._types[made] = kind
        if name in self._plan.statistics:
            return self._of_the_job(node, name, made, kind)
        return made

    def _has_statistics(self, name: str) -> bool:
        """Whether statistics of the term are before a tensor, or are the tensor."""
        if name in self._plan.statistics or name not in self._plan.path:
            return name in self._plan.statistics
        if name not in self._inner:
            node = self._reader.makers[name]
            self._inner[name] = any(map(self._has_statistics, node.input))
        return self._inner[name]

    def _of_the_job(self, node: onnx.NodeProto, name: str, made: str, kind: int) -> str:
        """A statistic as the whole batch has it."""
        factor = self._parts if is_sum(node) else 1
        if not self._plan.statistics[name]:
            return self._times(made, factor, kind, f"{self._prefix}{name}/scaled")
        given = INPUT.format(name)
        self.inputs[given] = helper.make_tensor_value_info(given, kind, self._reader.shape(name))
        self._types[given] = kind
        if kind not in _FLOATING or not self._reader.is_trained(name):
            return given
        base = f"{self._prefix}{name}"
        fixed = self._add("Detach", [made], f"{base}/fixed", kind, domain=_OURS)
        change = self._add("Sub", [made, fixed], f"{base}/change", kind)
        change = self._times(change, factor, kind, f"{base}/changes")
        return self._add("Add", [given, change], f"{base}/value", kind)

    def _times(self, name: str, factor: int, kind: int, output: str) -> str:
        if factor == 1:
            return name
        number = np.asarray(factor, helper.tensor_dtype_to_np_dtype(kind))
        by = f"{output}/factor"
        self._add("Constant", [], by, kind, value=numpy_helper.from_array(number, by))
        return self._add("Mul", [name, by], output, kind)
