"""Runs a training graph: micro-batches, then the exchange, then the update."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from popdist_onnx.errors import popart_runtime_error
from popdist_onnx.graph import names
from popdist_onnx.optimizers.scalars import is_scalar_input
from popdist_onnx.runtime.cells import Array, Buffer, empty, wrap
from popdist_onnx.runtime.compiled import Compiled
from popdist_onnx.runtime.finite import all_finite, blame
from popdist_onnx.runtime.masks import Masks
from popdist_onnx.runtime.state import State
from popdist_onnx.runtime.wiring import divide, gradients, overwritable_states, wire

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from popdist_onnx.runtime.execution import Execution
    from popdist_onnx.runtime.reading import Reading


class HostReduce(Protocol):
    """Sums gradients on the host; one round is `begin`, a `ready` for each, `finish`."""

    def begin(self) -> None:
        """Starts a round."""

    def ready(self, index: int) -> None:
        """Says that a gradient is complete in its memory."""

    def finish(self) -> None:
        """Waits until the memory of all gradients holds their sums."""


class Port(Protocol):
    """Where a step's data come from and go to."""

    def feed(self, run: int) -> dict[str, Array]:
        """The inputs of a run of the micro-batch part, by name."""

    def target(self, run: int, anchor: str) -> Array:
        """Memory for an anchor of a run; C-contiguous, of its type and shape."""

    def filled(self, run: int, anchor: str) -> None:
        """Says that an anchor of a run is in its memory."""

    def used(self) -> None:
        """Says that the inputs of a run are no longer needed."""


@dataclass(frozen=True)
class Layout:
    """How the micro-batches of one update follow one another.

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
        popart_runtime_error: Nothing is to be computed.
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
        if not stages:
            raise popart_runtime_error(
                "PD562",
                "All operations in the main graph were pruned, nothing to compute",
                hint="anchor a tensor that an operator makes",
            )
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
        self._stages: list[Compiled] = []
        for index, wiring in enumerate(wire(reading, stages, anchors, self.data_inputs)):
            progress(index, len(stages))
            # Where numbers are checked, what they were made of has to stay for the search.
            states = [] if check_finite else overwritable_states(reading, stages, index)
            self._stages.append(Compiled(reading, wiring, execution, states))
        progress(len(stages), len(stages))
        in_place = frozenset().union(*(stage.overwritable for stage in self._stages))
        self.state = State(reading, in_place, self.layout.replicas)
        early = {n for stage in self._stages for n in (*stage.wiring.direct, *stage.wiring.copied)}
        self._echoed = [n for n in anchors if n in self.data_inputs or n in self.masks.buffers]
        self._late = [name for name in anchors if name not in {*early, *self._echoed}]

    def connect(self, reduce: HostReduce, memory: Sequence[Array]) -> None:
        """Says who sums gradients, and where they are to lie.

        Args:
            reduce: Who.
            memory: One C-contiguous array per gradient of `gradients`; what the graph computes is
                written there, and the sum is read there.
        """
        self._reduce = reduce
        for (copy, spec), array in zip(self.gradients, memory, strict=True):
            state = copy.source.removeprefix(names.UPDATED)
            is_state = state != copy.source and state in self.state
            buffer = self.state.place(state, array) if is_state else wrap(array, spec)
            self._memory[copy.source] = self._memory[copy.reduced] = buffer
        for stage in self._stages:
            stage.forget()

    def update(self, port: Port) -> None:
        """Computes micro-batches, and one weight update if the graph has one.

        Args:
            port: The data.

        Raises:
            popart_runtime_error: The graph sends gradients to the host, and nobody is connected.
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
        inputs = {name: wrap(fed[name], self.reading.spec(name)) for name in self.data_inputs}
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
        self, stage: Compiled, replica: int, data: dict[str, Buffer], direct: dict[str, Buffer]
    ) -> None:
        locate = partial(self._locate, replica=replica, update=stage.wiring.stage.update)
        given = data | {name: self._memory[name] for name in stage.wiring.borrowed}
        self._memory |= stage.run(self.state.situation(replica), locate, given, direct)
        if self._check_finite:
            written = [locate(name, write=True).array for name in stage.wiring.fixed_outputs]
            if not all_finite([*written, *(buffer.array for buffer in direct.values())]):
                raise blame(
                    self.reading,
                    stage.wiring,
                    self._execution,
                    lambda name: given.get(name) or locate(name, write=False),
                )

    def _locate(self, name: str, *, replica: int, update: bool, write: bool) -> Buffer:
        """The memory of a tensor that is not handed over by the host."""
        if name in self.state:
            return self.state.cell(name, replica).present
        state = name.removeprefix(names.UPDATED)
        if state in self.state:
            cell = self.state.cell(state, replica)
            # For an update, what the last micro-batch wrote is the present value already.
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
