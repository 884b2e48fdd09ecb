"""Sessions of TensorFlow 1 in a job: instances run exchanges together, and start and save together.

A graph of a strategy holds exchanges: initial values come from the first instance, gradients are
summed, and variables that each replica writes alone are reduced when they are read or saved. A
session that runs an exchange on one instance alone would wait for the others for ever. So before
each run that needs exchanges, the instances compare which ones. Other runs are left as they are.

TensorFlow's training sessions expect one instance to initialise, restore and save the variables of
all. Here each instance has variables of its own. It starts as the first instance does, and takes
part where saving needs an exchange.
"""

from __future__ import annotations

import functools
import tempfile
import weakref
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v2 as tf
from tensorflow.python.client.session import BaseSession, _FetchHandler
from tensorflow.python.distribute import distribute_coordinator_context
from tensorflow.python.eager import context
from tensorflow.python.training.monitored_session import WorkerSessionCreator, _MonitoredSession
from tensorflow.python.training.session_manager import SessionManager
from tensorflow.python.training.supervisor import Supervisor

from popdist import agreement
from popdist_tf.collectives.agreement import STATEMENT, differing
from popdist_tf.errors import AgreementError
from popdist_tf.estimator.checkpoints import SaveTogether, reduces_when_read, share_checkpoint
from popdist_tf.patches import surround

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from popdist_tf.collectives.host import HostCollectives

_NAMED = 3
_TOGETHER = (
    "call session.run and Saver.save on all instances alike, where results are reduced over them: "
    "training steps, reduced losses, and variables that are reduced when they are read, such as "
    "moving averages of batch normalization; each instance saves to a folder of its own"
)


def compare_sessions(collectives: HostCollectives) -> None:
    """Makes sessions compare what they exchange, and start together; safe to call again.

    Args:
        collectives: The job's collectives; an instance alone compares nothing.
    """
    if collectives.horovod is None:
        return
    starts = _Starts(collectives)
    runs = _Runs(collectives)
    surround_session(BaseSession, "_do_run", runs.run)
    surround_session(BaseSession, "make_callable", runs.make_callable)
    surround_session(BaseSession, "_make_callable_from_options", runs.callable_from_options)
    surround_session(SessionManager, "prepare_session", starts.prepare)
    surround_session(WorkerSessionCreator, "create_session", starts.create_of_worker)
    surround_session(Supervisor, "prepare_or_wait_for_session", starts.prepare_or_wait)
    surround_session(_MonitoredSession, "__init__", functools.partial(_save_together, collectives))


def surround_session(
    owner: Any, method: str, by: Callable[..., Any], purpose: str = "sessions"
) -> None:
    """Replaces a method that sessions use, as `patches.surround` does; Estimators keep it.

    Args:
        owner: A class.
        method: Its name.
        by: Called with the method that was there, bound to the object; the object; and the
            arguments.
        purpose: As of `patches.surround`.
    """

    def called(known: Any, session: Any, *args: Any, **kwargs: Any) -> Any:
        # An Estimator does all this by itself.
        if distribute_coordinator_context.get_current_worker_context() is not None:
            return known(session, *args, **kwargs)
        return by(functools.partial(known, session), session, *args, **kwargs)

    surround(owner, method, purpose, called)


