"""Lightning with ``strategy="popdist"`` on two real ranks, against plain torch in one process."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import popdist
from popdist.errors import PopdistError
from tests.distributed.jobs import run_job
from tests.popdist_torch.reference import flat

RANKS, ROWS, EPOCHS = 2, 4, 2
CASES = {
    "plain": {},
    "accumulated and clipped": {"accumulate_grad_batches": 3, "gradient_clip_val": 0.05},
    "clipped by value": {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    "bf16-mixed": {"precision": "bf16-mixed", "gradient_clip_val": 0.05},
    "double": {"precision": "64-true"},
    # Six batches: the last update has two of them. Clipped, as that depends on the divisor.
    "double, accumulated": {
        "precision": "64-true",
        "accumulate_grad_batches": 4,
        "gradient_clip_val": 0.05,
    },
    # 51 rows: Lightning repeats one, and the last batches are smaller.
    "double, uneven": {
        "precision": "64-true",
        "accumulate_grad_batches": 2,
        "gradient_clip_val": 0.05,
    },
    "double, normalized": {"precision": "64-true", "sync_batchnorm": True},
}
TOLERANCES = {"bf16-mixed": 2e-3, **{name: 1e-12 for name in CASES if "double" in name}}


def data(name=""):
    """Rows of one case."""
    count = 51 if "uneven" in name else 48
    dtype = torch.float64 if "double" in name else torch.float32
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, 5, generator=generator, dtype=torch.float64).to(dtype)
    return TensorDataset(x, torch.randint(0, 3, (count,), generator=generator))


def network(name=""):
    norms = [nn.BatchNorm1d(7)] if "normalized" in name else []
    return nn.Sequential(nn.Linear(5, 7), *norms, nn.Tanh(), nn.Linear(7, 3))


def weights_of(model):
    statistics = [b.double().numpy().ravel() for b in model.buffers()]
    return np.concatenate([flat(model), *statistics])


def tools(folder):
    """A module's class, and a function that makes trainers."""
    import lightning as L  # noqa: N812 - as its documentation does
    import torchmetrics

    import popdist_torch.lightning  # noqa: F401 - makes the strategy known

    class Module(L.LightningModule):
        def __init__(self, name=""):
            super().__init__()
            self.network, self.seen = network(name), torchmetrics.SumMetric()

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

    warnings.simplefilter("ignore")
    return Module, trainer


def train(folder):
    Module, trainer = tools(folder)  # noqa: N806 - a class
    answer = {}
    for name, case in CASES.items():
        training = trainer(name, max_epochs=EPOCHS, **case)
        torch.manual_seed(1 + training.global_rank)  # rank 0's weights are taken
        module = Module(name)
        rows = data(name)
        training.fit(module, DataLoader(rows, ROWS), DataLoader(rows, ROWS))
        answer[name] = weights_of(module.network)
        answer[f"{name}: metrics"] = {k: float(v) for k, v in training.callback_metrics.items()}
        answer["world"] = [training.global_rank, training.world_size]

    first = trainer("first", max_epochs=1)
    torch.manual_seed(1)
    first.fit(Module(), DataLoader(data(), ROWS))
    answer["checkpoint"] = first.checkpoint_callback.best_model_path
    resumed, module = trainer("rest", max_epochs=EPOCHS), Module()
    resumed.fit(module, DataLoader(data(), ROWS), ckpt_path=answer["checkpoint"])
    answer["resumed"] = flat(module.network)
    decisions = resumed.strategy.reduce_boolean_decision
    answer["all"], answer["any"] = (decisions(resumed.is_global_zero, all=a) for a in (True, False))
    answer["told"] = resumed.strategy.broadcast({"from": resumed.global_rank}, src=1)
    ranks = resumed.strategy.all_gather(torch.tensor([float(resumed.global_rank)]))
    answer["ranks"] = ranks.tolist()
    return answer


def resume_alone(folder, checkpoint):
    """The rest of a run of several ranks, in one with as many rows an update."""
    Module, trainer = tools(folder)  # noqa: N806 - a class
    module = Module()
    rest = trainer("alone", max_epochs=EPOCHS)
    rest.fit(module, DataLoader(data(), RANKS * ROWS), ckpt_path=checkpoint)
    return {"resumed": flat(module.network)}


# What Lightning's documentation and its own tests ask of a strategy, beside equal weights.


