"""The updates of a training: the model that is compiled for them, and their order in epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from popdist.metrics import note_step
from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.compat import clone
from popdist_onnx.graph.exporters import with_single_biases
from popdist_onnx.graph.names import ACCUMULATOR
from popdist_onnx.graph.passes import sound
from popdist_onnx.session.devices import DeviceManager
from popdist_onnx.session.step_io import PyStepIO
from popdist_onnx.session.training import TrainingSession
from popdist_onnx.training.callbacks import History
from popdist_onnx.training.data import Array, Data
from popdist_onnx.training.model import trainable, with_batch
from popdist_onnx.types.data_flow import AnchorReturnType, DataFlow
from popdist_onnx.types.enums import ReductionType
from popdist_onnx.types.session_options import SessionOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import onnx_ir as ir

    from popdist_onnx.optimizers.optimizer import Optimizer
    from popdist_onnx.training.data import Layout
    from popdist_onnx.training.divisors import Divisors
    from popdist_onnx.training.sources import Source, Update


class Updates:
    """A model that is compiled for one layout of the samples of an update.

    Args:
        original: The model.
        loss_kind: One of `LOSSES`, or the id of the loss.
        optimizer: How weights are updated.
        layout: How the samples of an update are divided.
        check_finite: Whether a step stops at the first tensor that is not finite.
        name: Of the session, for messages and for the exchange of gradients.

    Attributes:
        layout: As given.
        model: The model with a fixed number of samples.
        loss: The loss.
        data: What the model takes.
        divisors: Numbers of a whole batch that are inputs of the model.
        session: The session, prepared and with the model's weights.
    """

    def __init__(
        self,
        original: ir.Model,
        loss_kind: str,
        optimizer: Optimizer,
        layout: Layout,
        *,
        check_finite: bool,
        name: str = "training",
    ) -> None:
        self.layout = layout
        with sound(original):
            self.model = sized(original, layout.batch)
            model, self.loss, classes = trainable(self.model, loss_kind)
            self.data = Data.of(model, classes)
            self.divisors = _divisors(model, self.loss, layout, original)
        self.session = TrainingSession(
            model,
            DataFlow(1, {self.loss: AnchorReturnType("All")}),
            self.loss,
            optimizer,
            DeviceManager().createCpuDevice(),
            userOptions=_options(layout, check_finite=check_finite),
            name=name,
        )
        self.session.prepareDevice()
        if layout.job.horovod is not None:
            self.session.connect_horovod(layout.job.horovod)
        self.session.weightsFromHost()

    def continue_from(self, other: Updates, optimizer: Optimizer) -> None:
        """Takes over all state of a model that was compiled for another layout.

        Args:
            other: The same model, between two updates.
            optimizer: The present values of its optimizer.
        """
        self.session.updateOptimizerFromHost(optimizer)
        mine, its = (one.session.prepared_engine("fit") for one in (self, other))
        mine.seed, mine.micro_batches = its.seed, its.micro_batches
        for name in mine.state.names:
            # Between updates accumulators are zero, and only some layouts have them.
            if name in its.state and not name.startswith(ACCUMULATOR):
                mine.state.write(name, its.state.read(name))


def sized(original: ir.Model, batch: int) -> ir.Model:
    """A copy of a model for a number of samples, with the biases that are to be trained."""
    biased = clone(original)
    with_single_biases(biased)
    return with_batch(biased, batch)


class OnePart:
    """In place of `Divisors` where an update has one micro-batch: the loss is that of the whole."""

    is_judged = True
    names: ClassVar[list[str]] = []

    def prepare(self, _source: Source, *, warn: bool = True) -> bool:  # noqa: ARG002 - as there
        """Nothing is exchanged."""
        return False

    def of(self, *_: object) -> dict[str, Array]:
        """There are no inputs."""
        return {}


def _divisors(model: ir.Model, loss: str, layout: Layout, original: ir.Model) -> Divisors | OnePart:
    if layout.parts == 1:
        return OnePart()
    from popdist_onnx.training.divisors import Divisors

    return Divisors(model, loss, layout, original)


def _options(layout: Layout, *, check_finite: bool) -> SessionOptions:
    job, options = layout.job, SessionOptions()
    options.enableFloatingPointChecks = check_finite
    options.enableGradientAccumulation = layout.accumulation > 1
    options.accumulationFactor = layout.accumulation
    options.accumulationAndReplicationReductionType = ReductionType.Mean
    options.enableReplicatedGraphs = job.local_replicas > 1
    options.replicatedGraphCount = job.local_replicas
    options.enableDistributedReplicatedGraphs = job.is_shared
    options.globalReplicationFactor = job.total_replicas
    options.globalReplicaOffset = job.first_replica
    options.hostAllReduce = job.horovod is not None
    return options


# The updates epoch by epoch, and the place that a checkpoint resumes.


class Epochs:
    """Runs the updates of epochs and counts them.

    Args:
        usual: What runs updates of the usual size.
        optimizer: Its session's optimizer.
        smaller: Compiles the model for smaller updates of a layout.
        seed: Of the order of samples.

    Attributes:
        history: All epochs so far.
        seed: As above; a checkpoint has its own.
    """

    def __init__(
        self,
        usual: Updates,
        optimizer: Optimizer,
        smaller: Callable[[Layout], Updates],
        seed: int,
    ) -> None:
        self._usual, self._optimizer, self._smaller = usual, optimizer, smaller
        self._layout, self._job = usual.layout, usual.layout.job
        self.seed = seed
        self.history = History()
        self._updates = 0
        # Of the present epoch, and of a resumed one: updates so far, the sum of their losses, and
        # their weights in it, which is below one for a smaller update.
        self._done, self._loss_sum, self._weight = 0, 0.0, 0.0
        self._resumed = 0, 0.0, 0.0

    def state(self) -> dict[str, Any]:
        """All that `restore` needs, for JSON."""
        return {
            "records": self.history.records,
            "updates": self._updates,
            "done": self._done,
            "loss_sum": self._loss_sum,
            "weight": self._weight,
            "seed": self.seed,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Lets the next epoch be the one that a state was taken in, from there on."""
        self.seed, self._updates = state["seed"], state["updates"]
        done = state.get("done", 0)
        self._resumed = done, state.get("loss_sum", 0.0), state.get("weight", float(done))
        self.history = History(state["records"])

    def run(
        self,
        source: Source,
        more: Callable[[Updates, Mapping[str, Array]], Mapping[str, Array]],
        updated: Callable[[int, float], None],
        bar: Any,
        schedule: Callable[[int], float] | None,
        *,
        shuffle: bool,
    ) -> dict[str, float]:
        """Runs an epoch, or the rest of a resumed one.

        Args:
            source: The samples.
            more: The inputs of an update beside its samples, from these.
            updated: Called after each update with its number and its loss.
            bar: The progress bar.
            schedule: The learning rate of each update by its number.
            shuffle: Whether the order is drawn.

        Returns:
            The epoch's number, its mean loss over the job, and the learning rate at its end.

        Raises:
            popart_exception: There were no samples, or instances have different data.
        """
        number = len(self.history)
        before, self._loss_sum, self._weight = self._resumed
        self._done = before
        self._resumed = 0, 0.0, 0.0
        steps = source.updates((self.seed, number) if shuffle else None)
        for _ in range(before):
            self._next(steps, source)
        bar.update(before)
        while (found := self._next(steps, source)) is not None:
            layout, step = found
            if self._done == before and source.samples is None:
                self._job.require_same(source.first(), epoch=number)
            if schedule is not None:
                self._set_rate(schedule(self._updates))
            loss = self._run(layout, step, more)
            note_step(loss=loss, samples=layout.own)
            update = self._updates
            self._updates += 1
            share = layout.size / self._layout.size
            self._done, self._weight = self._done + 1, self._weight + share
            self._loss_sum += loss * share
            updated(update, loss)
            bar.update()
        total, weight = self._loss_sum, self._weight
        self._done, self._loss_sum, self._weight = 0, 0.0, 0.0
        if not weight:
            raise popart_exception(
                "PD586",
                "the data ended before there was an update",
                accepted=f"at least {self._layout.size} samples with drop_last (batch size x "
                "accumulation x replicas of the job), else one",
                hint="give a function that makes the iterator where it can be used up",
            )
        rate = self._optimizer.value("learningRate").val()
        weighed = self._job.summed({"loss": total / weight * self._job.local_replicas})
        mean = weighed["loss"] / self._job.total_replicas
        return {"epoch": number + 1, "loss": mean, "learning_rate": rate}

    def _run(
        self,
        layout: Layout,
        step: Mapping[str, Array],
        more: Callable[[Updates, Mapping[str, Array]], Mapping[str, Array]],
    ) -> float:
        """Runs one update, and returns the mean of its losses."""
        of = self._usual if layout is self._layout else self._smaller(layout)
        if of is not self._usual:
            of.continue_from(self._usual, self._optimizer)
        anchors = of.session.initAnchorArrays()
        of.session.run(PyStepIO({**step, **more(of, step)}, anchors))
        if of is not self._usual:
            self._usual.continue_from(of, self._optimizer)
        return float(anchors[of.loss].mean())

    def _next(self, steps: Iterator[Update], source: Source) -> Update | None:
        """The data of the next update; None at the end, which all instances must reach together."""
        step = next(steps, None)
        if self._job.is_shared and source.samples is None:
            have = self._job.summed({"have": float(step is not None), "instances": 1.0})
            if 0 < have["have"] < have["instances"]:
                raise popart_exception(
                    "PD586",
                    "the data end after another number of updates on some instances",
                    value=f"update {self._updates}: {int(have['have'])} of "
                    f"{int(have['instances'])} instances have data",
                    hint="give every instance the same data; fit takes its part by itself",
                )
        return step

    def _set_rate(self, rate: float) -> None:
        if rate != self._optimizer.value("learningRate").val():
            self._optimizer = self._optimizer.with_learning_rate(float(rate))
            self._usual.session.updateOptimizerFromHost(self._optimizer)
