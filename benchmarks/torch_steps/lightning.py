"""Lightning over popdist beside Lightning's own DistributedDataParallel, both started by poprun."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, cast

from benchmarks.ranks import run_on_ranks
from benchmarks.rows import compare
from benchmarks.sampling import Samples, slowest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rows import Row

_WARM_UP = 3
_OURS, _DDP = "popdist", "Lightning DDP"


def rows(name: str, rounds: int, repetitions: int) -> Iterator[Row]:
    """Times steps of one model on two ranks, in jobs that take turns.

    Args:
        name: A key of ``WORKLOADS``.
        rounds: Jobs of each.
        repetitions: Steps of each job.

    Yields:
        One row.
    """
    seconds: dict[str, list[float]] = {_OURS: [], _DDP: []}
    for strategy in (_OURS, _DDP) * rounds:
        answers = run_on_ranks(
            "benchmarks.torch_steps.lightning:train",
            launcher="poprun",
            # gloo otherwise looks for an interface by the host's name, which need not resolve.
            env={"GLOO_SOCKET_IFNAME": "lo"},
            workload=name,
            strategy=strategy,
            repetitions=repetitions,
        )
        seconds[strategy] += slowest(answers)
    yield compare(
        f"popdist under Lightning, {name}: step, 2 ranks",
        Samples(tuple(seconds[_OURS])),
        unit="ms",
        peer=_DDP,
        against=Samples(tuple(seconds[_DDP])),
        note="one thread a rank; Lightning's own work included",
    )


def train(*, workload: str, strategy: str, repetitions: int) -> list[float]:
    """Trains on one rank.

    Args:
        workload: A key of ``WORKLOADS``.
        strategy: ``popdist`` or ``Lightning DDP``.
        repetitions: Steps after those of the warm-up.

    Returns:
        Seconds of each step, from the start of one to the start of the next.
    """
    import os

    import lightning
    import torch
    from lightning.fabric.plugins.environments import TorchElasticEnvironment
    from lightning.pytorch.strategies import DDPStrategy

    import popdist_torch.lightning  # noqa: F401 - makes the strategy known
    from benchmarks.torch_steps.models import WORKLOADS

    torch.set_num_threads(1)
    chosen = WORKLOADS[workload]
    moments: list[float] = []

    class Module(lightning.LightningModule):  # type: ignore[misc]  # Lightning has no types here
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.network = chosen.make()

        def training_step(self, batch: Any, _: int) -> Any:
            return self.network(*batch)

        def on_train_batch_start(self, *_: Any) -> None:
            moments.append(time.perf_counter())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    ddp = DDPStrategy(cluster_environment=TorchElasticEnvironment(), process_group_backend="gloo")
    steps = _WARM_UP + repetitions + 1
    trainer = lightning.Trainer(
        strategy="popdist" if strategy == _OURS else ddp,
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        max_steps=steps,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    batches = [chosen.data(trainer.global_rank)] * steps
    loader: Any = torch.utils.data.DataLoader(cast("Any", batches), batch_size=None)
    trainer.fit(Module(), loader)
    return [after - before for before, after in itertools.pairwise(moments)][_WARM_UP:]
