"""Lightning over the real Horovod: ``Trainer(strategy="popdist")``.

poprun makes the name known; under another launcher, importing this module does.

The trainer runs in processes that poprun, mpirun or horovodrun started, one a device; each reads
its part of the data. Gradients are exchanged as in a plain loop (`popdist_torch.horovod`), so that
accumulation, clipping and precision are Lightning's own.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric.plugins.environments import ClusterEnvironment
from lightning.pytorch.strategies import ParallelStrategy, StrategyRegistry
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_only

import popdist_torch.horovod as hvd
from popdist.agreement import disagreements, listed
from popdist.exchange import gather
from popdist_torch.errors import AgreementError, PlainLoopError
from popdist_torch.horovod.world import connected
from popdist_torch.rounds import ROUNDS, Call

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PopdistEnvironment", "PopdistStrategy"]

_OPERATIONS = {"mean": "Average", "avg": "Average", "sum": "Sum", "min": "Min", "max": "Max"}


class PopdistEnvironment(ClusterEnvironment):
    """The place of a process in its job, from its launcher and Horovod."""

    @property
    def creates_processes_externally(self) -> bool:
        """Whether another program starts the processes: always."""
        return True

    @property
    def main_address(self) -> str:
        """Not needed, as Horovod connects the processes."""
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        """Not needed, as Horovod connects the processes."""
        return 0

    @staticmethod
    def detect() -> bool:
        """Whether Lightning should choose this by itself: never."""
        return False

    def world_size(self) -> int:
        """Number of processes."""
        return hvd.size()

    def global_rank(self) -> int:
        """Index of this process, from 0."""
        return hvd.rank()

    def local_rank(self) -> int:
        """Index of this process on its host, from 0."""
        return hvd.local_rank()

    def node_rank(self) -> int:
        """Index of this process's host, from 0, where all hosts have as many processes."""
        return hvd.rank() // hvd.local_size()

    def set_world_size(self, size: int) -> None:
        """Does nothing: the launcher has decided."""

    def set_global_rank(self, rank: int) -> None:
        """Does nothing: the launcher has decided."""


