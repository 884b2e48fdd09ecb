"""A model compiled for updates of one size: its session, and the numbers that its loss needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from popdist_onnx.graph.malformed import sound
from popdist_onnx.graph.names import ACCUMULATOR
from popdist_onnx.session.devices import DeviceManager
from popdist_onnx.session.training import TrainingSession
from popdist_onnx.training.data import Array, Data
from popdist_onnx.training.model import trainable, with_batch
from popdist_onnx.training.recurrent_biases import with_single_biases
from popdist_onnx.types import AnchorReturnType, DataFlow, ReductionType, SessionOptions

if TYPE_CHECKING:
    import onnx

    from popdist_onnx.optimizers.optimizer import Optimizer
    from popdist_onnx.training.divisors import Divisors
    from popdist_onnx.training.layout import Layout
    from popdist_onnx.training.sources import Source


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
        original: onnx.ModelProto,
        loss_kind: str,
        optimizer: Optimizer,
        layout: Layout,
        *,
        check_finite: bool,
        name: str = "training",
    ) -> None:
        self.layout = layout
        with sound(original):
            self.model = with_batch(with_single_biases(original), layout.batch)
            proto, self.loss, classes = trainable(self.model, loss_kind)
            self.data = Data.of(proto, classes)
            self.divisors = _divisors(proto, self.loss, layout, original)
        self.session = TrainingSession(
            proto,
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


def _divisors(
    proto: onnx.ModelProto, loss: str, layout: Layout, original: onnx.ModelProto
) -> Divisors | OnePart:
    if layout.parts == 1:
        return OnePart()
    from popdist_onnx.training.divisors import Divisors

    return Divisors(proto, loss, layout, original)


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
