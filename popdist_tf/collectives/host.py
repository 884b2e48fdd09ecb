"""Sum, broadcast and gather over all instances, on the host, through Horovod.

Horovod's TensorFlow ops need three additions, which are here too: carriers for dtypes that Horovod
rejects, gates that keep TensorFlow from moving or pruning the ops, and names that pair the ranks'
ops.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util

from popdist_tf.collectives.names import collective_name
from popdist_tf.errors import CollectiveError

if TYPE_CHECKING:
    from collections.abc import Callable


# Carriers: values of a dtype that Horovod does not support are sent as another dtype.


_KNOWN = {
    tf.uint8,
    tf.int8,
    tf.int32,
    tf.int64,
    tf.float16,
    tf.float32,
    tf.float64,
}
# Each of these dtypes represents every value of the original exactly; sums are rounded back.
_REDUCED_AS = {
    tf.bfloat16: tf.float32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
}
_PAIRS = {tf.complex64: tf.float32, tf.complex128: tf.float64}


def carrier(tensor: Any, *, reduces: bool) -> tuple[Any, Callable[[Any], Any]]:
    """A tensor that Horovod can send, and the function that converts Horovod's result back.

    ``reduces`` says whether the operation adds values.

    Raises:
        CollectiveError: The dtype has no sum, or cannot be sent at all.
    """
    dtype = tensor.dtype.base_dtype
    if dtype in _KNOWN:
        return tensor, tf.identity
    if dtype in _PAIRS:
        parts = tf.stack([tf.math.real(tensor), tf.math.imag(tensor)], axis=-1)
        return parts, lambda answer: tf.complex(answer[..., 0], answer[..., 1])
    if dtype in _REDUCED_AS:
        return tf.cast(tensor, _REDUCED_AS[dtype]), lambda answer: tf.cast(answer, dtype)
    if dtype == tf.bool and not reduces:
        return tf.cast(tensor, tf.uint8), lambda answer: tf.cast(answer, tf.bool)
    raise CollectiveError(
        "PD410",
        f"a tensor of dtype {dtype.name} cannot be "
        + ("summed over instances" if reduces else "sent between instances"),
        value=getattr(tensor, "name", None) if not tf.executing_eagerly() else tensor.shape,
        accepted="floating point and complex numbers, integers of up to 64 bits"
        + ("" if reduces else ", bool"),
        hint="tf.cast it to tf.int32 first" if dtype == tf.bool else None,
    )


# Gates: keeping TensorFlow's optimiser and scheduler from moving collectives.
#
# Horovod registers its ops as stateless, from which TensorFlow draws three wrong conclusions:
#
# * An op whose input is constant may run while the graph is optimised. Ranks with different
#   constants then wait for different operations, forever.
# * An op whose result is unused on one rank may be pruned there.
# * An op in a loop may start again, under the same name, before its previous run has ended.
#   Horovod refuses that.
#
# A stateful identity op in front of a collective and behind it prevents all three. The op is
# excepted from the order in which TensorFlow runs stateful ops, so that gradients are still sent
# as soon as they exist.


def gated(value: Any) -> Any:
    """The same tensor through an op that TensorFlow neither folds, prunes nor repeats early."""
    if tf.executing_eagerly():
        return value
    gate = tf.raw_ops.GuaranteeConst(input=value)
    dependencies = getattr(gate.graph, "experimental_acd_manager", None)
    if dependencies is not None:
        dependencies.run_independently(gate.op)
    return gate


# Gradients of collectives: collectives with names and gates of their own.


def with_gradient(
    function: Callable[[Any], Any], gradient: Callable[[Any], Any], source: Any
) -> Any:
    """Calls a function of ``source`` with a gradient function from the result to ``source``."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if graph is None or graph.building_function:

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def called(tensor: Any) -> tuple[Any, Callable[[Any], Any]]:
            return function(tensor), gradient

        return called(source)
    # In a graph of TensorFlow 1, `tf.custom_gradient` looks for the variables that the tensor
    # depends on, and fails where one belongs to a second local replica.
    name = f"PopdistCollective{ops.uid()}"

    @tf.RegisterGradient(name)  # type: ignore[untyped-decorator]
    def _backward(op: Any, upstream: Any, _: Any) -> tuple[None, Any]:
        del op
        return None, gradient(upstream)

    with graph.gradient_override_map({"IdentityN": name}):
        return tf.raw_ops.IdentityN(input=[function(source), source])[0]


# XLA compiles no communication between processes.


def is_for_xla() -> bool:
    """Whether the function that is being built is one that XLA is to compile."""
    graph = tf.compat.v1.get_default_graph
    return not tf.executing_eagerly() and bool(
        control_flow_util.GraphOrParentsInXlaContext(graph())
    )


def refuse_xla(kind: str) -> None:
    """Refuses to build a collective into a function that XLA is to compile.

    TensorFlow would fail much later, with a message about a missing kernel.

    Raises:
        CollectiveError: The function that is being built has ``jit_compile=True``.
    """
    if is_for_xla():
        raise CollectiveError(
            "PD410",
            f"XLA cannot compile a function that communicates with other instances ({kind})",
            value="jit_compile=True",
            accepted="jit_compile=False around strategy.run, reductions and training steps",
            hint="leave jit_compile away from compile() or tf.function; functions inside that only "
            "compute may have it",
        )


