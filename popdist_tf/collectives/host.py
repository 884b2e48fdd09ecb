"""Sum, broadcast and gather over all instances, on the host, through the real Horovod.

Horovod's TensorFlow ops need care, see `gate` and `naming`; and they reject some dtypes (bool,
bfloat16, complex numbers, strings), see `carriers`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util

from popdist_tf.errors import CollectiveError

if TYPE_CHECKING:
    from collections.abc import Callable


# How values of dtypes that Horovod does not know travel: as values of one that it knows.


_KNOWN = {
    tf.uint8,
    tf.int8,
    tf.int32,
    tf.int64,
    tf.float16,
    tf.float32,
    tf.float64,
}
# Each of these holds every value of the other exactly; sums are rounded back to the original.
_REDUCED_AS = {
    tf.bfloat16: tf.float32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
}
_PAIRS = {tf.complex64: tf.float32, tf.complex128: tf.float64}


def carrier(tensor: Any, *, reduces: bool) -> tuple[Any, Callable[[Any], Any]]:
    """Turns a tensor into one that Horovod can carry.

    Args:
        tensor: What is to travel.
        reduces: Whether values are added on the way.

    Returns:
        The tensor to hand to Horovod, and the function that turns Horovod's answer back.

    Raises:
        CollectiveError: The dtype has no sum, or cannot travel at all.
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


# Keeping TensorFlow's optimiser and scheduler from moving collectives.
#
# Horovod registers its ops as stateless, from which TensorFlow draws three wrong conclusions:
#
# * One whose input is constant may run while the graph is optimised, instead of when it is its
# turn.   Ranks with different constants then wait for different operations, forever. * One whose
# result is not used may be left out, on the rank where it is not used. * One in a loop need not
# have ended before the next iteration starts it again under the same name,   which Horovod
# refuses.
#
# An op that passes its value on and counts as stateful, in front of a collective and behind it,
# stops all three. It is excepted from the order in which TensorFlow runs stateful ops, so that
# gradients still travel as soon as they exist.


def gated(value: Any) -> Any:
    """Passes a tensor on through an op that TensorFlow neither folds, prunes nor repeats early.

    Args:
        value: A tensor.

    Returns:
        The same value. In eager code, where nothing is moved, the tensor itself.
    """
    if tf.executing_eagerly():
        return value
    gate = tf.raw_ops.GuaranteeConst(input=value)
    dependencies = getattr(gate.graph, "experimental_acd_manager", None)
    if dependencies is not None:
        dependencies.run_independently(gate.op)
    return gate


# Gradients of collectives, which are collectives with names and gates of their own.


def with_gradient(
    function: Callable[[Any], Any], gradient: Callable[[Any], Any], source: Any
) -> Any:
    """Calls a function of a tensor, and says what its gradient is.

    Args:
        function: What is called.
        gradient: From the gradient of the result to that of ``source``.
        source: The tensor.

    Returns:
        What ``function`` returned.
    """
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


# Names by which the ranks of a job find each other's collectives.
#
# Horovod matches operations across ranks by the name of the graph node. Names that TensorFlow
# derives from input tensors shift as soon as one rank builds an op, a layer or an optimizer more
# than the others, and the job stalls. Ours count collectives in the outermost graph that is being
# built, so they depend on nothing but the order of the collectives themselves.


_COUNTERS = "_popdist_collectives"
_NO_LETTER = re.compile(r"[^A-Za-z0-9_.-]")


def collective_name(kind: str, tensor_name: str | None = None) -> str | None:
    """A name for the next collective of the graph that is being built.

    Args:
        kind: What the collective does, such as ``allreduce``.
        tensor_name: By which the program pairs the collective with those of the other ranks; None
            where the order of the collectives pairs them.

    Returns:
        A name, the same on every rank that builds the same sequence of collectives (of that
        tensor name); None in eager code, where Horovod pairs operations by their order and
        ignores names.
    """
    if tf.executing_eagerly():
        return None
    if tensor_name is not None:
        # Horovod takes what stands behind the last slash for the name.
        kind = f"{kind}_{_NO_LETTER.sub('.', tensor_name)}"
    # The counters live and die with their graph. (A graph collection would end up in checkpoints.)
    graph = _outermost(tf.compat.v1.get_default_graph())
    if not hasattr(graph, _COUNTERS):
        setattr(graph, _COUNTERS, {})
    counters = getattr(graph, _COUNTERS)
    index = counters.get(kind, 0)
    counters[kind] = index + 1
    return f"popdist_{kind}_{index}"


