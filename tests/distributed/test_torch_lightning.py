"""Lightning with ``strategy="popdist"`` on two real ranks, against plain torch in one process."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.distributed.jobs import run_job
from tests.popdist_torch.reference import flat

RANKS, ROWS, EPOCHS = 2, 4, 2
CASES = {
    "plain": {},
    "accumulated and clipped": {"accumulate_grad_batches": 3, "gradient_clip_val": 0.05},
    "clipped by value": {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    "bf16-mixed": {"precision": "bf16-mixed", "gradient_clip_val": 0.05},
    "double": {"precision": "64-true"},
}
TOLERANCES = {"bf16-mixed": 2e-3, "double": 1e-12}


def data(dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(48, 5, generator=generator, dtype=torch.float64).to(dtype)
    return TensorDataset(x, torch.randint(0, 3, (48,), generator=generator))


def network():
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def train(folder):
    import lightning as L  # noqa: N812 - as its documentation does
    import torchmetrics

    import popdist_torch.lightning  # noqa: F401 - makes the strategy known

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.network, self.seen = network(), torchmetrics.SumMetric()

        def training_step(self, batch, _):
            loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
            self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
            return loss

        def validation_step(self, batch, _):
            self.seen.update(batch[1])
            self.log("labels", self.seen)
            self.log("largest", batch[0].max(), sync_dist=True, reduce_fx="max")

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    def trainer(name, **arguments):
        return L.Trainer(
            strategy="popdist",
            accelerator="cpu",
            default_root_dir=f"{folder}/{name}",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **arguments,
        )

    answer = {}
    warnings.simplefilter("ignore")
    for name, case in CASES.items():
        training = trainer(name, max_epochs=EPOCHS, **case)
        torch.manual_seed(1 + training.global_rank)  # rank 0's weights are taken
        module = Module()
        rows = data(torch.float64 if name == "double" else torch.float32)
        training.fit(module, DataLoader(rows, ROWS), DataLoader(rows, ROWS))
        answer[name] = flat(module.network)
        answer[f"{name}: metrics"] = {k: float(v) for k, v in training.callback_metrics.items()}
        answer["world"] = [training.global_rank, training.world_size]

    first = trainer("first", max_epochs=1)
    torch.manual_seed(1)
    first.fit(Module(), DataLoader(data(), ROWS))
    resumed, module = trainer("rest", max_epochs=EPOCHS), Module()
    resumed.fit(
        module, DataLoader(data(), ROWS), ckpt_path=first.checkpoint_callback.best_model_path
    )
    answer["resumed"] = flat(module.network)
    decisions = resumed.strategy.reduce_boolean_decision
    answer["all"], answer["any"] = (decisions(resumed.is_global_zero, all=a) for a in (True, False))
    answer["told"] = resumed.strategy.broadcast({"from": resumed.global_rank}, src=1)
    ranks = resumed.strategy.all_gather(torch.tensor([float(resumed.global_rank)]))
    answer["ranks"] = ranks.tolist()
    return answer


def global_batches(rows, epoch):
    """What torch's samplers deal out to both ranks, as Lightning asks them to."""
    loaders = []
    for rank in range(RANKS):
        sampler = torch.utils.data.DistributedSampler(rows, RANKS, rank)
        sampler.set_epoch(epoch)
        loaders.append(DataLoader(rows, ROWS, sampler=sampler))
    for parts in zip(*loaders, strict=True):
        yield [torch.cat(tensors) for tensors in zip(*parts, strict=True)]


def expected(case, name):
    """Plain torch in one process."""
    torch.manual_seed(1)
    dtype = torch.float64 if name == "double" else torch.float32
    model = network().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    accumulation, losses = case.get("accumulate_grad_batches", 1), []
    for epoch in range(EPOCHS):
        optimizer.param_groups[0]["lr"] = 0.2 * 0.5**epoch
        losses = []
        for index, (x, y) in enumerate(global_batches(data(dtype), epoch)):
            with torch.autocast("cpu", torch.bfloat16, enabled=name == "bf16-mixed"):
                loss = nn.functional.cross_entropy(model(x), y)
            (loss / accumulation).backward()
            losses.append(loss.item())
            if (index + 1) % accumulation == 0:
                if case.get("gradient_clip_algorithm") == "value":
                    nn.utils.clip_grad_value_(model.parameters(), case["gradient_clip_val"])
                elif "gradient_clip_val" in case:
                    nn.utils.clip_grad_norm_(model.parameters(), case["gradient_clip_val"])
                optimizer.step()
                optimizer.zero_grad()
    return flat(model), np.mean(losses)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lightning")


@pytest.fixture(scope="module")
def answers(folder):
    return run_job(train, instances=RANKS, folder=str(folder))


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_one_process(answers, name):
    np.testing.assert_array_equal(answers[0][name], answers[1][name])
    weights, loss = expected(CASES[name], name)
    tolerance = TOLERANCES.get(name, 1e-6)
    np.testing.assert_allclose(answers[0][name], weights, rtol=0, atol=tolerance)
    for answer in answers:
        metrics = answer[f"{name}: metrics"]
        assert metrics["loss"] == pytest.approx(loss, abs=10 * tolerance)
        assert metrics["labels"] == data().tensors[1].sum()
        assert metrics["largest"] == pytest.approx(data().tensors[0].max().item(), abs=0.02)


def test_a_resumed_run_ends_as_an_uninterrupted_one(answers):
    for answer in answers:
        np.testing.assert_array_equal(answer["resumed"], answers[0]["plain"])


def test_files_are_written_once_and_processes_decide_together(answers, folder):
    assert len(list(Path(folder, "plain").rglob("*.ckpt"))) == 1
    assert [answer["world"] for answer in answers] == [[0, 2], [1, 2]]
    for answer in answers:
        assert (answer["all"], answer["any"]) == (False, True)
        assert answer["told"] == {"from": 1}
        assert answer["ranks"] == [[0.0], [1.0]]
