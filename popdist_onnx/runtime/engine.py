"""Runs a training graph: micro-batches, then the exchange, then the update.

`Masks` draws the graph's random tensors on the host, and `blame` names the first tensor that is not
finite.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import onnx_ir as ir

from popdist_onnx.errors import popart_exception, popart_runtime_error
from popdist_onnx.graph import names
from popdist_onnx.optimizers.hyperparameters import is_scalar_input
from popdist_onnx.runtime.collectives import Collective
from popdist_onnx.runtime.compiled import Compiled, extract, make_session
from popdist_onnx.runtime.state import Array, Buffer, State, empty, wrap
from popdist_onnx.runtime.wiring import divide, gradients, overwritable_states, wire

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from popdist_onnx.runtime.compiled import Execution
    from popdist_onnx.runtime.graph_reader import Reading, Spec
    from popdist_onnx.runtime.wiring import Wiring


# Search for the first tensor that is not finite.

_KEPT_UP_TO = 1 << 30
"""Bytes of weights up to which those before a checked update are kept, as a second copy."""

_SINGLE = 4
"""Bytes of a number in single precision."""


def all_finite(arrays: Iterable[Array]) -> bool:
    """Whether no array holds NaN or an infinity."""
    return all(is_finite(array) for array in arrays)


def is_finite(array: Array) -> bool:
    """Whether an array holds neither NaN nor an infinity; always true for integers."""
    if not _is_float(array):
        return True
    # A sum is much faster than a test of each element; where the sum overflows, each element is
    # tested.
    if array.dtype.kind == "f" and array.dtype.itemsize >= _SINGLE:
        with np.errstate(all="ignore"):
            if np.isfinite(array.sum()):
                return True
    return bool(np.isfinite(array).all())


def checked_outputs(reading: Reading, wiring: Wiring) -> list[str]:
    """The outputs of a stage that show whether all of it is finite.

    Those are complete gradients, weights, and what changes with a micro-batch. Optimizer state is
    left out: what is not finite in it comes from a gradient, which a weight shows as well, or from
    its own overflow (see `Engine._check_next_state`).
    """
    states = [s for s, update in reading.states.items() if not update or _is_weight(s)]
    shown = {names.updated(state) for state in states} | set(wiring.stage.complete)
    return [
        name
        for name in wiring.fixed_outputs
        if name in shown and reading.spec(name).dtype.is_floating_point()
    ]


def _is_weight(name: str) -> bool:
    return names.reserved_prefix(name) is None


def blame(
    reading: Reading,
    wiring: Wiring,
    execution: Execution,
    located: Callable[[str], Buffer],
    overwritten: Collection[str],
) -> popart_runtime_error:
    """Computes a stage again; the error names the first tensor that is not finite.

    Of ``overwritten`` states the stage has changed the content: zeros stand for it. Where weights
    are among them, the error names the first of those that is not finite now.
    """
    for name in filter(_is_weight, overwritten):
        if not is_finite(array := located(name).array):
            return _error(
                name,
                array,
                "the update wrote it. So large weights are updated in place, so that the step "
                "cannot be computed again to name the operator",
            )
    inputs = {name: located(name) for name in wiring.stage.reads if name not in reading.constants}
    for name in overwritten:
        if name in inputs and not _is_weight(name):
            zeros = np.zeros_like(inputs[name].array)
            inputs[name] = wrap(zeros, reading.spec(name))
    for name, buffer in inputs.items():
        if not all_finite([buffer.array]):
            return _error(name, buffer.array, "it came into the step like that")
    steps = [reading.steps[i] for i in wiring.stage.steps]
    names = [n for step in steps for n in step.writes if n in reading.specs]
    model = extract(reading, wiring.stage, extra=names)
    session = make_session(model.SerializeToString(), execution)
    values = session.run_with_ort_values(names, {n: b.value for n, b in inputs.items()})
    made = dict(zip(names, values, strict=True))
    for step in steps:
        for name in step.writes:
            if name in made and not all_finite([array := made[name].numpy()]):
                node = step.node
                return _error(
                    name, array, f"the first one, made by {node.op_type} ({node.name or 'no name'})"
                )
    return popart_runtime_error(
        "PD566",
        "A tensor of the step is not finite, but it was when the step was computed again",
        hint="another thread may have changed the inputs meanwhile",
    )


def _error(name: str, array: Array, origin: str) -> popart_runtime_error:
    wide = array.astype(np.float64)
    return popart_runtime_error(
        "PD566",
        f"Tensor {name} is not finite: {origin}",
        value=f"{int(np.isnan(wide).sum())} NaN and {int(np.isinf(wide).sum())} infinite of "
        f"{array.size} elements",
        accepted="finite numbers (SessionOptions.enableFloatingPointChecks, or check_finite of "
        "popdist_onnx.train, is on)",
    )


def _require_numbers(inputs: Iterable[Spec]) -> None:
    """Refuses text among the inputs that a step reads."""
    for spec in inputs:
        if spec.dtype is ir.DataType.STRING:
            raise popart_exception(
                "PD573",
                f"input {spec.name} holds text, which a step cannot read",
                accepted="numbers",
                hint="compute what the model makes of the text beforehand, and give it these "
                "numbers as an input",
            )


def _is_float(array: Array) -> bool:
    # Neither whole numbers nor text; bfloat16 has a kind of its own.
    return array.dtype.kind not in "biuOSU"


# Random tensors, drawn on the host.
#
# Each tensor of each micro-batch has a random stream of its own, keyed by seed, replica,
# micro-batch and tensor. A replica's numbers do not depend on other replicas or on earlier draws,
# so that a resumed training draws the same numbers as an uninterrupted one.


_KEEP_BITS = 16


@dataclass(frozen=True)
class _Mask:
    name: str
    buffer: Buffer
    facts: dict[str, str]

    def number(self, key: str, default: float) -> float:
        return float(self.facts.get(f"{names.RANDOM}.{key}", default))


class Masks:
    """The random inputs of a graph.

    Args:
        reading: The graph.
    """

    def __init__(self, reading: Reading) -> None:
        self._masks = [
            _Mask(str(value.name), empty(reading.spec(str(value.name))), dict(value.metadata_props))
            for value in reading.model.graph.inputs
            if names.RANDOM in value.metadata_props
        ]

    def __len__(self) -> int:
        return len(self._masks)

    @property
    def buffers(self) -> dict[str, Buffer]:
        """The memory of each random tensor."""
        return {mask.name: mask.buffer for mask in self._masks}

    def draw(self, seed: int, replica: int, micro_batch: int) -> None:
        """Fills all tensors; ``replica`` and ``micro_batch`` count over the whole job."""
        for index, mask in enumerate(self._masks):
            words = np.random.SeedSequence(
                [seed % 2**64, _natural(mask.facts), replica, micro_batch, index]
            )
            _fill(mask, np.random.Generator(np.random.Philox(words)))


def _natural(facts: dict[str, str]) -> int:
    """The operator's own seed, a float attribute in ONNX, as the integer with the same bits."""
    return int(np.float32(facts.get(f"{names.RANDOM}.seed", 0)).view(np.uint32))