@dataclass(frozen=True)
class HostCollectives:
    """The collectives of one job.

    Attributes:
        horovod: The ``horovod.tensorflow`` module, initialised; None in a job of one instance.
        size: Instances.
        rank: This instance.
        built: How many sums and gathers have been built, or run in eager code.
    """

    horovod: Any | None
    size: int
    rank: int
    built: Counter[str] = field(default_factory=Counter, compare=False, repr=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> HostCollectives:
        # TensorFlow copies strategies with the settings of an estimator; the copies share the job.
        return self

    def allreduce(self, tensor: Any, tensor_name: str | None = None) -> Any:
        """Sums a tensor over all instances, in its own dtype; its gradient is summed likewise.

        ``tensor_name`` pairs the instances' calls; None pairs them by their order.
        """
        return self._call("allreduce", tensor, self._sum, self._sum, tensor_name)

    def broadcast(self, tensor: Any, root_rank: int = 0, tensor_name: str | None = None) -> Any:
        """The root's tensor, on every instance; its gradient is sent to the root alone.

        Every instance passes the same shape and dtype, of any kind but strings. ``tensor_name``
        pairs the instances' calls; None pairs them by their order.
        """

        def send(value: Any, name: str | None) -> Any:
            assert self.horovod is not None  # noqa: S101 - `_call` has answered a job of one
            return self.horovod.broadcast(value, root_rank, name=name, ignore_name_scope=True)

        def collect(gradient: Any, name: str | None) -> Any:
            total = self._sum(gradient, name)
            return total if self.rank == root_rank else tf.zeros_like(total)

        return self._call("broadcast", tensor, send, collect, tensor_name)

    def allgather(
        self, tensor: Any, name: str | None = None, tensor_name: str | None = None
    ) -> Any:
        """Concatenates the instances' tensors along their first dimension, in rank order.

        The first dimension may differ between instances. ``name`` is the operation's whole name,
        for operations that instances may build at different places of their graphs. With None, the
        name consists of ``tensor_name`` and the order. The gradient is this instance's rows of the
        sum of all instances' gradients.
        """
        if self.horovod is None:
            return tf.identity(tensor)
        if tf.executing_eagerly() and tensor_name is not None:

            def called(own: Any) -> Any:
                return self.allgather(own, name, tensor_name)

            return tf.function(called, autograph=False)(tensor)

        def gather(source: Any) -> Any:
            return self._gathered("allgather", source, name, tensor_name)

        def own_rows(upstream: Any) -> Any:
            kind = "allgather_gradient"
            total = self._run(kind, upstream, self._sum, tensor_name)
            rows = self._gathered(f"{kind}_rows", tf.shape(source)[:1], None, tensor_name)
            return tf.slice(
                total,
                tf.pad(tf.reduce_sum(rows[: self.rank])[tf.newaxis], [[0, tf.rank(total) - 1]]),
                tf.shape(source),
            )

        source = tf.convert_to_tensor(tensor)
        has_gradient = source.dtype.is_floating or source.dtype.is_complex
        return with_gradient(gather, own_rows, source) if has_gradient else gather(source)

    def _gathered(self, kind: str, source: Any, name: str | None, tensor_name: str | None) -> Any:
        assert self.horovod is not None  # noqa: S101 - `allgather` has answered a job of one
        self.built["gather"] += 1
        refuse_xla(kind)
        with tf.device("CPU:0"):
            value, restore = carrier(source, reduces=False)
            name = name or collective_name(kind, tensor_name)
            answer = self.horovod.allgather(gated(value), name=name, ignore_name_scope=True)
            return restore(gated(answer))

    def sum_by_name(self, tensor: Any, name: str) -> Any:
        """Sums a tensor that instances may build at different places; its name pairs the calls."""
        if self.horovod is None:
            return tf.identity(tensor)
        with tf.device("CPU:0"):
            return gated(self._sum(gated(tensor), name))

    def _sum(self, value: Any, name: str | None) -> Any:
        assert self.horovod is not None  # noqa: S101 - `_call` has answered a job of one
        self.built["sum"] += 1
        # A tensor in its own group is not fused with others (see `popdist.exchange.allreduce`).
        reduced = self.horovod.grouped_allreduce(
            [value], op=self.horovod.Sum, name=name, ignore_name_scope=True
        )
        return reduced[0]

    def _call(
        self,
        kind: str,
        tensor: Any,
        forward: Callable[[Any, str | None], Any],
        backward: Callable[[Any, str | None], Any],
        tensor_name: str | None,
    ) -> Any:
        if self.horovod is None:
            return tf.identity(tensor)

        def exchange(source: Any) -> Any:
            return self._run(kind, source, forward, tensor_name)

        def gradient(upstream: Any) -> Any:
            return self._run(f"{kind}_gradient", upstream, backward, tensor_name)

        def call(source: Any) -> Any:
            return with_gradient(exchange, gradient, source)

        source = tf.convert_to_tensor(tensor)
        # In eager code, Horovod does not pair calls by their names.
        by_name = tf.executing_eagerly() and tensor_name is not None
        return tf.function(call, autograph=False)(source) if by_name else call(source)

    @staticmethod
    def _run(
        kind: str,
        tensor: Any,
        operation: Callable[[Any, str | None], Any],
        tensor_name: str | None,
    ) -> Any:
        refuse_xla(kind)
        # With a GPU, TensorFlow might otherwise place Horovod's kernel (and the copies) there.
        with tf.device("CPU:0"):
            value, restore = carrier(tensor, reduces=not kind.startswith("broadcast"))
            name = collective_name(kind, tensor_name)
            return restore(gated(operation(gated(value), name)))
