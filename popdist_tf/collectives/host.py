"""Sum, broadcast and gather over all instances, on the host, through the real Horovod.

Horovod's TensorFlow ops need care, see `gate` and `naming`; and they reject some dtypes (bool,
bfloat16, complex numbers, strings), see `carriers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from popdist_tf.collectives.carriers import carrier
from popdist_tf.collectives.gate import gated
from popdist_tf.collectives.gradient import with_gradient
from popdist_tf.collectives.naming import collective_name
from popdist_tf.collectives.xla import refuse_xla

if TYPE_CHECKING:
    from collections.abc import Callable


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

    def allreduce(self, tensor: Any) -> Any:
        """Sums a tensor over all instances.

        Args:
            tensor: Any shape and numeric dtype, the same on every instance.

        Returns:
            The sum, in the dtype of ``tensor``. It can be differentiated: its gradient is the sum
            of the instances' gradients.
        """
        return self._call("allreduce", tensor, self._sum, self._sum)

    def broadcast(self, tensor: Any, root_rank: int = 0) -> Any:
        """The root's tensor, on every instance.

        Args:
            tensor: Any shape and dtype but strings, the same on every instance.
            root_rank: The instance whose value counts.

        Returns:
            The root's value. Its gradient reaches the root alone.
        """

        def send(value: Any, name: str | None) -> Any:
            assert self.horovod is not None  # noqa: S101 - `_call` has answered a job of one
            return self.horovod.broadcast(value, root_rank, name=name, ignore_name_scope=True)

        def collect(gradient: Any, name: str | None) -> Any:
            total = self._sum(gradient, name)
            return total if self.rank == root_rank else tf.zeros_like(total)

        return self._call("broadcast", tensor, send, collect)

    def allgather(self, tensor: Any, name: str | None = None) -> Any:
        """Concatenates the instances' tensors along their first dimension, in rank order.

        Args:
            tensor: At least one dimension; the first may differ between instances.
            name: By which the instances' calls find each other; None for their order in the graph.

        Returns:
            The concatenation.
        """
        if self.horovod is None:
            return tf.identity(tensor)
        horovod = self.horovod
        refuse_xla("allgather")
        with tf.device("CPU:0"):
            value, restore = carrier(tf.convert_to_tensor(tensor), reduces=False)
            name = name or collective_name("allgather")
            answer = horovod.allgather(gated(value), name=name, ignore_name_scope=True)
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
        return self.horovod.allreduce(value, op=self.horovod.Sum, name=name, ignore_name_scope=True)

    def _call(
        self,
        kind: str,
        tensor: Any,
        forward: Callable[[Any, str | None], Any],
        backward: Callable[[Any, str | None], Any],
    ) -> Any:
        if self.horovod is None:
            return tf.identity(tensor)

        def exchange(source: Any) -> Any:
            return self._run(kind, source, forward)

        def gradient(upstream: Any) -> Any:
            return self._run(f"{kind}_gradient", upstream, backward)

        return with_gradient(exchange, gradient, tf.convert_to_tensor(tensor))

    @staticmethod
    def _run(kind: str, tensor: Any, operation: Callable[[Any, str | None], Any]) -> Any:
        refuse_xla(kind)
        # Beside a GPU, TensorFlow might otherwise place Horovod's kernel (and the copies) there.
        with tf.device("CPU:0"):
            value, restore = carrier(tensor, reduces=not kind.startswith("broadcast"))
            return restore(gated(operation(gated(value), collective_name(kind))))
