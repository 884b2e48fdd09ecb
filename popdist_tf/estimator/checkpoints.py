"""Checkpoints of a job of several ranks: written once, resumed by all."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from popdist_tf.collectives.host import HostCollectives


class StartFromFirstRank(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Gives all ranks the first one's variables when a session begins.

    After a restart, only the first rank may have the checkpoint: the folder need not be shared.

    Args:
        collectives: The job's collectives.
    """

    def __init__(self, collectives: HostCollectives) -> None:
        self._collectives = collectives
        self._copy: Any = None

    def begin(self) -> None:
        """Adds the copying to the graph, before it is complete."""
        copies = []
        for variable in tf.compat.v1.global_variables():
            for component in getattr(variable, "values", (variable,)):
                value = self._collectives.broadcast(component.read_value())
                copies.append(component.assign(value, read_value=False))
        self._copy = tf.group(copies)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Copies."""
        del coord
        session.run(self._copy)


_SAVE, _STOP = 1, 2


class SaveTogether(tf.compat.v1.train.CheckpointSaverHook):  # type: ignore[misc]
    """Saves when the chief wants to, and ends the training of all workers together.

    Where a variable is reduced when it is read, as the moving averages of batch normalisation are,
    saving it is a collective: a chief that saves alone waits for the others forever. So all save
    in the same step, and what the others wrote is thrown away. In any case they wait for the
    chief's last checkpoint: their next training begins with it.

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
        """Saves what training starts from."""
        super().after_create_session(session, coord)
        self._step = int(session.run(self._global_step_tensor))

    def before_run(self, run_context: Any) -> Any:
        """Asks, with each step, what the chief wants to do after it."""
        del run_context
        wanted = 0
        if self._chief and self._timer.should_trigger_for_step(self._step + 1):
            wanted = _SAVE
        if self._stop:
            wanted = _STOP
        return tf.compat.v1.train.SessionRunArgs(self._decision, {self._wanted: wanted})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Does what the chief wants to do."""
        self._step += 1
        if run_values.results == _SAVE:
            self._timer.update_last_triggered_step(self._step)
            # A listener of the chief's, an evaluation say, may end the training; of all, then.
            self._stop = bool(self._save(run_context.session, self._step))
        elif run_values.results == _STOP:
            run_context.request_stop()

    def end(self, session: Any) -> None:
        """Saves once more, and waits until the chief has."""
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


def reduces_when_read(variable: Any) -> bool:
    """Whether reading a variable is a collective.

    Args:
        variable: A variable of the graph.

    Returns:
        True for variables that each replica writes alone.
    """
    return bool(
        getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ
        and hasattr(variable, "values")
    )
