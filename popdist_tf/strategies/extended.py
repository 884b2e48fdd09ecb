"""The extended class of the Horovod strategies: mirrored local replicas, Horovod between instances.

It derives from the extended class of TensorFlow's mirrored strategy, and not from the collective
strategy's (as the original). The collective strategy's own collectives would return one worker's
values, without an error, wherever ours are not called.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.python.distribute import (
    distribute_lib,
    distribute_utils,
    input_util,
    mirrored_strategy,
)
from tensorflow.python.distribute.v1 import input_lib as input_lib_v1

from popdist_tf.checks.layers import compare_layers
from popdist_tf.checks.strategy_steps import StepGuard
from popdist_tf.collectives.agreement import agree, agree_on_weights
from popdist_tf.errors import StrategyError
from popdist_tf.program_code import program_code
from popdist_tf.state_updates import StateUpdates
from popdist_tf.strategies import variables
from popdist_tf.strategies.cross_device import (
    HostCrossDeviceOps,
    check_reduction,
    is_mirrored,
    is_per_replica,
)
from popdist_tf.strategies.one_replica import call_only_replica, destinations_in
from popdist_tf.together.sessions import compare_sessions
from popdist_tf.together.uneven_data import with_agreed_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from popdist_tf.collectives.host import HostCollectives


# Whether code is "on the device", which decides between reductions on devices and on hosts.
#
# On the original hardware, `tf.device` separates the two. Here both run on the same processors,
# and the only difference is how a plain tensor counts: once for each replica of the instance
# inside `strategy.run` or an `ipu_scope`, and once for the instance outside.


_on_device: ContextVar[bool] = ContextVar("popdist_on_device", default=False)


def on_device() -> bool:
    """Whether the code that is being built or run is inside `strategy.run` or an `ipu_scope`."""
    return _on_device.get()


@contextmanager
def device_code() -> Iterator[None]:
    """Marks the code in this context as device code."""
    token = _on_device.set(True)
    try:
        yield
    finally:
        _on_device.reset(token)


def _with_state_updates(fn: Callable[..., Any]) -> Callable[..., Any]:
    """In a graph of TensorFlow 1, makes a function's results depend on its layers' updates."""
    if tf.compat.v1.get_default_graph().building_function:
        return fn

    def replica(*args: Any, **kwargs: Any) -> Any:
        with StateUpdates() as updates:
            results = fn(*args, **kwargs)
        return updates.before(results)

    return replica


def _meeting_in_loop(replicas: int) -> StrategyError:
    return StrategyError(
        "PD417",
        "the local replicas of this instance cannot reduce inside of a loop, branch or tf.function "
        "that stands in the function given to strategy.run",
        value=f"{replicas} local replicas",
        accepted="loops and tf.function around strategy.run, or one replica for each instance",
        hint="call strategy.run inside of the loop, use ipu.loops.repeat, or start the job with as "
        "many instances as replicas (poprun --num-instances)",
    )


def _count_in_words(size: int | None) -> str:
    """How many batches a data set has, as far as TensorFlow knows."""
    if size == tf.data.INFINITE_CARDINALITY:
        return "batches without an end"
    known = size is not None and size != tf.data.UNKNOWN_CARDINALITY
    return f"{size} batches" if known else "an unknown number of batches"


def _times(value: Any, count: int) -> Any:
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(_times(value.values, count), value.indices, value.dense_shape)
    return value * tf.cast(count, value.dtype)


class HorovodExtended(mirrored_strategy.MirroredExtended):  # type: ignore[misc]
    """The extended class of the strategies over Horovod.

    Args:
        strategy: The strategy it belongs to.
        collectives: The job's collectives.
        devices: One compute device for each local replica.
        variable_device: Where variables live; None for their replica's own device.
        reduce_on_device: Whether reductions in device code are carried out. Programs that reduce by
            other means switch them off, as in the original.
    """

    def __init__(
        self,
        strategy: Any,
        collectives: HostCollectives,
        devices: Sequence[str],
        *,
        variable_device: str | None = None,
        reduce_on_device: bool = True,
    ) -> None:
        compare_sessions(collectives)
        self._collectives = collectives
        self._variable_device = variable_device
        self._reduce_on_device = reduce_on_device
        self._has_run = False
        self._counted_as = 0  # replicas, in a measurement
        self._data_sets = 0
        self.guard = StepGuard(None if collectives.horovod is None else collectives)
        self._weights: list[tuple[str, weakref.ref[Any]]] = []
        self._received: list[tuple[Any, Any]] = []  # initial values, and what they were here
        self._host_ops = HostCrossDeviceOps(collectives)
        super().__init__(strategy, devices=list(devices), cross_device_ops=self._host_ops)
        # A local replica without an element ends the data for all of them, as in the original;
        # TensorFlow would feed the replica an empty batch.
        self.experimental_enable_get_next_as_optional = False

    # Members of the job.

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._counted_as or len(self._devices) * self._collectives.size

    @contextmanager
    def counted_as(self, replicas: int) -> Iterator[None]:
        """Makes this strategy count so many replicas, while parts of a batch are measured."""
        self._counted_as = replicas
        try:
            yield
        finally:
            self._counted_as = 0

    @property
    def collectives(self) -> HostCollectives:
        """The job's collectives."""
        return self._collectives

    @property
    def reduces_on_device(self) -> bool:
        """Whether reductions in device code are carried out."""
        return self._reduce_on_device

    @property
    def replicas_per_step(self) -> int:
        """How many elements of its data set a step of this instance consumes."""
        return len(self._devices)

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return int(self._collectives.rank * len(self._devices) + replica_id)

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return int(replica_id_in_sync_group - self._collectives.rank * len(self._devices))

    def _in_multi_worker_mode(self) -> bool:
        return self._collectives.size > 1

    @property
    def experimental_between_graph(self) -> bool:
        """Whether each worker builds its own graph: always."""
        return True

    @property
    def experimental_should_init(self) -> bool:
        """Whether this worker initialises its own variables: always."""
        return True

    @property
    def should_checkpoint(self) -> bool:
        """Whether this worker writes checkpoints: the first one does."""
        return self._collectives.rank == 0

    @property
    def should_save_summary(self) -> bool:
        """Whether this worker writes summaries: the first one does."""
        return self._collectives.rank == 0

    @property
    def _task_id(self) -> int:
        """The worker's index, by which Keras names the folder for what only this worker writes."""
        return int(self._collectives.rank)

    def _use_merge_call(self) -> bool:
        # Otherwise, under XLA, TensorFlow would use its own collectives, of this process alone.
        return True

    def _configure(
        self,
        session_config: Any = None,
        cluster_spec: Any = None,
        task_type: Any = None,
        task_id: Any = None,
    ) -> None:
        del cluster_spec, task_type, task_id  # Horovod knows the other workers
        super()._configure(session_config)

    # Variables.

    def _get_variable_creator_initial_value(
        self, replica_id: int, device: str, primary_var: Any, **kwargs: Any
    ) -> Any:
        if replica_id > 0:
            return super()._get_variable_creator_initial_value(
                replica_id, device, primary_var, **kwargs
            )
        initial_value, dtype = kwargs["initial_value"], kwargs.get("dtype")
        name = kwargs.get("name")

        # A callable, so that TensorFlow can lift the creation out of loops and functions.
        def from_root() -> Any:
            value = variables.evaluate_initial_value(initial_value, dtype)
            agree(self._collectives, f"variable {name} {value.dtype.name}{value.shape}")
            received = self._collectives.broadcast(value)
            received.set_shape(value.shape)
            self._received.append((received, value))
            return received

        return from_root

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        trained = kwargs.get("trainable") is not False
        created = variables.create_variable(self, self._variable_device, next_creator, kwargs)
        received, self._received = self._received, []
        if not tf.compat.v1.executing_eagerly_outside_functions():
            variables.forget_exchange(created, received)
        if trained and is_mirrored(created):
            self._weights.append((created.name, weakref.ref(created)))
            self.guard.note_weight(created)
        return created

    def _weights_now(self) -> list[tuple[str, Any]]:
        held = [(name, reference()) for name, reference in self._weights]
        return [(name, None if weight is None else weight.numpy()) for name, weight in held]

    # Running.

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        if not self._has_run:
            # Once: a later call may be a retrace on one instance alone.
            self._has_run = True
            agree(self._collectives, "the first step")
            compare_layers(self._collectives)
        with self.guard.step(fn, (args, kwargs), compares=self._reduce_on_device), device_code():
            if not tf.executing_eagerly():
                fn = _with_state_updates(program_code(fn, by_default=True))
            if len(self._devices) == 1:
                return call_only_replica(self, fn, args, kwargs)
            try:
                return super()._call_for_each_replica(fn, args, kwargs)
            except RuntimeError as error:
                if "`merge_call` called while defining" in str(error):
                    raise _meeting_in_loop(len(self._devices)) from error
                raise

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        self.guard.note(var)
        updated = super()._update(var, fn, args, kwargs, group)
        if not group or tf.compat.v1.executing_eagerly_outside_functions() or updated is None:
            return updated
        # Optimizers of TensorFlow 1 return the update of a global step, which is an operation.
        return tf.group(*(updated.values if is_per_replica(updated) else [updated]))

    def note_own_update(self, variable: Any) -> None:
        """Takes notice of a variable that each replica updates by a value of its own."""
        self.guard.note(variable, by_each_replica=True)

    # Reducing.

    def _get_cross_device_ops(self, value: Any) -> HostCrossDeviceOps:
        del value
        return self._host_ops

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        check_reduction(reduce_op)
        if on_device() and not self._reduce_on_device:
            return value
        return self._reduce_nest(reduce_op, value, destinations, options)

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        # Integers of the program's text, such as the 1 that counts steps, are alike everywhere.
        if not isinstance(tensor, int):
            if not isinstance(tensor, tf.IndexedSlices):
                tensor = tf.convert_to_tensor(tensor, getattr(destinations, "dtype", None))
            tensor = self.from_first_replica(tensor)
        return super()._broadcast_to(tensor, destinations)

    def agree_to_read(self, variable: Any) -> None:
        """Checks that all instances read a variable of which each replica has a value of its own.

        Raises:
            AgreementError: Some instances do something else.
        """
        agree(
            self._collectives,
            f"the value of a variable of each replica: {variable.dtype.name} {variable.shape}",
            "the same reads, fits and savings of models on all instances",
            "moving statistics and metrics are reduced over all instances when they are read: read "
            "them and save the model on all instances, each to another file",
        )

    def from_first_replica(self, value: Any) -> Any:
        """The value of the job's first replica, from the value of each instance's first one."""
        return self._host_ops.from_first_instance(value)

    def reduce_over_replicas(self, reduce_op: Any, value: Any) -> Any:
        """Reduces a value of device code on request, also where ``reduce_on_device`` is off."""
        (value,) = self.guard.before_reduction([value])
        return self._reduce_nest(reduce_op, value, value, None)

    def gather_over_replicas(self, value: Any) -> Any:
        """Concatenates a value of device code over all replicas, along its first dimension."""
        return self._gather_to_implementation(value, value, 0, None)

    def _reduce_nest(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        destinations = destinations_in(self, destinations)
        if is_mirrored(value) and reduce_op == tf.distribute.ReduceOp.MEAN:
            return value

        def reduce_one(one: Any) -> Any:
            if is_per_replica(one):
                return self._host_ops.reduce(reduce_op, one, destinations, options)
            return self._host_ops.broadcast(self._reduce_plain(reduce_op, one), destinations)

        # Keras 3 reduces whole structures of inputs while it builds a model.
        return tf.nest.map_structure(reduce_one, value)

    def _reduce_plain(self, reduce_op: Any, value: Any) -> Any:
        if not isinstance(value, tf.IndexedSlices):
            value = tf.convert_to_tensor(value)
        local = len(self._devices)
        if on_device() and local > 1 and reduce_op == tf.distribute.ReduceOp.SUM:
            # TensorFlow merges equal objects of the local replicas into one; each still counts.
            value = _times(value, local)
        return self._host_ops.reduce_over_instances(reduce_op, value)

    def _batch_reduce_to(
        self, reduce_op: Any, value_destination_pairs: Sequence[tuple[Any, Any]], options: Any
    ) -> list[Any]:
        values: Sequence[Any] = [value for value, _ in value_destination_pairs]
        if self._reduce_on_device or not on_device():
            values = self.guard.before_reduction(values)
        return [
            self._reduce_to(reduce_op, value, where, options)
            for value, (_, where) in zip(values, value_destination_pairs, strict=True)
        ]

    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: int, options: Any
    ) -> Any:
        destinations = destinations_in(self, destinations)
        if is_per_replica(value):
            return self._host_ops._gather(value, destinations, axis, options)
        value = tf.convert_to_tensor(value)
        if on_device() and len(self._devices) > 1:
            value = tf.concat([value] * len(self._devices), axis)
        gathered = self._host_ops.gather_over_instances(value, axis)
        return self._host_ops.broadcast(gathered, destinations)

    # Input. The program shards over instances and batches for one replica; the strategy does not
    # shard or batch again.

    def _input_context(self) -> Any:
        return distribute_lib.InputContext(
            num_input_pipelines=self._collectives.size,
            input_pipeline_id=self._collectives.rank,
            num_replicas_in_sync=self._num_replicas_in_sync,
        )

    def _make_input_context(self) -> Any:
        return self._input_context()

    def _make_input_fn_iterator(self, input_fn: Any, replication_mode: Any = None) -> Any:
        del replication_mode
        return input_lib_v1.InputFunctionIterator(
            input_fn, self._input_workers, [self._input_context()], self._container_strategy()
        )

    def _make_dataset_iterator(self, dataset: Any) -> Any:
        return self._make_input_fn_iterator(lambda _: dataset)

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        size = int(tf.data.experimental.cardinality(dataset)) if tf.executing_eagerly() else None
        agree(self._collectives, f"a data set of {_count_in_words(size)}")
        if size is not None and self._reduce_on_device:
            agree_on_weights(self._collectives, self._weights_now(), "before this data set")
        if size == tf.data.UNKNOWN_CARDINALITY and self._collectives.horovod is not None:
            self._data_sets += 1
            dataset = with_agreed_end(dataset, self._collectives, self._data_sets)
        if len(self._devices) == 1:
            return dataset
        return self._distribute_datasets_from_function(lambda _: dataset, options)

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        if len(self._devices) == 1 and tf.compat.v1.executing_eagerly_outside_functions():
            # The data set itself: TensorFlow's wrapper costs a tenth of a small step.
            return dataset_fn(self._input_context())
        return input_util.get_distributed_datasets_from_function(
            dataset_fn,
            self._input_workers_with_options(options),
            [self._input_context()],
            self._container_strategy(),
            options,
        )

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        first = self._get_replica_id_in_sync_group(0)
        held = [
            value_fn(distribute_lib.ValueContext(first + i, self._num_replicas_in_sync))
            for i in range(len(self._devices))
        ]
        return distribute_utils.regroup(held, always_wrap=True)
