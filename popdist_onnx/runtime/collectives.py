"""Sums gradients and broadcasts tensors over all processes.

`Allreduce` sums gradients with Horovod, `Streams` with callbacks of the program, `Collective` a
tensor that the graph itself sums. The other functions run Horovod's collectives on numpy arrays,
through its PyTorch binding or, without PyTorch, `popdist.exchange.mpi`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from popdist import backend
from popdist.agreement import digest as digest_of_bytes
from popdist.agreement import disagreements, listed
from popdist.checks import is_enabled
from popdist_onnx.checks import STATE
from popdist_onnx.errors import popart_exception
from popdist_onnx.runtime.stages import buckets
from popdist_onnx.runtime.wiring import LEAST_BUCKET

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from popdist_onnx.runtime.compiled import Locate
    from popdist_onnx.runtime.graph_reader import HostCopy, Reading, Spec
    from popdist_onnx.runtime.state import Array, Buffer
    from popdist_onnx.runtime.wiring import Wiring


_SHARE_WEIGHTS = (
    "share the first weights: popdist_onnx.horovod.broadcast_weights(session), then "
    "session.weightsFromHost()"
)
_BUILD_THE_SAME = "build the same model, options and optimizer on every instance"


class Allreduce:
    """An exchange of all gradients of a session through Horovod.

    Gradients lie back to back in flat buffers, where the graph writes and reads them. Before the
    first exchange the instances compare the facts of their trainings.

    Args:
        gradients: The exchange points, in the order of completion.
        horovod: The module ``horovod.torch``, or `popdist.exchange.mpi`, initialised.
        average: Whether the sum is divided by the number of instances.
        facts: What must be equal on all instances, asked for before the first exchange.
        name: Prefix of the names of Horovod's operations; equal on all instances.
    """

    def __init__(
        self,
        gradients: Sequence[tuple[HostCopy, Spec]],
        horovod: Any,
        *,
        average: bool,
        facts: Callable[[], Mapping[str, str]],
        name: str,
    ) -> None:
        from popdist.exchange import Exchange, Item, allocate, plan

        items = [
            Item(copy.gradient, int(np.prod(spec.shape or ())), _torch_name(spec), _bytes(spec))
            for copy, spec in gradients
        ]
        # What a stage completes is sent while the next stage computes.
        sizes = {str(i): item.elements * item.itemsize for i, item in enumerate(items)}
        groups = buckets(sizes, least_bytes=LEAST_BUCKET)
        layout = plan(items, ends={int(group[-1]) for group in groups})
        self._arenas: list[Any]
        if backend.takes_arrays(horovod):
            types = {_torch_name(spec): spec.dtype.numpy() for _, spec in gradients}
            self._arenas = [np.zeros(one.elements, types[one.dtype]) for one in layout.arenas]
        else:
            self._arenas = list(allocate(layout))
        self._facts: Callable[[], Mapping[str, str]] | None = facts
        self._horovod = horovod
        self._exchange = Exchange(layout, self._arenas, horovod, name=name, average=average)
        flat = [_as_numpy(arena) for arena in self._arenas]
        self.memory: list[Array] = [
            flat[slot.arena][slot.start : slot.stop]
            .view(spec.dtype.numpy())
            .reshape(spec.shape or ())
            for slot, (_, spec) in zip(layout.slots, gradients, strict=True)
        ]

    def begin(self) -> None:
        """Starts a round.

        Raises:
            popart_exception: The facts differ between instances.
        """
        if self._facts is not None:
            facts, self._facts = self._facts, None
            require_agreement(facts(), self._horovod)
        self._exchange.begin()

    def ready(self, index: int) -> None:
        """Marks a gradient as complete; full slices are sent at once."""
        self._exchange.ready(index)

    def finish(self) -> None:
        """Waits until all sums have arrived."""
        self._exchange.finish()


def require_agreement(facts: Mapping[str, str], horovod: Any, *, hint: str | None = None) -> None:
    """Compares facts over all instances; every instance must call it.

    Raises:
        popart_exception: Instances differ; raised on all of them.
    """
    from popdist.exchange import gather

    found = disagreements(facts, gather(horovod))
    apart = [row for row in found if not row.name.startswith("values of ")]
    values = not apart
    if not is_enabled(STATE):
        found = apart
    if not found:
        return
    raise popart_exception(
        "PD007",
        f"the instances are about to train different things:{listed(found)}",
        hint=hint or (_SHARE_WEIGHTS if values else _BUILD_THE_SAME),
    )


def digest(array: Array) -> str:
    """A short text for an array's content; shape and type do not count."""
    return digest_of_bytes(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _torch_name(spec: Spec) -> str:
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(spec.dtype.name, spec.dtype.name.lower())


def _bytes(spec: Spec) -> int:
    return np.dtype(spec.dtype.numpy()).itemsize


def _as_numpy(arena: Any) -> Array:
    if isinstance(arena, np.ndarray):
        return arena
    import torch

    # numpy has no bfloat16 of its own; the bits are the same whatever they are called.
    if arena.dtype == torch.bfloat16:
        arena = arena.view(torch.int16)
    array: Array = arena.numpy()
    return array


# `isbuiltin` of types that an extension such as ml_dtypes added to numpy.
_TAUGHT = 2


def moved(array: Array, horovod: Any, collective: Callable[[Any], Any]) -> Array:
    """Runs a collective that moves content without arithmetic, on an array of any type."""
    from popdist.exchange import on_array

    array = np.asarray(array)
    # Horovod needs at least one dimension and has no bfloat16: the bits are sent as int16.
    flat = np.ascontiguousarray(array).reshape(array.shape or (1,)).copy()
    raw = flat.view(np.int16) if array.dtype.isbuiltin == _TAUGHT else flat
    result: Array = on_array(raw, horovod, collective).view(array.dtype)
    return result.reshape(array.shape) if result.size == array.size else np.asarray(result)


def combined(array: Array, horovod: Any, collective: Callable[[Any], Any]) -> Array:
    """Runs a collective that calculates; bfloat16 is calculated in float32."""
    array = np.asarray(array)
    if array.dtype.isbuiltin != _TAUGHT:
        return moved(array, horovod, collective)
    return moved(array.astype(np.float32), horovod, collective).astype(array.dtype)


def broadcast_tensors(data: Mapping[str, Array], root_rank: int, horovod: Any) -> dict[str, Array]:
    """Copies the tensors of process ``root_rank`` to all processes.

    Raises:
        popart_exception: There is no such process, or the processes have other tensors.
    """
    require_rank(root_rank, horovod.size())
    require_agreement(
        {f"variable {n}": f"{a.dtype.name} {list(a.shape)}" for n, a in data.items()}, horovod
    )

    def broadcast(name: str, array: Array) -> Array:
        label = f"popdist_onnx.broadcast.{name}"
        return moved(array, horovod, lambda one: horovod.broadcast(one, root_rank, name=label))

    return {name: broadcast(name, array) for name, array in data.items()}


def require_rank(rank: int, size: int) -> None:
    """Checks that a process of this rank exists.

    Raises:
        popart_exception: There is no process of this rank.
    """
    if not 0 <= rank < size:
        raise popart_exception(
            "PD578", "there is no process of this rank", value=rank, accepted=f"0 to {size - 1}"
        )


# Sums over instances that the graph asks for.


class Collective:
    """A stage that sums tensors over the instances of the job; it has the form of `Compiled`.

    Args:
        reading: The graph.
        wiring: The stage, and where its tensors lie.

    Attributes:
        overwritable: None: every sum has memory of its own.
        sums: None: a sum is checked where it is read.
    """

    def __init__(self, reading: Reading, wiring: Wiring) -> None:
        self.wiring = wiring
        self.overwritable: frozenset[str] = frozenset()
        self.sums: list[Array] = []
        self._reading = reading

    def forget(self) -> None:
        """Does nothing: no memory is bound."""

    def run(
        self,
        situation: Hashable,
        locate: Locate,
        inputs: Mapping[str, Buffer],
        outputs: Mapping[str, Buffer],
    ) -> dict[str, Buffer]:
        """Sums each tensor of the stage; every instance must come here.

        Raises:
            popart_exception: No other instance can be reached.
        """
        del situation
        for index in self.wiring.stage.steps:
            node = self._reading.steps[index].node
            source, result = str(node.inputs[0].name), str(node.outputs[0].name)  # type: ignore[union-attr]
            if source in self._reading.constants:
                array = self._reading.constant(source)
            else:
                array = (inputs.get(source) or locate(source, write=False)).array
            group = node.attributes.get_ints("commGroup", [])
            target = outputs.get(result) or locate(result, write=True)
            np.copyto(target.array, _summed(array, result, group))
        return {}


def _summed(array: Array, name: str, group: Sequence[int]) -> Array:
    """The sum over the instances that belong together with this one."""
    horovod = backend.connect(backend.ARRAYS)
    if horovod is None:
        raise popart_exception(
            "PD569",
            f"replicatedallreduce '{name}' is to sum over replicas in other processes, but there "
            "are none",
            hint="start the program with poprun, and let "
            "popdist.popart.configureSessionOptions(options) set them",
        )
    label = f"popdist_onnx.replicatedallreduce.{name}"
    members = group_members(list(group), horovod.rank(), horovod.size())
    if len(members) == horovod.size():
        return combined(
            array, horovod, lambda one: horovod.allreduce(one, op=horovod.Sum, name=label)
        )
    parts = moved(array[None], horovod, lambda one: horovod.allgather(one, name=label))
    wide = np.float32 if array.dtype.itemsize < _SINGLE else array.dtype
    total: Array = parts[members].astype(wide).sum(0).astype(array.dtype)
    return total


_SINGLE = 4
"""Bytes of a number in single precision."""

_CONSECUTIVE, _ORTHOGONAL = 1, 2


def group_members(group: Sequence[int], rank: int, size: int) -> list[int]:
    """The ranks that sum with one: ``group`` is ``[CommGroupType, size of a group]``, or empty.

    Raises:
        popart_exception: The instances cannot be divided like that.
    """
    kind, count = (*group, 0, 0)[:2]
    if kind == 0 or count in (0, size):
        return list(range(size))
    if kind not in (_CONSECUTIVE, _ORTHOGONAL) or count < 1 or size % count:
        raise popart_exception(
            "PD591",
            f"replicatedallreduce cannot divide {size} replicas into such groups",
            value=list(group),
            accepted=f"[CommGroupType, a divisor of {size}]",
        )
    apart = size // count
    if kind == _CONSECUTIVE:
        first = rank - rank % count
        return list(range(first, first + count))
    return list(range(rank % apart, size, apart))


# Callbacks of the program that sum the gradients in place of Horovod.


class Streams:
    """The streams of gradients to the host and back.

    A store callback gets the memory of a gradient as soon as it is complete, a load callback the
    same memory to fill, after all stores.

    Args:
        gradients: The exchange points, in the order of completion.
        replicas: Local replicas; each may have a store callback, and all see the same sum.
    """

    def __init__(self, gradients: Sequence[tuple[HostCopy, Spec]], replicas: int) -> None:
        self._gradients = [copy for copy, _ in gradients]
        self._replicas = replicas
        self._callbacks: dict[tuple[str, int], Callable[[Array], None]] = {}
        self.memory = [np.zeros(spec.shape or (), spec.dtype.numpy()) for _, spec in gradients]

    @property
    def handles(self) -> list[str]:
        """All streams, stores before loads."""
        return [c.store for c in self._gradients] + [c.load for c in self._gradients]

    @property
    def connected(self) -> bool:
        """Whether every stream has a callback."""
        return all((handle, 0) in self._callbacks for handle in self.handles)

    def connect(self, handle: str, callback: Callable[[Array], None], index: int) -> None:
        """Sets the callback of a stream, called with the memory of the gradient.

        Raises:
            popart_exception: There is no such stream or index.
        """
        if handle not in self.handles:
            raise popart_exception(
                "PD567",
                f"there is no stream '{handle}'",
                accepted=", ".join(self.handles[:6]),
                hint="session.getHostReduceStreamIds() lists them after prepareDevice()",
            )
        last = self._replicas - 1 if handle in {c.store for c in self._gradients} else 0
        if not 0 <= index <= last:
            raise popart_exception(
                "PD567",
                f"stream '{handle}' has no such index",
                value=index,
                accepted=f"0 to {last}",
            )
        self._callbacks[handle, index] = callback

    def begin(self) -> None:
        """Does nothing: `ready` starts each store."""

    def ready(self, index: int) -> None:
        """Calls the store callbacks of a gradient."""
        handle = self._gradients[index].store
        for replica in range(self._replicas):
            if (handle, replica) in self._callbacks:
                self._callbacks[handle, replica](self.memory[index])

    def finish(self) -> None:
        """Calls the load callbacks of all gradients."""
        for copy, memory in zip(self._gradients, self.memory, strict=True):
            self._callbacks[copy.load, 0](memory)
