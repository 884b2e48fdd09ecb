"""Published device operations, scopes and random seeds, built from TensorFlow's own operations."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from popdist_tf.collectives.instances import place_in_job
from popdist_tf.strategies.extended import device_code
from popdist_tf.strategies.popdist_strategy import PopDistStrategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def gelu(x: Any, approximate: bool = True, name: str | None = None) -> Any:
    """The Gaussian error linear unit.

    Args:
        x: Floating point values.
        approximate: Whether ``tanh`` stands in for the error function, as in the original.
        name: Of the operation.

    Returns:
        As ``x``.
    """
    return tf.nn.gelu(x, approximate=approximate, name=name)


def softmax(x: Any, stable: bool = False, name: str | None = None) -> Any:
    """The softmax over the last dimension.

    Args:
        x: Floating point values.
        stable: Accepted as published: TensorFlow's is stable.
        name: Of the operation.

    Returns:
        As ``x``.
    """
    del stable
    return tf.nn.softmax(x, name=name)


def embedding_lookup(
    params: Any,
    ids: Any,
    name: str | None = None,
    serialization_factor: int = 1,
    indices_are_sorted: bool = False,
) -> Any:
    """The rows of a table.

    Args:
        params: The table: a variable or tensor of at least one dimension.
        ids: Which rows; integers of any shape.
        name: Of the operation.
        serialization_factor: Accepted as published, without effect on a host.
        indices_are_sorted: Accepted as published, without effect on a host.

    Returns:
        Shape ``(*ids.shape, *params.shape[1:])``.
    """
    del serialization_factor, indices_are_sorted
    return tf.nn.embedding_lookup(params, ids, name=name)


def print_tensor(input: Any, name: str = "") -> Any:  # noqa: A002 - published name
    """Prints a tensor.

    Args:
        input: The tensor.
        name: What is printed before it; its own name where it is empty.

    Returns:
        The operation that prints, in graph mode; None otherwise.
    """
    own = "" if tf.executing_eagerly() else getattr(input, "name", "")
    return tf.print(name or own, input)


def remap(x: Any, name: str | None = None) -> Any:
    """Returns a tensor unchanged: on a host there are no tiles to spread it over.

    Args:
        x: A tensor.
        name: Of the operation.

    Returns:
        The tensor.
    """
    return tf.identity(x, name=name)


def outlined_function(
    func: Callable[..., Any] | None = None,
    unique_sharding: bool = False,
    keep_input_layouts: bool | None = None,
    name: str | None = None,
) -> Any:
    """Marks a function whose code the original shares between its calls.

    Args:
        func: The function; None where this is used as a decorator with arguments.
        unique_sharding: Accepted as published, without effect on a host.
        keep_input_layouts: Accepted as published, without effect on a host.
        name: Accepted as published.

    Returns:
        The function, or what decorates it.
    """
    del unique_sharding, keep_input_layouts, name
    return (lambda function: function) if func is None else func


def replication_index(name: str | None = None) -> Any:
    """The index of this replica among all replicas of the job.

    Args:
        name: Of the operation.

    Returns:
        An int32 scalar; 0 outside of strategies.

    Raises:
        RuntimeError: The code is not a replica's, as between `strategy.scope` and `strategy.run`.
    """
    replica = tf.distribute.get_replica_context()
    if replica is None:
        raise RuntimeError("replication_index works in a replica: call it inside strategy.run")
    index = replica.replica_id_in_sync_group
    return tf.identity(tf.convert_to_tensor(index, dtype=tf.int32), name=name)


# Sums and means over replicas, in device code.


def cross_replica_sum(x: Any, name: str | None = None) -> Any:
    """Sums a tensor over replicas.

    Under `PopDistStrategy` these are all replicas of the job. Other strategies run one replica in
    each process, and the original reduces over a process alone here, so there it is the tensor
    itself; `strategy.reduce` and the optimizers reduce over processes.

    Args:
        x: A tensor.
        name: Accepted as published.

    Returns:
        The sum, the same on every replica.
    """
    del name
    return _reduced(tf.distribute.ReduceOp.SUM, x)


def cross_replica_mean(x: Any, name: str | None = None) -> Any:
    """Averages a tensor over replicas; see `cross_replica_sum` for which.

    Args:
        x: A tensor.
        name: Accepted as published.

    Returns:
        The mean, the same on every replica.
    """
    del name
    return _reduced(tf.distribute.ReduceOp.MEAN, x)


def assume_equal_across_replicas(tensors: Any, inplace: bool = False) -> Any:
    """States that tensors are the same on every replica; without effect on a host.

    Args:
        tensors: Tensors.
        inplace: Accepted as published.

    Returns:
        The tensors.
    """
    del inplace
    return tensors


def _reduced(reduce_op: Any, x: Any) -> Any:
    replica = tf.distribute.get_replica_context()
    if replica is None:
        raise RuntimeError("cross_replica_ops work in a replica: call them inside strategy.run")
    if not isinstance(replica.strategy, PopDistStrategy):
        return tf.identity(x)
    # Not `all_reduce`: a graph of TensorFlow 1 with several local replicas does not support it.
    return replica.merge_call(
        lambda strategy, value: strategy.extended.reduce_over_replicas(reduce_op, value), args=(x,)
    )


# Scopes of device code: on a host, the replica's own processor.


@contextmanager
def ipu_scope(device: str) -> Iterator[None]:
    """Code in this scope stands for code on the device.

    Args:
        device: An IPU's name, as published. TensorFlow is not given the name, because TensorFlow
            knows no such device.

    Raises:
        ValueError: ``device`` does not name an IPU.
    """
    if "IPU" not in str(device).upper():
        raise ValueError(f"ipu_scope needs the name of an IPU, such as '/device:IPU:0': {device!r}")
    with device_code(), _local_device():
        yield


def _local_device() -> Any:
    if tf.distribute.has_strategy():  # which has set the replica's device already
        return nullcontext()
    gpu = tf.config.list_physical_devices("GPU")
    return tf.device("/device:GPU:0" if gpu else "/device:CPU:0")


@contextmanager
def _without_effect(*_args: Any, **_kwargs: Any) -> Iterator[None]:
    yield


ipu_shard = _without_effect
ipu_jit_scope = _without_effect
frontend_attribute = _without_effect
partials_type = _without_effect
stochastic_rounding = _without_effect
outside_compilation_scope = _without_effect


_SEEDS_APART = 1_000_003


# Random seeds, and small functions of the published ``ipu.utils``.


def reset_ipu_seed(
    seed: int,
    device: str = "/device:IPU:0",
    cpu_device: str = "cpu",
    experimental_identical_replicas: bool = False,
) -> Any:
    """Sets the seed of random numbers.

    Args:
        seed: The seed of every random operation that is built or called from now on. Each instance
            derives its own seed from it, so that dropout differs between instances; the first
            instance uses the seed itself.
        device: Accepted as published.
        cpu_device: Accepted as published.
        experimental_identical_replicas: Whether all instances use the seed unchanged.

    Returns:
        An operation without effect, in graph mode, where programs run it; None otherwise.
    """
    del device, cpu_device
    instance = 0 if experimental_identical_replicas else place_in_job()[1]
    tf.random.set_seed(seed + instance * _SEEDS_APART)
    return None if tf.executing_eagerly() else tf.no_op()


def move_variable_initialization_to_cpu(graph: Any = None) -> None:
    """Does nothing: variables are initialised on the host in any case.

    Args:
        graph: Accepted as published.
    """
    del graph


def running_on_ipu_model() -> bool:
    """Whether an emulated IPU is used: never, on a host."""
    return False
