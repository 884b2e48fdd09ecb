"""A stage as a session of ONNX Runtime with everything bound to memory."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

import onnx

from popdist_onnx.errors import poplar_exception, poplar_runtime_error
from popdist_onnx.runtime.cells import Buffer, reshaped
from popdist_onnx.runtime.execution import Execution, make_session
from popdist_onnx.runtime.extract import extract
from popdist_onnx.runtime.in_place import overwritable

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    import onnxruntime as ort

    from popdist_onnx.runtime.reading import Reading
    from popdist_onnx.runtime.wiring import Wiring


# What its kernels say of an index that points outside.
_BEYOND = re.compile("out of range|out of bounds|indices element", re.IGNORECASE)

# What ONNX Runtime says of opsets that onnx knows before it does.
_NEWEST = re.compile(r"is till opset (\d+)")


class Locate(Protocol):
    """Finds the memory of a tensor."""

    def __call__(self, name: str, *, write: bool) -> Buffer:
        """Tells where a tensor lies, or where its next value goes."""


class Compiled:
    """A stage that can be run.

    Which memory a stage reads and writes depends on few things (which of two weight buffers is
    current, which replica runs). For each such situation one binding is made and kept, so that a
    run binds only what the host hands over anew.

    Args:
        reading: The graph.
        wiring: The stage, and where its tensors lie.
        execution: How to run it.
        states: What it may perhaps overwrite.

    Attributes:
        overwritable: What it may overwrite.

    Raises:
        poplar_exception: ONNX Runtime does not take it.
    """

    def __init__(
        self, reading: Reading, wiring: Wiring, execution: Execution, states: Sequence[str]
    ) -> None:
        self.wiring = wiring
        self._specs = {name: reading.spec(name) for name in wiring.fixed_outputs}
        self.overwritable: frozenset[str] = frozenset()
        model = extract(reading, wiring.stage).SerializeToString()
        try:
            if not states:
                self._session = make_session(model, execution)
            else:
                with TemporaryDirectory(prefix="popdist-onnx-") as folder:
                    rewritten = Path(folder) / "stage.onnx"
                    self._session = make_session(model, execution, rewritten)
                    self.overwritable = overwritable(onnx.load(rewritten), states)
        except Exception as error:  # ONNX Runtime's own classes are private
            raise poplar_exception(
                "PD563",
                f"ONNX Runtime does not take this graph: {_first_line(error)}",
                hint=_hint(str(error)),
            ) from error
        self._bindings: dict[Hashable, ort.IOBinding] = {}

    def forget(self) -> None:
        """Drops all bindings, because memory has moved."""
        self._bindings.clear()

    def run(
        self,
        situation: Hashable,
        locate: Locate,
        inputs: Mapping[str, Buffer],
        outputs: Mapping[str, Buffer],
    ) -> dict[str, Buffer]:
        """Runs the stage.

        Args:
            situation: What decides about the fixed memory.
            locate: Tells the fixed memory of a tensor, given whether it is written; asked once per
                tensor and situation.
            inputs: The other inputs.
            outputs: The other outputs, but for those that ONNX Runtime is to allocate.

        Returns:
            What ONNX Runtime allocated.

        Raises:
            poplar_runtime_error: An operator failed.
        """
        binding = self._bindings.get(situation)
        if binding is None:
            binding = self._bindings[situation] = self._session.io_binding()
            for name in self.wiring.fixed_inputs:
                binding.bind_ortvalue_input(name, locate(name, write=False).value)
            for name in self.wiring.fixed_outputs:
                buffer = reshaped(locate(name, write=True), self._specs[name])
                binding.bind_ortvalue_output(name, buffer.value)
        for name, buffer in inputs.items():
            binding.bind_ortvalue_input(name, buffer.value)
        for name, buffer in outputs.items():
            binding.bind_ortvalue_output(name, buffer.value)
        for name in self.wiring.allocated:
            binding.bind_output(name)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # as above
            raise poplar_runtime_error(
                "PD564",
                f"ONNX Runtime failed in a step: {_first_line(error)}",
                hint="a label or another index is negative, or beyond the last element"
                if _BEYOND.search(str(error))
                else None,
            ) from error
        if not self.wiring.allocated:
            return {}
        # Outputs come back in the order in which they were first bound.
        bound = [*self.wiring.fixed_outputs, *outputs, *self.wiring.allocated]
        made = dict(zip(bound, binding.get_outputs(), strict=True))
        return {name: Buffer(made[name].numpy(), made[name]) for name in self.wiring.allocated}


def _hint(said: str) -> str | None:
    if newest := _NEWEST.search(said):
        return f"use opset {newest[1]} or older, or a newer onnxruntime"
    if "Could not find an implementation" in said:
        return (
            "ONNX Runtime has no kernel for it with these element types: cast its operands to "
            "float32, and back"
        )
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