def _fill(mask: _Mask, generator: np.random.Generator) -> None:
    target = mask.buffer.array
    kind = mask.facts[names.RANDOM]
    if kind == "bernoulli":
        target[...] = _kept(mask.number("keep", 0.5), target.shape, generator)
    elif kind == "uniform":
        low, high = mask.number("low", 0), mask.number("high", 1)
        target[...] = generator.uniform(low, high, target.shape)
    elif kind == "key":
        target[...] = generator.integers(-(2**63), 2**63, target.shape, np.int64)
    else:
        mean, scale = mask.number("mean", 0), mask.number("scale", 1)
        target[...] = generator.normal(mean, scale, target.shape)


def _kept(probability: float, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    """True with the given probability; 16 random bits per element where they are exact enough."""
    scaled = probability * 2**_KEEP_BITS
    if scaled == int(scaled) and scaled < 2**_KEEP_BITS:
        return generator.integers(0, 2**_KEEP_BITS, shape, np.uint16) < int(scaled)
    kept: Array = generator.random(shape, np.float32) < np.float32(probability)
    return kept


class HostReduce(Protocol):
    """Sums gradients on the host; one round is `begin`, a `ready` for each, `finish`."""

    def begin(self) -> None:
        """Starts a round."""

    def ready(self, index: int) -> None:
        """Marks a gradient as complete in its memory."""

    def finish(self) -> None:
        """Waits until the memory of all gradients holds their sums."""


class Port(Protocol):
    """The source of a step's inputs and the target of its anchors."""

    def feed(self, run: int) -> dict[str, Array]:
        """The inputs of a run of the micro-batch part, by name."""

    def target(self, run: int, anchor: str) -> Array:
        """Memory for an anchor of a run; C-contiguous, of its type and shape."""

    def filled(self, run: int, anchor: str) -> None:
        """Reports that an anchor of a run is in its memory."""

    def used(self) -> None:
        """Reports that the inputs of a run are no longer needed."""


@dataclass(frozen=True)
class Layout:
    """The order of the micro-batches of one update.

    Attributes:
        accumulation: Micro-batches per update and replica.
        replicas: Replicas of this process, one after the other within a micro-batch.
        first_replica: Index of the first of them in the whole job.
    """

    accumulation: int = 1
    replicas: int = 1
    first_replica: int = 0

    @property
    def runs(self) -> int:
        """Runs of the micro-batch part per update."""
        return self.accumulation * self.replicas


class Engine:
    """A training graph with its memory.

    Args:
        reading: The graph.
        anchors: Tensors that are handed out for every micro-batch.
        layout: Micro-batches per update.
        execution: How ONNX Runtime is to run.
        check_finite: Whether a step stops at the first tensor that is not finite.
        progress: Is told how many of how many stages are compiled.

    Attributes:
        gradients: The exchange points with type and shape, in the order of completion.
        state: Weights and the like.
        scalars: The memory of the optimizer's scalars.
        seed: Of all random tensors.
        micro_batches: How many each replica has computed, by which its random streams are keyed.

    Raises:
        poplar_exception: ONNX Runtime does not take the graph.
    """

    def __init__(
        self,
        reading: Reading,
        *,
        execution: Execution,
        anchors: Sequence[str] = (),
        layout: Layout | None = None,
        check_finite: bool = False,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        self.reading = reading
        self.layout = layout or Layout()
        self.seed = 0
        self.micro_batches = 0
        stages = divide(reading, anchors, together=self.layout.runs == 1)
        self.gradients = gradients(reading, stages)
        self.masks = Masks(reading)
        self.scalars = {
            name: empty(reading.spec(name)) for name in reading.inputs if is_scalar_input(name)
        }
        self._memory: dict[str, Buffer] = {**self.masks.buffers, **self.scalars}
        self.data_inputs = [name for name in reading.inputs if name not in self._memory]
        self._check_finite = check_finite
        self._execution = execution
        self._reduce: HostReduce | None = None
        self._stages: list[Compiled | Collective] = []
        specs = [reading.spec(name) for name in reading.variables if _is_weight(name)]
        total = sum(math.prod(one.shape or ()) * one.dtype.itemsize for one in specs)
        for index, wiring in enumerate(wire(reading, stages, anchors, self.data_inputs)):
            progress(index, len(stages))
            if wiring.stage.collective:
                self._stages.append(Collective(reading, wiring))
                continue
            states = overwritable_states(reading, stages, index)
            summed: list[str] = []
            if check_finite:
                if total <= _KEPT_UP_TO:
                    # A stage that is not finite is computed again, from weights as they were.
                    states = [state for state in states if not _is_weight(state)]
                summed = checked_outputs(reading, wiring)
            self._stages.append(Compiled(reading, wiring, execution, states, summed))
        progress(len(stages), len(stages))
        in_place = frozenset().union(*(stage.overwritable for stage in self._stages))
        self.state = State(reading, in_place, self.layout.replicas)
        floats = [n for n in self.state.names if _is_float(self.state.read(n))]
        self._unchecked = itertools.cycle([n for n in floats if not _is_weight(n)])
        early = {n for stage in self._stages for n in (*stage.wiring.direct, *stage.wiring.copied)}
        self._echoed = [n for n in anchors if n in self.data_inputs or n in self.masks.buffers]
        self._late = [name for name in anchors if name not in {*early, *self._echoed}]
        read = {name for stage in self._stages for name in stage.wiring.data}
        self._read = [name for name in self.data_inputs if name in {*read, *self._echoed}]
        _require_numbers([reading.spec(name) for name in self._read])

    def connect(self, reduce: HostReduce, memory: Sequence[Array]) -> None:
        """Sets who sums gradients, and the C-contiguous memory of each gradient in `gradients`."""
        self._reduce = reduce
        for (copy, spec), array in zip(self.gradients, memory, strict=True):
            state = copy.source.removeprefix(names.UPDATED)
            is_state = state != copy.source and state in self.state
            buffer = self.state.place(state, array) if is_state else wrap(array, spec)
            self._memory[copy.source] = self._memory[copy.reduced] = buffer
        for stage in self._stages:
            stage.forget()

    def attach(self, arrays: Mapping[str, Array]) -> None:
        """Lets variables that no stage writes be the given memory."""
        for name, array in arrays.items():
            self.state.attach(name, array)
        for stage in self._stages:
            stage.forget()

    def update(self, port: Port) -> None:
        """Computes micro-batches, and one weight update if the graph has one.

        Raises:
            popart_runtime_error: The graph sends gradients to the host, and no other process is
                connected.
            poplar_runtime_error: An operator failed.
        """
        if self.gradients and self._reduce is None:
            raise popart_runtime_error(
                "PD565",
                "the gradients are to be summed on the host, but nothing is connected there",
                value=self.gradients[0][0].store,
                hint="create horovod's DistributedOptimizer and call insert_host_allreduce() "
                "before run, or leave hostAllReduce off",
            )
        if self._reduce is not None:
            self._reduce.begin()
        self.state.begin_update(self.layout.runs)
        for run in range(self.layout.runs):
            self._micro_batch(port, run)
        if self._reduce is not None:
            self._reduce.finish()
        for stage in self._stages:
            if stage.wiring.stage.update:
                self._run(stage, 0, {}, {})
        self.state.end_update()
        if self._check_finite:
            self._check_next_state()
        for run in range(self.layout.runs):
            for anchor in self._late:
                np.copyto(port.target(run, anchor), self._value(anchor, run))
                port.filled(run, anchor)
        self.micro_batches += self.layout.accumulation

    def _micro_batch(self, port: Port, run: int) -> None:
        step, replica = divmod(run, self.layout.replicas)
        if len(self.masks):
            whole = self.layout.first_replica + replica
            self.masks.draw(self.seed, whole, self.micro_batches + step)
        fed = port.feed(run)
        inputs = {name: wrap(fed[name], self.reading.spec(name)) for name in self._read}
        for name in self._echoed:
            np.copyto(port.target(run, name), (self._memory | inputs)[name].array)
            port.filled(run, name)
        last = run == self.layout.runs - 1
        sent = 0
        for stage in self._stages:
            if stage.wiring.stage.update:
                break
            direct = {
                name: wrap(port.target(run, name), self.reading.spec(name))
                for name in stage.wiring.direct
            }
            self._run(stage, replica, {name: inputs[name] for name in stage.wiring.data}, direct)
            for name in stage.wiring.copied:
                value = self._locate(name, replica=replica, update=False, write=True)
                np.copyto(port.target(run, name), value.array)
            for name in (*stage.wiring.direct, *stage.wiring.copied):
                port.filled(run, name)
            if last and self._reduce is not None:
                for _ in stage.wiring.stage.complete:
                    self._reduce.ready(sent)
                    sent += 1
        port.used()
        self.state.end_micro_batch(replica)

    def _run(
        self,
        stage: Compiled | Collective,
        replica: int,
        data: dict[str, Buffer],
        direct: dict[str, Buffer],
    ) -> None:
        locate = partial(self._locate, replica=replica, update=stage.wiring.stage.update)
        given = data | {name: self._memory[name] for name in stage.wiring.borrowed}
        self._memory |= stage.run(self.state.situation(replica), locate, given, direct)
        if self._check_finite and not all_finite(
            [*stage.sums, *(buffer.array for buffer in direct.values())]
        ):
            # The sum of finite numbers may overflow.
            written = [locate(name, write=True).array for name in stage.wiring.fixed_outputs]
            if not all_finite([*written, *(buffer.array for buffer in direct.values())]):
                raise blame(
                    self.reading,
                    stage.wiring,
                    self._execution,
                    lambda name: given.get(name) or locate(name, write=False),
                    stage.overwritable,
                )

    def _check_next_state(self) -> None:
        """Checks one optimizer state, another one after each update."""
        name = next(self._unchecked, None)
        if name is not None and not is_finite(array := self.state.read(name)):
            raise _error(name, array, "a gradient was so large that the update overflowed")

    def _locate(self, name: str, *, replica: int, update: bool, write: bool) -> Buffer:
        """The memory of a tensor that the host does not bring."""
        if name in self.state:
            return self.state.cell(name, replica).present
        state = name.removeprefix(names.UPDATED)
        if state in self.state:
            cell = self.state.cell(state, replica)
            # In an update, the last micro-batch's result is the present value already.
            return cell.present if update and not write else cell.next
        if name not in self._memory:
            self._memory[name] = empty(self.reading.spec(name))
        return self._memory[name]

    def _value(self, name: str, run: int) -> Array:
        """The value of a tensor after an update."""
        replica = run % self.layout.replicas
        if name in self.reading.constants:
            return self.reading.constant(name)
        return self._locate(name, replica=replica, update=True, write=False).array