def behave(folder):  # noqa: C901, PLR0915 - one job for many small programs
    import lightning as L  # noqa: N812 - as its documentation does
    from lightning.pytorch.callbacks import (
        EarlyStopping,
        ModelCheckpoint,
        StochasticWeightAveraging,
    )

    import popdist_torch.lightning  # noqa: F401 - makes the strategy known

    rank = popdist.getInstanceIndex()
    seen = {}

    def trainer(**arguments):
        plain = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        place = {"strategy": "popdist", "accelerator": "cpu", "default_root_dir": folder}
        return L.Trainer(**place, **plain, **{"enable_checkpointing": False, **arguments})

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.network = network()

        def loss(self, batch):
            return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

        def training_step(self, batch, _):
            return self.loss(batch)

        def validation_step(self, batch, _):
            epoch = self.current_epoch
            own = (1.0, 2.0, 5.0, 5.0, 5.0) if rank == 0 else (4.0, 1.0, 0.0, 9.0, 9.0)
            self.log("val", own[epoch], sync_dist=True)
            self.log("exact", self.loss(batch), sync_dist=True, batch_size=len(batch[1]))

        def test_step(self, batch, _):  # noqa: PT019 - no test: Lightning's name
            self.log("exact", self.loss(batch), sync_dist=True, batch_size=len(batch[1]))

        def predict_step(self, batch, _):
            return self.network(batch[0])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)

    class Watching(Module):
        def __init__(self):
            super().__init__()
            self.rows, self.norms = [], []

        def training_step(self, batch, index):
            self.rows.append(batch[0][:, 0].tolist())
            return super().training_step(batch, index)

        def on_before_optimizer_step(self, _optimizer):
            self.norms.append(float(self.network[0].weight.grad.norm()))

    class ByHand(Module):
        """Two optimizers, stepped by the program."""

        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, _):
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(self.loss(batch))
                self.clip_gradients(optimizer, 0.05, "norm")
                optimizer.step()

        def configure_optimizers(self):
            return [torch.optim.SGD(part.parameters(), lr=0.2) for part in self.network[::2]]

    rows = data()

    def loader(**arguments):
        return DataLoader(rows, ROWS, **arguments)

    # Epochs end on all ranks together; the file of the best epoch is written once and read by all.
    best = ModelCheckpoint(f"{folder}/best", "{epoch}", monitor="val", save_last=True)
    stopped = trainer(
        max_epochs=5,
        enable_checkpointing=True,
        callbacks=[EarlyStopping("val", patience=1), best],
        num_sanity_val_steps=0,
    )
    module = Module()
    stopped.fit(module, loader(), loader())
    seen["stopped"], seen["best"] = stopped.current_epoch, Path(best.best_model_path).name
    seen["best value"] = float(best.best_model_score)
    kept = torch.load(best.best_model_path, weights_only=True)["state_dict"]
    [tested] = stopped.test(module, loader(), ckpt_path="best")
    seen["best weights"] = np.array_equal(flat(module), flat_of(kept))
    seen["tested"], seen["weights"] = tested["exact"], flat(module.network)
    [validated] = stopped.validate(module, loader())
    seen["validated"] = validated["exact"]
    seen["predicted"] = torch.cat(stopped.predict(module, loader())).numpy()
    stopped.save_checkpoint(f"{folder}/saved/by_hand.ckpt")

    # Lightning divides data, in another order in each epoch, unless the program says otherwise.
    watching = Watching()
    dividing = trainer(max_epochs=2)
    dividing.fit(watching, loader(shuffle=True))
    half = len(watching.rows) // 2
    seen["first epoch"] = np.concatenate([np.array(one) for one in watching.rows[:half]])
    seen["second epoch"] = np.concatenate([np.array(one) for one in watching.rows[half:]])
    seen["norms"] = watching.norms
    seen["sampler"] = type(dividing.train_dataloader.sampler).__name__
    whole = Watching()
    trainer(max_epochs=1, use_distributed_sampler=False, limit_train_batches=3).fit(whole, loader())
    seen["undivided"] = [len(whole.rows), whole.rows[0] == rows.tensors[0][:ROWS, 0].tolist()]

    by_hand = ByHand()
    trainer(max_epochs=EPOCHS).fit(by_hand, loader())
    seen["by hand"] = flat(by_hand.network)
    averaged = Module()
    averaging = StochasticWeightAveraging(0.05, swa_epoch_start=1, annealing_epochs=1)
    trainer(max_epochs=3, callbacks=[averaging]).fit(averaged, loader())
    seen["averaged"] = flat(averaged.network)

    # Calls of a module between ranks.
    value = torch.full((2, 3), float(rank + 1), requires_grad=True)
    gathered = module.all_gather({"part": value}, sync_grads=True)["part"]
    gathered.square().sum().backward()
    seen["gathered"], seen["flowed"] = gathered.detach().numpy(), value.grad.numpy()
    stopped.strategy.barrier("here")
    seen["reduced"] = [
        float(stopped.strategy.reduce(torch.tensor(float(rank + 1)), reduce_op=how))
        for how in ("mean", "sum", "max", "min")
    ]

    # Ranks with unequal numbers of batches.
    part = DataLoader(rows, ROWS, sampler=range(20 + 28 * rank))
    uneven = trainer(max_epochs=1, use_distributed_sampler=False)
    seen["uneven"] = error_of(lambda: uneven.fit(Module(), part))
    endless = trainer(max_epochs=2, use_distributed_sampler=False)
    stream = DataLoader(Stream(range(16 + 4 * rank)), ROWS)
    seen["uneven streams"] = error_of(lambda: endless.fit(Module(), stream))

    class Saving(Module):
        def on_train_batch_end(self, *_):
            if self.trainer.is_global_zero:
                self.trainer.save_checkpoint(f"{folder}_alone/alone.ckpt")

    saving = trainer(max_epochs=1)
    seen["saved alone"] = error_of(lambda: saving.fit(Saving(), loader()))

    class Gathering(Module):
        def on_train_batch_end(self, *_):
            if self.trainer.is_global_zero:
                self.all_gather([torch.ones(2), torch.zeros(3)])

    class Logging(Module):
        def on_train_batch_end(self, *_):
            if not self.trainer.is_global_zero:
                self.trainer.strategy.reduce(torch.ones(1))

    gathering, logging = trainer(max_epochs=1), trainer(max_epochs=1)
    seen["logged alone"] = error_of(lambda: gathering.fit(Gathering(), loader()))
    seen["reduced alone"] = error_of(lambda: logging.fit(Logging(), loader()))
    return seen


