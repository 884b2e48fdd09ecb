"""Checkpoints of a job of several ranks: saved by the chief, and restored on every rank.

Ranks may share one model folder or have separate folders. Before a training starts, all ranks hold
the first rank's checkpoint.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow.compat.v2 as tf
from tensorflow.python.eager import context

from popdist_tf.collectives.agreement import agree, text_of_root

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from popdist_tf.collectives.host import HostCollectives


class StartFromFirstRank(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Copies the first rank's variables to all ranks when a session begins.

    After a restart, only the first rank may have the checkpoint: the folder need not be shared.
    """

    def __init__(self, collectives: HostCollectives) -> None:
        self._collectives = collectives
        self._copy: Any = None

    def begin(self) -> None:
        """Adds the broadcast to the graph, before the graph is finalized."""
        copies = []
        for variable in tf.compat.v1.global_variables():
            for component in getattr(variable, "values", (variable,)):
                value = self._collectives.broadcast(component.read_value())
                copies.append(component.assign(value, read_value=False))
        self._copy = tf.group(copies)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs the broadcast."""
        del coord
        session.run(self._copy)


_SAVE, _STOP, _KINDS = 1, 2, 4
_LONGEST_WAIT = 1000  # steps


class SaveTogether(tf.compat.v1.train.CheckpointSaverHook):  # type: ignore[misc]
    """Saves when the chief decides to, and ends the training of all workers together.

    A variable that is reduced when it is read, such as a moving average of batch normalisation,
    needs a collective to be saved. A chief that saves alone would wait for the other workers
    forever. So all workers save in the same step, and the other workers' files are deleted. All
    workers wait for the chief's last checkpoint, because their next training begins with it.

    With each decision the chief says after how many steps it will be asked again: until its next
    checkpoint is near, steps need no exchange for it.

    Args:
        strategy: The strategy of the training.
        model_dir: The folder of the checkpoints.
        save_steps: Updates between checkpoints, or None.
        save_secs: Seconds between checkpoints, by the chief's clock, or None.
        scaffold: The session's scaffold, which holds the saver.
        on_all: Whether saving is a collective.
    """

    def __init__(
        self,
        strategy: Any,
        model_dir: str,
        *,
        save_steps: int | None,
        save_secs: int | None,
        scaffold: Any,
        on_all: bool,
    ) -> None:
        self._strategy = strategy
        self._chief = bool(strategy.extended.should_checkpoint)
        self._saves = self._chief or on_all
        self._scratch = None if self._chief else tempfile.TemporaryDirectory()
        folder = model_dir if self._scratch is None else self._scratch.name
        super().__init__(folder, save_steps=save_steps, save_secs=save_secs, scaffold=scaffold)
        self._wanted: Any = None
        self._decision: Any = None
        self._step = 0
        self._next = 0
        self._asked = 0.0, 0  # when, and in which step
        self._saved = 0.0
        self._save_steps, self._save_secs = save_steps, save_secs or 0
        self._stop = False

    def begin(self) -> None:
        """Adds the chief's decision to the graph."""
        super().begin()
        self._wanted = tf.compat.v1.placeholder_with_default(0, shape=())
        with self._strategy.scope():
            self._decision = self._strategy.reduce(
                tf.distribute.ReduceOp.SUM, self._wanted, axis=None
            )

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Saves the state that training starts from."""
        super().after_create_session(session, coord)
        self._step = int(session.run(self._global_step_tensor))
        self._next = self._step + 1
        self._saved = time.monotonic()
        self._asked = self._saved, self._step

    def before_run(self, run_context: Any) -> Any:
        """Fetches the chief's decision for the time after this step, where it is due."""
        del run_context
        if self._step + 1 < self._next:
            return None
        decision = 0
        if self._chief:
            wanted = 0
            if self._timer.should_trigger_for_step(self._step + 1):
                wanted = _SAVE
            if self._stop:
                wanted = _STOP
            decision = wanted + _KINDS * self._wait()
        return tf.compat.v1.train.SessionRunArgs(self._decision, {self._wanted: decision})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Saves or stops, as the chief decided."""
        self._step += 1
        if run_values.results is None:
            return
        wait, wanted = divmod(int(run_values.results), _KINDS)
        # After a checkpoint, its listeners may end the training.
        self._next = self._step + (1 if wanted == _SAVE else wait)
        if wanted == _SAVE:
            self._timer.update_last_triggered_step(self._step)
            self._saved = time.monotonic()
            # A listener of the chief (such as an evaluation) may end the training, for all workers.
            self._stop = bool(self._save(run_context.session, self._step))
        elif wanted == _STOP:
            run_context.request_stop()

    def _wait(self) -> int:
        """After how many steps the chief is asked again, by the time of the steps before."""
        now, step = time.monotonic(), self._step + 1
        if self._save_steps is not None:
            last = self._timer.last_triggered_step()
            wait = 1 if last is None else last + self._save_steps - step
        else:
            seconds = (now - self._asked[0]) / max(1, step - self._asked[1])
            wait = int((self._saved + self._save_secs - now) / 2 / max(seconds, 1e-6))
            # Later steps may be slower than the first ones.
            wait = min(wait, 2 * (step - self._asked[1]))
        self._asked = now, step
        return max(1, min(wait, _LONGEST_WAIT))

    def end(self, session: Any) -> None:
        """Saves once more, and waits until the chief has saved."""
        super().end(session)
        session.run(self._decision)
        if self._scratch is not None:
            self._scratch.cleanup()

    def _save(self, session: Any, step: int) -> Any:
        if self._chief:
            return super()._save(session, step)
        if self._saves:
            self._get_saver().save(session, self._save_path, global_step=step)
        return False


def evaluates_after_saving(listener: Any) -> bool:
    """Whether a listener is that by which `train_and_evaluate` evaluates, and exports."""
    return "ForEvaluate" in type(listener).__name__


@contextmanager
def evaluations_of_chief(
    collectives: HostCollectives | None, listeners: Iterable[Any] | None
) -> Iterator[list[Any]]:
    """Leaves evaluations in a training to the chief, and gives all ranks its results.

    Another rank would evaluate when it ends, and write to the same folder of evaluations and
    exports.

    Args:
        collectives: The job's collectives; None without Horovod.
        listeners: All listeners of a rank.

    Yields:
        The listeners that this rank is to train with.
    """
    held = list(listeners or ())
    evaluating = [one for one in held if evaluates_after_saving(one)]
    if collectives is None or collectives.horovod is None or not evaluating:
        yield held
        return
    yield [one for one in held if collectives.rank == 0 or one not in evaluating]
    for one in evaluating:
        with tf.init_scope(), context.eager_mode():
            found = _broadcast(collectives, (one.eval_result, one.export_results))
        one.eval_result, one.export_results = found


def reduces_when_read(variable: Any) -> bool:
    """Whether reading a variable is a collective: true where each replica writes it alone."""
    return bool(
        getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ
        and hasattr(variable, "values")
    )


# One folder for all ranks, where the user names none.


def shared_model_dir(collectives: HostCollectives) -> str:
    """A new temporary folder, the same path on every rank; every rank must call it.

    TensorFlow would make a folder for each rank, and a second training would then start from
    different steps.
    """
    path = text_of_root(collectives, tempfile.mkdtemp() if collectives.rank == 0 else "")
    Path(path).mkdir(parents=True, exist_ok=True)
    return path


# Where ranks have separate folders, all ranks resume from the first rank's checkpoint.
#
# A rank with a checkpoint restores it. A rank without one initialises its variables, which is a
# collective. So before a training begins, either all ranks have the checkpoint or none has.


def share_checkpoint(collectives: HostCollectives, model_dir: str) -> None:
    """Copies the first rank's newest checkpoint to ranks that do not see it; all must call it.

    Raises:
        AgreementError: A rank has a checkpoint although the first one has none.
    """
    prefix = tf.train.latest_checkpoint(model_dir)
    mine = None if prefix is None else Path(prefix).name
    with tf.init_scope(), context.eager_mode():
        first = _broadcast(collectives, mine)
        is_stale = first is None and mine is not None
        agree(collectives, f"a training that starts anew{f' beside {prefix}' if is_stale else ''}")
        lacks = first is not None and mine != first
        row = np.asarray([[lacks]], np.int32)
        if not np.asarray(collectives.allgather(tf.constant(row)).numpy()).any():
            return
        files = _broadcast(collectives, _read(prefix) if collectives.rank == 0 else None)
    if lacks:
        _write(Path(model_dir), first, files)


def _broadcast(collectives: HostCollectives, value: object) -> Any:
    assert collectives.horovod is not None  # noqa: S101 - asked for before
    return collectives.horovod.broadcast_object(value, root_rank=0)


def _read(prefix: str) -> dict[str, bytes]:
    files = Path(prefix).parent.glob(f"{Path(prefix).name}.*")
    return {file.name: file.read_bytes() for file in files}


def _write(folder: Path, name: str, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    tf.compat.v1.train.update_checkpoint_state(str(folder), str(folder / name))
