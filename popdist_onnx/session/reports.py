"""What a session says about itself: PopART's report functions, as far as they mean anything."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NoReturn

from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]

from popdist_onnx.errors import NotOnHostError
from popdist_onnx.graph.load import save
from popdist_onnx.session.prepared import Prepared

if TYPE_CHECKING:
    import onnx

    from popdist_onnx.types import IrSerializationFormat


class Reports(Prepared):
    """Report functions of a session."""

    def getIr(self) -> onnx.ModelProto:
        """The graph that runs, as an ONNX model."""
        return save(self._reading.model)

    def getSerializedGraph(self) -> bytes:
        """The graph that runs, as the content of an ONNX file."""
        return bytes(self.getIr().SerializeToString())

    def getSummaryReport(self, resetProfile: bool = True) -> str:
        """How many operators of each kind a step runs.

        Args:
            resetProfile: Kept.

        Returns:
            A table.
        """
        del resetProfile
        counts: dict[str, int] = {}
        for step in self._reading.steps:
            name = f"{step.node.domain or 'ai.onnx'}.{step.node.op_type}"
            counts[name] = counts.get(name, 0) + 1
        lines = [f"{count:6} {name}" for name, count in sorted(counts.items())]
        return "\n".join([f"{len(self._reading.steps):6} operators in all", *lines])

    def _serializeIr(self, format: IrSerializationFormat) -> str:  # noqa: A002 - published name
        """The graph that runs, as JSON.

        Args:
            format: JSON is the only one.

        Returns:
            The text, without the content of weights.
        """
        del format
        proto = self.getIr()
        for tensor in proto.graph.initializer:
            tensor.ClearField("raw_data")
        return json.dumps(MessageToDict(proto))

    def getReport(self, resetProfile: bool = True) -> NoReturn:
        """Raises: a profile of an IPU's memory and cycles does not exist here.

        Args:
            resetProfile: Has no meaning.

        Raises:
            NotOnHostError: Always.
        """
        del resetProfile
        raise _no_report("getReport", "getSummaryReport() counts operators")

    def compileAndExport(self, filename: str) -> NoReturn:
        """Raises: there are no executables to keep.

        Args:
            filename: Has no meaning.

        Raises:
            NotOnHostError: Always.
        """
        del filename
        raise _no_report("compileAndExport", "compiling takes seconds: prepareDevice() does it")

    def loadExecutable(self, filename: str) -> NoReturn:
        """Raises: there are no executables to load.

        Args:
            filename: Has no meaning.

        Raises:
            NotOnHostError: Always.
        """
        del filename
        raise _no_report("loadExecutable", "prepareDevice() compiles the model in seconds")


def _no_report(call: str, hint: str) -> NotOnHostError:
    return NotOnHostError("PD503", f"{call} cannot be expressed for a host", hint=hint)