ENDED = {
    "uneven streams": "the last batch of an epoch on instance 0; a backward pass on instance 1",
    "saved alone": "a barrier (Trainer.save_checkpoint) on instance 0",
    "logged alone": "all_gather on instance 0",
    "reduced alone": "a reduction on instance 1",
}
"""What ranks say that part, by what one of them does alone."""


class Stream(torch.utils.data.IterableDataset):
    """Some of the rows, without a length."""

    def __init__(self, indices):
        self.indices = indices

    def __iter__(self):
        return (data()[index] for index in self.indices)


def error_of(function):
    try:
        function()
    except PopdistError as error:
        return str(error)
    return "no error"


def flat_of(state):
    return np.concatenate([value.double().numpy().ravel() for value in state.values()])


def everything(folder):
    return train(folder) | {f"behaves, {k}": v for k, v in behave(f"{folder}/behaves").items()}


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
    rows = data(name)
    model = network(name).to(rows.tensors[0].dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    accumulation, losses, sizes = case.get("accumulate_grad_batches", 1), [], []
    for epoch in range(EPOCHS):
        optimizer.param_groups[0]["lr"] = 0.2 * 0.5**epoch
        losses, sizes = [], []
        batches = list(global_batches(rows, epoch))
        for index, (x, y) in enumerate(batches):
            with torch.autocast("cpu", torch.bfloat16, enabled=name == "bf16-mixed"):
                loss = nn.functional.cross_entropy(model(x), y)
            (loss / accumulation).backward()
            losses.append(loss.item())
            sizes.append(len(x))
            if (index + 1) % accumulation == 0 or index + 1 == len(batches):
                if case.get("gradient_clip_algorithm") == "value":
                    nn.utils.clip_grad_value_(model.parameters(), case["gradient_clip_val"])
                elif "gradient_clip_val" in case:
                    nn.utils.clip_grad_norm_(model.parameters(), case["gradient_clip_val"])
                optimizer.step()
                optimizer.zero_grad()
    return weights_of(model), np.average(losses, weights=sizes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lightning")


@pytest.fixture(scope="module")
def answers(folder):
    return run_job(everything, instances=RANKS, folder=str(folder), timeout=240)


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_one_process(answers, name):
    np.testing.assert_array_equal(answers[0][name], answers[1][name])
    weights, loss = expected(CASES[name], name)
    tolerance = TOLERANCES.get(name, 1e-6)
    np.testing.assert_allclose(answers[0][name], weights, rtol=0, atol=tolerance)
    for answer in answers:
        metrics = answer[f"{name}: metrics"]
        assert metrics["loss"] == pytest.approx(loss, abs=10 * tolerance)
        x, y = data(name).tensors
        repeated = y[0] if len(y) % RANKS else 0
        assert metrics["labels"] == y.sum() + repeated
        assert metrics["largest"] == pytest.approx(x.max().item(), abs=0.02)


def test_a_resumed_run_ends_as_an_uninterrupted_one(answers):
    for answer in answers:
        np.testing.assert_array_equal(answer["resumed"], answers[0]["plain"])


def test_one_rank_resumes_what_two_have_saved(answers, tmp_path):
    checkpoint = answers[0]["checkpoint"]
    [alone] = run_job(resume_alone, instances=1, folder=str(tmp_path), checkpoint=checkpoint)
    np.testing.assert_allclose(alone["resumed"], answers[0]["plain"], rtol=0, atol=1e-6)


def test_files_are_written_once_and_processes_decide_together(answers, folder):
    assert len(list(Path(folder, "plain").rglob("*.ckpt"))) == 1
    assert [answer["world"] for answer in answers] == [[0, 2], [1, 2]]
    for answer in answers:
        assert (answer["all"], answer["any"]) == (False, True)
        assert answer["told"] == {"from": 1}
        assert answer["ranks"] == [[0.0], [1.0]]


def told(answers, name):
    return [answer[f"behaves, {name}"] for answer in answers]


def loss_on_all_rows(weights):
    model = network()
    torch.nn.utils.vector_to_parameters(torch.tensor(weights).float(), model.parameters())
    x, y = data().tensors
    return model(x).detach(), nn.functional.cross_entropy(model(x), y).item()


def test_ranks_stop_together_and_keep_the_best_epoch(answers, folder):
    """The mean of both is 2.5, 1.5, 2.5: three epochs. Alone, rank 0 has two and rank 1 four."""
    assert told(answers, "stopped") == [3, 3]
    assert told(answers, "best") == ["epoch=1.ckpt"] * 2
    assert told(answers, "best value") == [1.5, 1.5]
    assert told(answers, "best weights") == [True, True]
    files = sorted(str(path.name) for path in Path(folder, "behaves").rglob("*.ckpt"))
    assert files == ["by_hand.ckpt", "epoch=1.ckpt", "last.ckpt"]


def test_metrics_and_predictions_are_those_of_all_rows(answers):
    weights = told(answers, "weights")
    np.testing.assert_array_equal(*weights)
    scores, loss = loss_on_all_rows(weights[0])
    for name in ("tested", "validated"):
        assert told(answers, name) == pytest.approx([loss, loss], abs=1e-6)
    for rank, predicted in enumerate(told(answers, "predicted")):
        np.testing.assert_allclose(predicted, scores[rank::RANKS], atol=1e-6)


def test_data_is_divided_anew_in_each_epoch(answers):
    assert told(answers, "sampler") == ["DistributedSampler"] * 2
    wanted = np.sort(data().tensors[0][:, 0].double().numpy())
    epochs = [np.concatenate(told(answers, name)) for name in ("first epoch", "second epoch")]
    for epoch in epochs:
        np.testing.assert_allclose(np.sort(epoch), wanted, atol=1e-7)
    assert (epochs[0] != epochs[1]).any()
    assert told(answers, "undivided") == [[3, True]] * 2


def test_gradients_before_a_step_are_those_of_all_ranks(answers):
    first, second = told(answers, "norms")
    assert first == second
    assert len(first) == 2 * 48 // (RANKS * ROWS)


def test_two_optimizers_by_hand_train_as_one_process(answers):
    torch.manual_seed(1)
    model = network()
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.2) for part in model[::2]]
    for epoch in range(EPOCHS):
        for x, y in global_batches(data(), epoch):
            for optimizer, part in zip(optimizers, model[::2], strict=True):
                model.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                nn.utils.clip_grad_norm_(part.parameters(), 0.05)
                optimizer.step()
    for weights in told(answers, "by hand"):
        np.testing.assert_allclose(weights, flat(model), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(*told(answers, "by hand"))
    np.testing.assert_array_equal(*told(answers, "averaged"))


def test_calls_between_ranks_reach_all_of_them(answers):
    for rank, gathered in enumerate(told(answers, "gathered")):
        np.testing.assert_array_equal(gathered[:, 0, 0], [1, 2])
        assert gathered.shape == (RANKS, 2, 3)
        # Each rank's sum of squares has the part: the gradients of both ranks come back.
        flowed = told(answers, "flowed")[rank]
        np.testing.assert_array_equal(flowed, np.full((2, 3), 4.0 * (rank + 1)))
    assert told(answers, "reduced") == [[1.5, 3.0, 2.0, 1.0]] * 2


def test_ranks_with_unequal_numbers_of_batches_say_so(answers):
    for uneven in told(answers, "uneven"):
        assert "[PD331]" in uneven
        assert "5 on instance 0; 12 on instance 1" in uneven
    for name, calls in ENDED.items():
        for error in told(answers, name):
            assert "[PD323]" in error
            assert calls in error
            assert "as many batches" in error
