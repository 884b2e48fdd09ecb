"""A stage as a session of ONNX Runtime whose inputs and outputs are bound to memory."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

import onnx
import onnx_ir as ir
import onnxruntime as ort

from popdist_onnx.errors import poplar_exception, poplar_runtime_error
from popdist_onnx.runtime.graph_reader import Spec
from popdist_onnx.runtime.state import Buffer, empty, reshaped
from popdist_onnx.runtime.wiring import overwritable

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence

    from popdist_onnx.runtime.graph_reader import Reading
    from popdist_onnx.runtime.stages import Stage
    from popdist_onnx.runtime.wiring import Wiring

logger = logging.getLogger("popdist.onnx")


# How ONNX Runtime runs a stage: providers, threads, memory.


_CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"

_MOST_SPINNING = 500
"""Microseconds after which a thread sleeps that has waited for work. Single-threaded operators are
shorter in most steps; where other programs need the processors, little is lost."""


@dataclass(frozen=True)
class Execution:
    """How stages are run.

    Attributes:
        providers: ONNX Runtime's execution providers, in order of preference.
        threads: Threads of one operator.
        spinning: Whether threads wait for the next operator without sleeping (see `may_spin`).
        optimise: Whether ONNX Runtime may rewrite stages.
        gpu: Which of the GPUs that this process sees is used.
    """

    providers: tuple[str, ...] = (_CPU,)
    threads: int = 1
    spinning: bool = False
    optimise: bool = True
    gpu: int = 0

    def with_settings(self) -> list[str | tuple[str, dict[str, str]]]:
        """The providers as ONNX Runtime takes them; by default float32 would be TF32 on GPUs."""
        settings = {"device_id": str(self.gpu), "use_tf32": "0"}
        return [(name, settings) if name == _CUDA else name for name in self.providers]


def default_threads(environment: Mapping[str, str] | None = None) -> int:
    """The first number in ``OMP_NUM_THREADS``, else how many processors the process may use."""
    stated = (os.environ if environment is None else environment).get("OMP_NUM_THREADS", "")
    first = stated.split(",")[0].strip()
    if first.isdigit() and int(first) > 0:
        return int(first)
    return _processors()


def may_spin(threads: int, *, alone: bool, environment: Mapping[str, str] | None = None) -> bool:
    """Whether threads may wait for work without giving up their processors.

    A step has hundreds of operators of some 10 us, and to wake a sleeping thread takes as long.
    Other instances, and the thread that sends gradients, need the processors meanwhile.

    Args:
        threads: How many threads an operator has.
        alone: Whether this process is its whole job.
        environment: Where ``OMP_WAIT_POLICY`` is looked up, which decides if it is set.

    Returns:
        Whether they may.
    """
    found = os.environ if environment is None else environment
    stated = found.get("OMP_WAIT_POLICY", "").strip().lower()
    if threads == 1 or stated == "passive":
        return False
    return stated == "active" or (alone and threads <= _processors())


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def make_session(
    model: bytes, execution: Execution, rewritten: Path | None = None
) -> ort.InferenceSession:
    """Compiles a serialised stage; ``rewritten`` is a file for ONNX Runtime's own version of it."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = execution.threads
    # One operator at a time: the graph of a step is a chain, and its order decides its memory.
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry(
        "session.intra_op.allow_spinning", "1" if execution.spinning else "0"
    )
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(_MOST_SPINNING))
    # Between steps the program's own threads need the processors, to load data for instance.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if not execution.optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if rewritten is not None:
        options.optimized_model_filepath = str(rewritten)
    # Warnings are hidden: they report such things as constants to fold. Errors are raised as well.
    options.log_severity_level = 4
    if _CUDA in execution.providers:
        ort.preload_dlls()  # CUDA's own libraries, where they came as wheels
    session = ort.InferenceSession(model, options, providers=execution.with_settings())
    if missing := {*execution.providers} - {*session.get_providers()}:
        logger.warning(
            "ONNX Runtime cannot use %s here, so the processor computes: see what "
            "onnxruntime.preload_dlls() prints",
            ", ".join(sorted(missing)),
        )
    return session


# A stage as a model of its own.


_ORT_IR_VERSION = 10
"""The newest file format that every supported ONNX Runtime reads; it only limits what may be said
in a file, and no stage says more."""


def extract(
    reading: Reading, stage: Stage, *, extra: Sequence[str] = (), summed: Sequence[str] = ()
) -> onnx.ModelProto:
    """Builds a stage's model; it also returns ``extra`` tensors, and sums of ``summed`` ones."""
    constants = [reading.constants[name] for name in stage.reads if name in reading.constants]
    # Every stage gets its own copy of a constant, which costs nothing and is folded there.
    nodes = [ir.serde.serialize_node(node) for value in constants if (node := value.producer())]
    nodes += [ir.serde.serialize_node(reading.steps[i].node) for i in stage.steps]
    outputs = [_info(reading, name) for name in dict.fromkeys((*stage.writes, *extra))]
    for dtype, terms in summed_types(reading, summed).items():
        nodes += _sum(reading, terms, dtype)
        outputs.append(onnx.helper.make_tensor_value_info(_total(dtype), int(dtype), []))
    graph = onnx.helper.make_graph(
        nodes,
        "stage",
        [_info(reading, name) for name in stage.reads if name not in reading.constants],
        outputs,
        [_tensor(value) for value in constants if value.producer() is None],
    )
    model = reading.model
    opsets = [
        onnx.helper.make_opsetid(domain, version)
        for domain, version in model.graph.opset_imports.items()
    ]
    return onnx.helper.make_model(
        graph, opset_imports=opsets, ir_version=min(model.ir_version, _ORT_IR_VERSION)
    )