def pairing_name(value: Any, explicit: str | None) -> str | None:
    """The name by which the published collectives pair a program's tensor.

    Programs of several ranks may call them in another order on each rank.

    Args:
        value: What the program hands in.
        explicit: The name that it gives, or None.

    Returns:
        The given name, else the tensor's or variable's own; None in eager code, where tensors
        have no names.
    """
    if explicit is not None:
        return explicit
    if tf.executing_eagerly():
        return None
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else None


def _outermost(graph: Any) -> Any:
    while True:
        outer = getattr(graph, "outer_graph", None)
        # A function that is called from eager code hangs off TensorFlow's global default graph. A
        # count kept there would drift as soon as one rank retraces more often than another.
        if outer is None or not (outer.building_function or _is_v1_graph(outer)):
            return graph
        graph = outer


def _is_v1_graph(graph: Any) -> bool:
    return not tf.compat.v1.executing_eagerly_outside_functions() and not graph.building_function


# XLA compiles no communication between processes.


def refuse_xla(kind: str) -> None:
    """Refuses to build a collective into a function that XLA is to compile.

    TensorFlow would find out much later, and say that a kernel is missing.

    Args:
        kind: What the collective does, for the message.

    Raises:
        CollectiveError: The function that is being built has ``jit_compile=True``.
    """
    if tf.executing_eagerly():
        return
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
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
    """

    horovod: Any | None
    size: int
    rank: int

    def __deepcopy__(self, memo: dict[int, Any]) -> HostCollectives:
        # TensorFlow copies strategies with the settings of an estimator; the job stays the same.
        return self

    def allreduce(self, tensor: Any, tensor_name: str | None = None) -> Any:
        """Sums a tensor over all instances.

        Args:
            tensor: Any shape and numeric dtype, the same on every instance.
            tensor_name: By which the instances' calls find each other; None for their order.

        Returns:
            The sum, in the dtype of ``tensor``. It can be differentiated: its gradient is the sum
            of the instances' gradients.
        """
        return self._call("allreduce", tensor, self._sum, self._sum, tensor_name)

    def broadcast(self, tensor: Any, root_rank: int = 0, tensor_name: str | None = None) -> Any:
        """The root's tensor, on every instance.

        Args:
            tensor: Any shape and dtype but strings, the same on every instance.
            root_rank: The instance whose value counts.
            tensor_name: By which the instances' calls find each other; None for their order.

        Returns:
            The root's value. Its gradient reaches the root alone.
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

        Args:
            tensor: At least one dimension; the first may differ between instances.
            name: The whole name of the operation, for one that instances may build at different
                places of their graphs; None for one made of ``tensor_name`` and the order.
            tensor_name: By which the instances' calls find each other; None for their order.

        Returns:
            The concatenation. Its gradient is this instance's rows of the sum of the instances'
            gradients.
        """
        if self.horovod is None:
            return tf.identity(tensor)
        if tf.executing_eagerly() and tensor_name is not None:
            return tf.function(lambda own: self.allgather(own, name, tensor_name))(tensor)

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
        refuse_xla(kind)
        with tf.device("CPU:0"):
            value, restore = carrier(source, reduces=False)
            name = name or collective_name(kind, tensor_name)
            answer = self.horovod.allgather(gated(value), name=name, ignore_name_scope=True)
            return restore(gated(answer))

    def sum_by_name(self, tensor: Any, name: str) -> Any:
        """Sums a tensor that instances may hand in from different places of their graphs.

        Args:
            tensor: Of a dtype that Horovod knows.
            name: By which the instances' calls find each other.

        Returns:
            The sum.
        """
        if self.horovod is None:
            return tf.identity(tensor)
        with tf.device("CPU:0"):
            return gated(self._sum(gated(tensor), name))

    def _sum(self, value: Any, name: str | None) -> Any:
        assert self.horovod is not None  # noqa: S101 - `_call` has answered a job of one
        # A group of its own is not copied together with others (see `popdist.exchange.allreduce`).
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
        # Horovod finds no call of eager code by its name.
        by_name = tf.executing_eagerly() and tensor_name is not None
        return tf.function(call)(source) if by_name else call(source)

    @staticmethod
    def _run(
        kind: str,
        tensor: Any,
        operation: Callable[[Any, str | None], Any],
        tensor_name: str | None,
    ) -> Any:
        refuse_xla(kind)
        # Beside a GPU, TensorFlow might otherwise place Horovod's kernel (and the copies) there.
        with tf.device("CPU:0"):
            value, restore = carrier(tensor, reduces=not kind.startswith("broadcast"))
            name = collective_name(kind, tensor_name)
            return restore(gated(operation(gated(value), name)))