class _Runs:
    """Compares the exchanges of each run of a session."""

    def __init__(self, collectives: HostCollectives) -> None:
        self._collectives = collectives
        self._known: weakref.WeakKeyDictionary[Any, dict[Any, str]] = weakref.WeakKeyDictionary()

    def run(
        self, known: Any, session: Any, handle: Any, targets: Any, fetches: Any, feeds: Any,
        *args: Any,
    ) -> Any:  # fmt: skip
        """Compares, and runs.

        Raises:
            AgreementError: The instances run different exchanges; raised on all of them.
        """
        self._compare(session.graph, [*targets, *fetches], [one.deref() for one in feeds])
        return known(handle, targets, fetches, feeds, *args)

    def make_callable(
        self, known: Any, session: Any, fetches: Any, feed_list: Any = None, *args: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        """A function that compares, and runs."""
        called = known(fetches, feed_list, *args, **kwargs)
        if feed_list is not None:
            return called  # it calls `session.run`
        held = _FetchHandler(session.graph, fetches, {})
        return self._comparing(session.graph, [*held.targets(), *held.fetches()], [], called)

    def callable_from_options(self, known: Any, session: Any, options: Any) -> Any:
        """A function that compares, and runs; Keras trains by it in graphs of TensorFlow 1."""
        found = session.graph.as_graph_element
        wanted = [found(one) for one in (*options.target, *options.fetch)]
        fed = [found(one) for one in options.feed]
        return self._comparing(session.graph, wanted, fed, known(options))

    def _comparing(self, graph: Any, wanted: list[Any], fed: list[Any], called: Any) -> Any:
        def compared(*args: Any, **kwargs: Any) -> Any:
            self._compare(graph, wanted, fed)
            return called(*args, **kwargs)

        return compared

    def _compare(self, graph: Any, wanted: list[Any], fed: list[Any]) -> None:
        statement = self._statement(graph, wanted, fed)
        found = differing(self._collectives, {STATEMENT: statement}) if statement else []
        if found:
            names = [one.name for one in wanted[:_NAMED]]
            raise AgreementError(
                "PD007",
                "a session exchanges values that the sessions of other instances do not, and would "
                "wait for them forever",
                value=f"{found[0].says}; this instance runs {', '.join(names)}",
                accepted="session.run of the same exchanges, in the same order on all instances",
                hint=_TOGETHER,
            )

    def _statement(self, graph: Any, wanted: list[Any], fed: list[Any]) -> str:
        """What a run exchanges, in words; nothing for a run without exchanges."""
        held = self._known.setdefault(graph, {})
        # A graph keeps its operations, and so their addresses, as long as it lives.
        key = (*(id(getattr(one, "op", one)) for one in wanted), 0, *(one.name for one in fed))
        if key not in held:
            found = exchanges(wanted, fed)
            same = agreement.digest(", ".join(found).encode())
            held[key] = f"session.run with {len(found)} exchanges ({same})" if found else ""
        return held[key]


def exchanges(wanted: Iterable[Any], fed: Iterable[Any] = ()) -> list[str]:
    """The exchanges that a session makes for some results.

    Args:
        wanted: Operations and tensors of one graph.
        fed: Tensors whose values the program gives.

    Returns:
        The names by which Horovod pairs them, sorted.
    """
    given = {id(one) for one in fed}
    found: set[str] = set()
    functions: set[str] = set()
    waiting = [getattr(one, "op", one) for one in wanted if id(one) not in given]
    seen = set(waiting)
    while waiting:
        one = waiting.pop()
        if one.type.startswith(_EXCHANGE):
            found.add(one.name.rpartition("/")[2])
        elif _calls(one.graph, one.type):
            found.update(_in_functions(one.graph, one.node_def, functions))
        before = {tensor.op for tensor in one.inputs if id(tensor) not in given}
        before = before.union(one.control_inputs) - seen
        seen |= before
        waiting += before
    return sorted(found)


_EXCHANGE = "Horovod"
_CALLS = {"PartitionedCall", "If", "While", "Case"}


def _calls(graph: Any, kind: str) -> bool:
    """Whether an operation of a kind calls functions at once; data sets call theirs later."""
    return kind.removeprefix("Stateless").removeprefix("Stateful") in _CALLS or (
        graph._is_function(kind)
    )


def _in_functions(graph: Any, node: Any, seen: set[str]) -> Iterator[str]:
    """Exchanges in the functions that a node calls, branches and bodies of loops among them."""
    called = [one for value in node.attr.values() for one in (value.func, *value.list.func)]
    for name in {node.op, *(one.name for one in called)} - seen:
        seen.add(name)
        body = graph._get_function(name) if name else None
        for inner in () if body is None else body.cached_definition.node_def:
            if inner.op.startswith(_EXCHANGE):
                yield inner.name.rpartition("/")[2]
            elif _calls(graph, inner.op):
                yield from _in_functions(graph, inner, seen)


class _Starts:
    """Starts sessions whose initial values are exchanged on all instances as on the first one."""

    def __init__(self, collectives: HostCollectives) -> None:
        self._collectives = collectives

    def prepare(
        self, known: Any, manager: Any, master: Any, init_op: Any = None, saver: Any = None,
        checkpoint_dir: Any = None, checkpoint_filename_with_path: Any = None, *args: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Restores the first instance's checkpoint, or initialises where that one has none."""
        del manager
        if checkpoint_filename_with_path is not None or not _exchanged(init_op):
            given = (checkpoint_dir, checkpoint_filename_with_path, *args)
            return known(master, init_op, saver, *given, **kwargs)
        with tempfile.TemporaryDirectory() as scratch:
            folder = checkpoint_dir or scratch
            share_checkpoint(self._collectives, folder)
            return known(master, init_op, saver, folder, None, *args, **kwargs)

    def create_of_worker(self, known: Any, creator: Any) -> Any:
        """Lets a worker of `MonitoredTrainingSession` start by itself."""
        scaffold = creator._scaffold.finalize()
        manager = creator._get_session_manager()
        self._start_alone(
            manager, scaffold.init_op, scaffold.saver, scaffold.init_feed_dict, scaffold.init_fn
        )
        return known()

    def prepare_or_wait(self, known: Any, supervisor: Any, *args: Any, **kwargs: Any) -> Any:
        """Lets a worker of a `Supervisor` start by itself.

        Raises:
            AgreementError: The thread in which the first instance saves would exchange alone.
        """
        if _exchanged(supervisor.init_op):
            self._refuse_saving_thread(supervisor)
        if not supervisor.is_chief:
            self._start_alone(
                supervisor.session_manager,
                supervisor.init_op,
                supervisor.saver,
                supervisor._init_feed_dict,
                supervisor._init_fn,
            )
        return known(*args, **kwargs)

    def _refuse_saving_thread(self, supervisor: Any) -> None:
        held = supervisor._graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        saves = bool(supervisor.is_chief and supervisor.saver and supervisor.save_model_secs)
        reduced = [one for one in held if reduces_when_read(one)]
        fact = f"saves every {supervisor.save_model_secs} s" if saves and reduced else "does not"
        found = differing(self._collectives, {"thread": fact})
        if found or (saves and reduced):
            raise AgreementError(
                "PD007",
                "a Supervisor saves in a thread of its own, and variables of the model are reduced "
                "over all instances when they are saved",
                value=f"save_model_secs={supervisor.save_model_secs}",
                accepted="save_model_secs=0",
                hint="save_model_secs=0, and Saver.save on all instances, each to a folder of its "
                "own; or a MonitoredTrainingSession, which saves on all instances together",
            )

    @staticmethod
    def _start_alone(manager: Any, init_op: Any, saver: Any, feeds: Any, init_fn: Any) -> None:
        def start(master: Any, config: Any = None, max_wait_secs: Any = None) -> Any:
            del max_wait_secs
            return manager.prepare_session(
                master, init_op, saver, config=config, init_feed_dict=feeds, init_fn=init_fn
            )

        if _exchanged(init_op):
            manager.wait_for_session = start


def _exchanged(init_op: Any) -> bool:
    held = [one for one in tf.nest.flatten(init_op) if isinstance(one, (tf.Operation, tf.Tensor))]
    return bool(exchanges(held))


def _save_together(
    collectives: HostCollectives, known: Any, session: Any, creator: Any, hooks: Any, *args: Any,
    **kwargs: Any,
) -> None:  # fmt: skip
    """Lets all instances take part in the first one's checkpoints, where that needs an exchange."""
    del session
    reduced = list(filter(reduces_when_read, tf.compat.v1.global_variables()))
    held = list(hooks or ())
    if reduced:
        saving = [one for one in held if type(one) is tf.compat.v1.train.CheckpointSaverHook]
        own = [(one._timer._every_steps, one._timer._every_secs) for one in saving]
        with tf.init_scope(), context.eager_mode():
            assert collectives.horovod is not None  # noqa: S101 - an instance alone has no guard
            wanted = collectives.horovod.broadcast_object(own, root_rank=0)
        folders = [one._checkpoint_dir for one in saving] if collectives.rank == 0 else []
        together = [
            SaveTogether(
                reduced[0].distribute_strategy,
                folder or "",
                save_steps=steps,
                save_secs=secs,
                scaffold=getattr(creator, "_scaffold", None),
                on_all=True,
            )
            for (steps, secs), folder in zip_longest(wanted, folders)
        ]
        if collectives.rank == 0:
            for one, hook in zip(together, saving, strict=True):
                for name in _SETTINGS:
                    setattr(one, name, getattr(hook, name))
        held = [*together, *(one for one in held if one not in saving)]
    known(creator, held, *args, **kwargs)


_SETTINGS = ("_listeners", "_save_graph_def", "_save_path", "_saver", "_scaffold")