def summed_types(reading: Reading, names: Sequence[str]) -> dict[ir.DataType, list[str]]:
    """Tensors to sum by the type of their sum: half precision would overflow."""
    found: dict[ir.DataType, list[str]] = {}
    for name in names:
        wide = reading.spec(name).dtype == ir.DataType.DOUBLE
        found.setdefault(ir.DataType.DOUBLE if wide else ir.DataType.FLOAT, []).append(name)
    return found


def _total(dtype: ir.DataType) -> str:
    return f"popdist.sum/{dtype.name}"


def _sum(reading: Reading, names: Sequence[str], dtype: ir.DataType) -> Iterator[onnx.NodeProto]:
    """Nodes that sum all elements of tensors."""
    parts = []
    for i, name in enumerate(names):
        wide, part = name, f"{_total(dtype)}/{i}"
        if reading.spec(name).dtype != dtype:
            wide = f"{part}/wide"
            yield onnx.helper.make_node("Cast", [name], [wide], to=int(dtype))
        yield onnx.helper.make_node("ReduceSum", [wide], [part], keepdims=0)
        parts.append(part)
    yield onnx.helper.make_node("Sum", parts, [_total(dtype)])


def _tensor(value: ir.Value) -> onnx.TensorProto:
    assert value.const_value is not None  # noqa: S101 - an initializer
    proto = ir.serde.serialize_tensor(value.const_value)
    proto.name = str(value.name)
    return proto


def _info(reading: Reading, name: str) -> onnx.ValueInfoProto:
    spec = reading.spec(name)
    # An unknown shape is left to ONNX Runtime, which knows it when it runs.
    return onnx.helper.make_tensor_value_info(name, int(spec.dtype), spec.shape)


# What ONNX Runtime's kernels report for an index out of range.
_BEYOND = re.compile("out of range|out of bounds|indices element", re.IGNORECASE)

# What ONNX Runtime reports for opsets that onnx supports and ONNX Runtime does not.
_NEWEST = re.compile(r"is till opset (\d+)")


class Locate(Protocol):
    """Finds the memory of a tensor."""

    def __call__(self, name: str, *, write: bool) -> Buffer:
        """The memory that holds a tensor, or the memory for its next value."""


class Compiled:
    """A stage that can be run.

    The memory that a stage reads and writes depends on few things (which of two weight buffers is
    current, which replica runs). For each such situation one binding is made and kept, so that a
    run binds only the host's new inputs and outputs.

    Args:
        reading: The graph.
        wiring: The stage, and where its tensors lie.
        execution: How to run it.
        states: State tensors that the stage may overwrite if that is safe.
        summed: Outputs whose elements are summed, to see whether all are finite.

    Attributes:
        overwritable: State tensors that the stage may overwrite.
        sums: After a run the sums of all elements of ``summed`` outputs, one for each type.

    Raises:
        poplar_exception: ONNX Runtime does not take the stage.
    """

    def __init__(
        self,
        reading: Reading,
        wiring: Wiring,
        execution: Execution,
        states: Sequence[str],
        summed: Sequence[str] = (),
    ) -> None:
        self.wiring = wiring
        self._sums = {
            _total(dtype): empty(Spec(_total(dtype), dtype, ()))
            for dtype in summed_types(reading, summed)
        }
        self.sums = [buffer.array for buffer in self._sums.values()]
        self._specs = {name: reading.spec(name) for name in wiring.fixed_outputs}
        self.overwritable: frozenset[str] = frozenset()
        model = extract(reading, wiring.stage, summed=summed).SerializeToString()
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
                hint=_hint(str(error), {spec.dtype for spec in reading.specs.values()}),
            ) from error
        self._bindings: dict[Hashable, ort.IOBinding] = {}

    def forget(self) -> None:
        """Drops all bindings after memory has moved."""
        self._bindings.clear()

    def run(
        self,
        situation: Hashable,
        locate: Locate,
        inputs: Mapping[str, Buffer],
        outputs: Mapping[str, Buffer],
    ) -> dict[str, Buffer]:
        """Runs the stage and returns the outputs that ONNX Runtime allocated.

        ``situation`` decides which fixed memory is bound; ``locate`` is asked once per tensor and
        situation.

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
            for name, buffer in self._sums.items():
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
        bound = [*self.wiring.fixed_outputs, *self._sums, *outputs, *self.wiring.allocated]
        made = dict(zip(bound, binding.get_outputs(), strict=True))
        return {name: Buffer(made[name].numpy(), made[name]) for name in self.wiring.allocated}


def _hint(said: str, kinds: Collection[ir.DataType]) -> str | None:
    if newest := _NEWEST.search(said):
        return f"use opset {newest[1]} or older, or a newer onnxruntime"
    if "Could not find an implementation" in said and ir.DataType.BFLOAT16 in kinds:
        return (
            "processors have hardly any kernels for bfloat16: train in single precision, as "
            "GraphTransformer(model) writes a model by convertBFloats16ToFloat32()"
        )
    if "Could not find an implementation" in said:
        return (
            "ONNX Runtime has no kernel for it with these element types: cast its operands to "
            "float32, and back"
        )
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