class PopdistStrategy(ParallelStrategy):
    """Data-parallel training over Horovod, chosen by ``Trainer(strategy="popdist")``.

    Args:
        **kwargs: What Lightning gives a strategy: ``accelerator``, ``checkpoint_io`` and so on.

    Raises:
        BackendError: No usable Horovod is installed, or it sees another job than the launcher's.
    """

    strategy_name = "popdist"

    def __init__(self, **kwargs: Any) -> None:
        hvd.init()
        super().__init__(**{**kwargs, "cluster_environment": PopdistEnvironment()})
        rank_zero_only.rank = hvd.rank()

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Registers the strategy under its name."""
        strategy_registry.register(
            cls.strategy_name,
            cls,
            description="Data-parallel training over Horovod",
            override=True,  # poprun has made the name known
        )

    @property
    def root_device(self) -> torch.device:
        """This process's device: a GPU where the trainer uses them, else the CPU."""
        devices = self.parallel_devices or [torch.device("cpu")]
        return torch.device("cpu") if devices[0].type == "cpu" else hvd.pin_device()

    @property
    def num_processes(self) -> int:
        """Number of processes of the job on this machine, as a program divides its batch by."""
        return hvd.local_size()

    @property
    def is_distributed(self) -> bool:
        """Whether each process reads its own part of the data: always."""
        return True

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """How Lightning divides data: by all processes of the job."""
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def model_to_device(self) -> None:
        """Moves the module to this process's device."""
        if self.model is not None:
            self.model.to(self.root_device)

    def setup(self, trainer: Any) -> None:
        """Gives all processes one state, and optimizers that exchange gradients.

        Args:
            trainer: Lightning's trainer.

        Raises:
            AgreementError: The processes have other parameters.
            Error: ``sync_batchnorm`` was asked for, and a layer has a ``forward`` of its own.
        """
        if self._layer_sync is not None and self.lightning_module is not None:
            hvd.SyncBatchNorm.convert_sync_batchnorm(self.lightning_module)
        super().setup(trainer)
        module = self.lightning_module
        assert module is not None  # noqa: S101 - `super` has seen to it
        hvd.broadcast_parameters(module)
        self._gather_metrics(module)
        if trainer.state.fn == TrainerFn.FITTING:
            for optimizer in self.optimizers:
                if not isinstance(optimizer, hvd.Distributed):
                    hvd.DistributedOptimizer(optimizer, module.named_parameters())

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Lets backward passes inside add to local gradients only, while Lightning accumulates."""
        with ExitStack() as stack:
            for optimizer in self.optimizers:
                if isinstance(optimizer, hvd.Distributed):
                    stack.enter_context(optimizer.no_sync())
            yield

    def on_train_start(self) -> None:
        """Compares the numbers of batches.

        Raises:
            AgreementError: They differ between processes; raised on all of them.
        """
        horovod, module = connected(), self.lightning_module
        if horovod is None or module is None:
            return
        batches = {"training batches of an epoch": str(module.trainer.num_training_batches)}
        ROUNDS.meet(Call("the start of training"), horovod)
        found = disagreements(batches, gather(horovod))
        if found:
            raise AgreementError(
                "PD331",
                f"the processes have different numbers of batches:{listed(found)}",
                hint="let Lightning divide the data (use_distributed_sampler), give all processes "
                "as many samples, or set Trainer(limit_train_batches=...) to the smallest number",
            )

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Waits before the last batch of an epoch, so that a process with more batches sees that.

        Args:
            batch: Unused.
            batch_idx: Unused.

        Raises:
            AgreementError: Other processes have more batches.
        """
        del batch, batch_idx
        module = self.lightning_module
        # The number of batches may be known to the loader only when it ends.
        if module is not None and module.trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            _meet("the last batch of an epoch")

    def on_train_end(self) -> None:
        """Waits for all processes.

        Raises:
            AgreementError: Others train on.
        """
        _meet("the end of training")

    def barrier(self, name: str | None = None) -> None:
        """Waits for all processes.

        Args:
            name: Where, for messages.

        Raises:
            AgreementError: Others do something else, such as training.
        """
        _meet("a barrier", name or "")

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Sends an object of one process to all.

        Args:
            obj: The object, which is pickled; that of other processes is ignored.
            src: The process that sends.

        Returns:
            The object of process ``src``.

        Raises:
            AgreementError: Other processes do something else.
        """
        horovod = _meet("a broadcast")
        return obj if horovod is None else horovod.broadcast_object(obj, src)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Reduces a tensor over all processes.

        Args:
            tensor: A tensor of any shape, equal on all processes; anything else is handed back.
            group: Ignored.
            reduce_op: ``"mean"``, ``"sum"``, ``"min"`` or ``"max"``, or one of ``ReduceOp``.

        Returns:
            A tensor of this shape and type; means of whole numbers, and sums of bfloat16, are
            float32.

        Raises:
            AgreementError: Other processes do something else.
            PlainLoopError: Horovod has no such reduction.
        """
        del group
        horovod = connected()
        if horovod is None or not isinstance(tensor, torch.Tensor):
            return tensor
        name = str(reduce_op or "mean").rsplit(".", maxsplit=1)[-1].lower()
        if name not in _OPERATIONS:
            raise PlainLoopError(
                "PD322",
                "tensors cannot be reduced like this",
                value=reduce_op,
                accepted=", ".join(_OPERATIONS),
            )
        _meet("a reduction")
        operation = _OPERATIONS[name]
        exact = torch.is_floating_point(tensor) and tensor.dtype != torch.bfloat16
        if not exact and (operation == "Average" or torch.is_floating_point(tensor)):
            tensor = tensor.float()
        # Through the host: a Horovod without NCCL takes no tensor of a GPU, NCCL not all types.
        flat = tensor.detach().reshape(-1).cpu()
        total = horovod.allreduce(flat, op=getattr(horovod, operation), name="popdist reduction")
        return total.view(tensor.shape).to(tensor.device)

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> Any:
        """Stacks every process's tensor.

        Args:
            tensor: A tensor, of one shape and type on all processes.
            group: Ignored.
            sync_grads: Whether gradients flow back to the processes that the parts are of: to each
                the sum of what all processes have for it, as in Lightning's own strategies.

        Returns:
            A tensor ``[processes, *tensor.shape]``, on the tensor's device.

        Raises:
            AgreementError: Other processes do something else.
        """
        del group
        horovod = _meet("all_gather")
        rows = tensor.unsqueeze(0) if sync_grads else tensor.detach().unsqueeze(0)
        return rows if horovod is None else hvd.allgather(rows.cpu()).to(rows.device)

    def _gather_metrics(self, module: torch.nn.Module) -> None:
        """Makes torchmetrics, which know torch.distributed only, gather over Horovod."""
        parts: list[Any] = list(module.modules())
        for part in parts:
            if hasattr(part, "dist_sync_fn") and hasattr(part, "distributed_available_fn"):
                part.distributed_available_fn = lambda: hvd.size() > 1
                if part.dist_sync_fn is None:
                    part.dist_sync_fn = _gathered


def _meet(call: str, detail: str = "") -> Any | None:
    """Waits until all processes make a call, and returns Horovod; None in a job of one process.

    Raises:
        AgreementError: Some do something else, such as training on (PD323).
    """
    horovod = connected()
    if horovod is not None:
        ROUNDS.meet(Call(call, detail), horovod)
    return horovod


def _gathered(value: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
    """Every process's part of a metric's state; parts may differ in their first dimension."""
    del group
    horovod = _meet("the gathering of a metric")
    if horovod is None:
        return [value]
    rows = value.reshape(1) if value.dim() == 0 else value
    sizes = horovod.allgather(torch.tensor([len(rows)])).tolist()
    parts = horovod.allgather(rows.cpu().contiguous()).to(value.device).split(sizes)
    return [part.reshape(()) if value.dim() == 0 else part for part in parts]


PopdistStrategy.register_strategies(StrategyRegistry)
