"""`fit` on two instances: the same weights and measurements as one process with the whole batch."""

import os
import signal

import numpy as np
import pytest
import torch
from onnx import parser

import popdist
import popdist.popart
import popdist_onnx
from popdist_onnx.gradients.recurrent import LEAST_PRODUCTS
from tests.distributed.jobs import JobFailedError, run_job
from tests.popdist_onnx import nested_weights, networks
from tests.popdist_onnx.graph import test_attention
from tests.popdist_onnx.session import test_abort
from tests.popdist_onnx.training import test_classical, test_recurrent_biases, test_torch_losses
from tests.popdist_onnx.training.test_trainer import data, exported, network
from tests.popdist_onnx.transforms.test_quantization import (
    Aware,
    export,
    samples,
    trained_by_torch,
)

GLOBAL_BATCH = 8


def batches_of_five():
    x, y = data()
    for start in range(0, len(x), 5):
        yield x[start : start + 5], y[start : start + 5]


def make(instances):
    return popdist_onnx.Trainer(
        exported(network()),
        optimizer="momentum",
        batch_size=GLOBAL_BATCH // instances,
        clip_norm=0.5,
        freeze="0.bias",
        metrics=["accuracy"],
    )


class Middle(popdist_onnx.Callback):
    """Writes a checkpoint in the middle of the first epoch of a `fit`."""

    def __init__(self, path):
        self.path, self.updates = path, 0

    def on_update_end(self, trainer, update, loss):
        del update, loss
        self.updates += 1
        if self.updates == 2:
            trainer.save_checkpoint(self.path)


def trained(folder):
    """Streams, then a checkpoint that only the first instance has, then arrays in a drawn order."""
    here = popdist.getInstanceIndex()
    checkpoint = f"{folder}/{here}.onnx"
    x, y = data()
    held_out = (x[:13], y[:13])
    first = make(popdist.getNumInstances())
    streamed = first.fit(
        batches_of_five,
        epochs=2,
        validation=held_out,
        schedule=lambda update: 0.05 / (1 + update),
        callbacks=[popdist_onnx.Checkpoint(checkpoint)],
    )
    second = make(popdist.getNumInstances())
    second.resume(checkpoint)
    middle = Middle(f"{folder}/{here}.middle.onnx")
    history = second.fit(x, y, epochs=2, validation=held_out, callbacks=[middle])
    third = make(popdist.getNumInstances())
    third.resume(middle.path)
    third.fit(x, y, epochs=2)
    found = {
        "losses": list(second.history),
        "val_loss": streamed.of("val_loss") + history.of("val_loss"),
        "val_accuracy": streamed.of("val_accuracy") + history.of("val_accuracy"),
        **second.weights,
        **{f"from the middle/{name}": weight for name, weight in third.weights.items()},
    }
    found |= {f"{kind}/{n}": w for kind in RECURRENT for n, w in recurrent(kind).items()}
    found |= {f"attention/{n}": w for n, w in attention().items()}
    found |= {f"smoothed/{n}": w for n, w in smoothed().items()}
    found |= {f"quantized/{n}": w for n, w in quantized().items()}
    found |= {f"linear/{n}": w for n, w in linear().items()}
    batch = test_recurrent_biases.ROWS // 2 // popdist.getNumInstances()
    of_keras = test_recurrent_biases.trained(test_recurrent_biases.model(), batch)
    found |= {f"of keras/{n}": w for n, w in of_keras.weights.items()}
    if popdist.getNumInstances() > 1:
        found |= ended(second, here)
    return found


def linear():
    """A classifier of scikit-learn, whose coefficients are attributes in the file."""
    x, classes, _ = test_classical.data()
    trainer = popdist_onnx.Trainer(
        test_classical.MODELS["softmax"][0],
        optimizer="sgd",
        learning_rate=test_classical.RATE,
        batch_size=GLOBAL_BATCH // popdist.getNumInstances(),
    )
    trainer.fit(x, classes, epochs=test_classical.EPOCHS, shuffle=False)
    return trainer.weights


class Last(torch.nn.Module):
    """A recurrent layer, and a linear one of its last step."""

    def __init__(self, kind):
        super().__init__()
        self.body = RECURRENT[kind](STEP, HIDDEN, batch_first=True)
        self.head = torch.nn.Linear(HIDDEN, 2)

    def forward(self, x):
        return self.head(self.body(x)[0][:, -1])


RECURRENT = {"LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU}
STEP, HIDDEN = 8, 384


def recurrent(kind):
    """A layer so large that it is written as a loop that keeps its gates."""
    instances = popdist.getNumInstances()
    batch = GLOBAL_BATCH // instances
    assert batch * HIDDEN * (STEP + HIDDEN) >= LEAST_PRODUCTS
    torch.manual_seed(3)
    rng = np.random.default_rng(4)
    x = rng.normal(size=(2 * GLOBAL_BATCH, 3, STEP)).astype(np.float32)
    trainer = popdist_onnx.Trainer(
        popdist_onnx.from_torch(Last(kind), torch.from_numpy(x[:batch]), "mse"),
        optimizer="momentum",
        learning_rate=0.05,
        batch_size=batch,
    )
    losses = trainer.fit(x, x[:, 1, :2] ** 2, epochs=3)
    return {"losses": list(losses), **trainer.weights}


ATTENTION = {"learning_rate": 0.3, "epochs": 3}


def attention():
    """Attention of opset 23 with groups, a mask that trains, causal positions and a cap."""
    trainer = popdist_onnx.Trainer(
        test_attention.network_file(),
        optimizer="sgd",
        learning_rate=ATTENTION["learning_rate"],
        batch_size=GLOBAL_BATCH // popdist.getNumInstances(),
    )
    trainer.fit(*test_attention.network_samples(), epochs=ATTENTION["epochs"], shuffle=False)
    return trainer.weights


class Pair(torch.nn.Module):
    """Returns a second tensor beside the scores."""

    def __init__(self):
        super().__init__()
        self.body = test_torch_losses.network()

    def forward(self, x):
        scores = self.body(x)
        return scores, scores.square().mean()


def smooth(scores, labels):
    return torch.nn.functional.cross_entropy(scores, labels, label_smoothing=0.1)


def smoothed():
    """Probabilities as labels, which are smoothed in addition; a loss of two outputs."""
    x, y = test_torch_losses.samples(), test_torch_losses.labels("shares").astype(np.float32)
    batch = GLOBAL_BATCH // popdist.getNumInstances()
    proto = popdist_onnx.from_torch(
        Pair(),
        torch.from_numpy(x[:batch]),
        loss=lambda made, labels: smooth(made[0], labels) + made[1],
        example_labels=torch.from_numpy(y[:batch]),
    )
    trainer = popdist_onnx.Trainer(
        proto, optimizer="sgd", learning_rate=test_torch_losses.RATE, batch_size=batch
    )
    trainer.fit({"x": x, "labels": y}, epochs=2, shuffle=False)
    return {name.removeprefix("body."): one for name, one in trainer.weights.items()}


def smoothed_by_torch():
    def loss(scores, labels):
        return smooth(scores, labels) + scores.square().mean()

    x, y = test_torch_losses.samples(), test_torch_losses.labels("shares")
    return test_torch_losses.by_torch(loss, x, y, GLOBAL_BATCH)[0]


UNEVEN_BATCH, UNEVEN_CLIP = 16, 0.5


class Uneven(torch.utils.data.Dataset):
    """Rows of which other numbers count on each replica, in one micro-batch none."""

    def __init__(self):
        numbers = np.random.default_rng(7)
        self.x = numbers.normal(size=(4 * UNEVEN_BATCH, test_torch_losses.FEATURES))
        self.x = self.x.astype(np.float32)
        self.y = numbers.integers(0, test_torch_losses.CLASSES, len(self.x))
        self.y[numbers.random(len(self.y)) < np.linspace(0.1, 0.8, UNEVEN_BATCH).repeat(4)] = -100
        self.y[UNEVEN_BATCH : UNEVEN_BATCH + 4] = -100

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]

    def source(self, kind):
        batches = [(self.x[i : i + 6], self.y[i : i + 6]) for i in range(0, len(self.x), 6)]
        return {"arrays": (self.x, self.y), "rows": self, "batches": lambda: iter(batches)}[kind]


def class_weights():
    return torch.nn.CrossEntropyLoss(weight=torch.linspace(0.5, 1.5, test_torch_losses.CLASSES))


class Limited(torch.nn.Module):
    """A sum over a mask, by the mask's sum, which is limited: it is 0 in one micro-batch."""

    def forward(self, scores, labels):
        rows = torch.nn.functional.cross_entropy(scores, labels, reduction="none")
        return rows.sum() / (labels >= 0).sum().clamp(min=3)


class Perplexity(torch.nn.CrossEntropyLoss):
    """A function of a mean."""

    def forward(self, scores, labels):
        return super().forward(scores, labels).exp() / 4


class Tasks(Limited):
    """Means with other divisors, a root of a mean, and means over selected samples."""

    def forward(self, scores, labels):
        chosen = scores[labels > 1]
        mean = (super().forward(scores, labels) + 0.3 * scores.abs().mean()) / 2
        return mean + scores.square().mean().sqrt() + 0.1 * chosen.square().mean()


UNEVEN = {
    "arrays": class_weights,
    "rows": class_weights,
    "batches": class_weights,
    "arrays, limited": Limited,
    "rows, perplexity": Perplexity,
    "batches, tasks": Tasks,
}


def uneven(folder):
    """Losses that are no means of equal parts, from data of three kinds, with clipping."""
    found, data = {}, Uneven()
    settings = {
        "optimizer": "momentum",
        "learning_rate": test_torch_losses.RATE,
        "batch_size": UNEVEN_BATCH // 2 // popdist.getNumTotalReplicas(),
        "accumulation": 2,
        "clip_norm": UNEVEN_CLIP,
    }
    path = f"{folder}/{popdist.getNumInstances()}.onnx"
    for kind, loss in UNEVEN.items():
        model = popdist_onnx.from_torch(
            test_torch_losses.network(),
            torch.from_numpy(data.x[:UNEVEN_BATCH]),
            loss=loss(),
            example_labels=torch.from_numpy(data.y[:UNEVEN_BATCH]),
        )
        trainer = popdist_onnx.Trainer(model, **settings)
        source = data.source(kind.partition(",")[0])
        losses = trainer.fit(source, epochs=1, shuffle=False)
        trainer.save_checkpoint(path)
        # The file is the first instance's, where `resume` reads it for all of them.
        trainer = popdist_onnx.Trainer(model, **settings)
        trainer.resume(path)
        losses += trainer.fit(source, epochs=1, shuffle=False)
        found |= {f"{kind}/{name}": weight for name, weight in trainer.weights.items()}
        found[f"{kind}/losses"] = list(losses)
    return found


def uneven_by_torch(loss):
    """The same on the global batch in float64."""
    net, loss, data = test_torch_losses.network().double(), loss.double(), Uneven()
    rule = torch.optim.SGD(net.parameters(), test_torch_losses.RATE, momentum=0.9)
    losses = []
    for start in 2 * list(range(0, len(data), UNEVEN_BATCH)):
        rows = slice(start, start + UNEVEN_BATCH)
        rule.zero_grad()
        value = loss(net(torch.from_numpy(data.x[rows]).double()), torch.from_numpy(data.y[rows]))
        value.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), UNEVEN_CLIP)
        rule.step()
        losses.append(value.item())
    return {
        **{name: weight.detach().numpy() for name, weight in net.named_parameters()},
        "losses": np.reshape(losses, (2, -1)).mean(1),
    }


def require_uneven(*runs):
    """Weights are those of torch, and the same on all instances."""
    for kind, loss in UNEVEN.items():
        for name, wanted in uneven_by_torch(loss()).items():
            for found in runs:
                got = found.pop(f"{kind}/{name}")
                said = f"{kind}: {name}"
                np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6, err_msg=said)


QUANTIZED = {"learning_rate": 0.2, "epochs": 2}


def quantized():
    """A network that torch exports with fake quantization of weights and activations."""
    torch.manual_seed(0)
    trainer = popdist_onnx.Trainer(
        export(Aware()),
        optimizer="sgd",
        learning_rate=QUANTIZED["learning_rate"],
        batch_size=GLOBAL_BATCH // popdist.getNumInstances(),
    )
    trainer.fit(*samples(), epochs=QUANTIZED["epochs"], shuffle=False)
    return trainer.weights


def ended(trainer, here):
    """One instance asks for the end; one has less data; each has data of its own."""

    def stop(asked, _record):
        asked.stop = here == 1

    few = trainer.fit(*data(), epochs=5, callbacks=[stop])
    x, y = data()
    rows, own = slice(0, 16 if here else 40), slice(here, None, 2)
    given = [
        ([(x[rows], y[rows])], None),
        ([(x[own], y[own])], None),
        ([(x, y)], (x[own], y[own])),
    ]
    return {
        "epochs": len(few),
        "errors": [refusal(trainer, *one) for one in given],
        "aborted": aborted(here),
    }


def aborted(here):
    """A condition that is true on the second instance alone, in the second of three updates."""
    options = popdist_onnx.SessionOptions()
    popdist.popart.configureSessionOptions(options)
    session = test_abort.training(*test_abort.network(), 3, options=options)
    x = np.full((3, 2), test_abort.FINE, np.float32)
    x[1, 0] = test_abort.BAD if here else test_abort.FINE
    said = ""
    try:
        test_abort.run(session, x)
    except popdist_onnx.poplar_runtime_error as error:
        said = str(error)
    session.weightsToHost()
    after = session.fetched["w"].tolist()
    x[1, 0] = test_abort.FINE
    return said, after, test_abort.run(session, x).tolist()


def refusal(trainer, samples, validation):
    try:
        trainer.fit(iter(samples), validation=validation)
    except popdist_onnx.popart_exception as error:
        return str(error)
    return ""


def test_two_instances_train_as_one_process(tmp_path):
    one, *_ = run_job(trained, instances=1, folder=str(tmp_path))
    by_torch = {
        "quantized": trained_by_torch(GLOBAL_BATCH, **QUANTIZED),
        "smoothed": smoothed_by_torch(),
        "attention": test_attention.network_by_torch(GLOBAL_BATCH, **ATTENTION),
        "of keras": test_recurrent_biases.by_torch(batch=test_recurrent_biases.ROWS // 2),
    }
    for kind, weights in by_torch.items():
        for name, wanted in weights.items():
            np.testing.assert_allclose(one[f"{kind}/{name}"], wanted, rtol=1e-5, atol=2e-6)
    x, classes, _ = test_classical.data()
    for name, wanted in zip(
        ("coefficients", "intercepts"),
        test_classical.by_torch("softmax", x, classes, GLOBAL_BATCH),
        strict=True,
    ):
        np.testing.assert_allclose(one[f"linear/{name}"], wanted, rtol=1e-4, atol=1e-5)
    (tmp_path / "0.onnx").unlink()
    both = run_job(trained, instances=2, folder=str(tmp_path))
    assert not (tmp_path / "1.onnx").exists()
    for found in both:
        assert found.pop("epochs") == 1
        said, after, later = found.pop("aborted")
        assert "[PD599]" in said
        assert "1 micro-batch, on instance 1 of 2" in said
        # Two of three updates, with the sum of both gradients of |x w|; then three more.
        fine, bad = test_abort.FINE, test_abort.BAD
        w = np.ones(2)
        for total in ([2 * fine, 2 * fine], [fine + bad, 2 * fine]):
            w = w - 0.25 * np.asarray(total) * np.sign(w)
        np.testing.assert_allclose(after, w, rtol=1e-6)
        for _ in range(3):
            w = w - 0.25 * 2 * fine * np.sign(w)
        np.testing.assert_allclose(later, w, rtol=1e-6)
        fewer, streamed, held_out = found.pop("errors")
        assert "data end after another number of updates" in fewer
        assert "values of x" in streamed
        assert "values of x" in held_out
        assert found.keys() == one.keys()
        for name in network().state_dict():
            np.testing.assert_array_equal(found[f"from the middle/{name}"], found[name])
        np.testing.assert_array_equal(found["0.bias"], network()[0].bias.detach())
        for name, wanted in one.items():
            np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=2e-6, err_msg=name)
            np.testing.assert_array_equal(found[name], both[0][name])


WHOLE, KILLED_AT = 4, 13


class Kill(popdist_onnx.Callback):
    """Ends one instance in the middle of the third epoch, while others wait for its gradients."""

    def on_update_end(self, trainer, update, loss):
        del trainer, loss
        if update == KILLED_AT and popdist.getInstanceIndex():
            os.kill(os.getpid(), signal.SIGKILL)


def in_two_jobs(folder, stops=(), *, resumes=False):
    """The epochs that are missing, in an order that is drawn, with Adam's state."""
    instances = popdist.getNumInstances()
    trainer = popdist_onnx.Trainer(
        exported(network()), optimizer="adam", batch_size=GLOBAL_BATCH // instances, seed=3
    )
    if resumes:
        trainer.resume(f"{folder}/epoch.onnx")
    before = len(trainer.history)
    checkpoint = popdist_onnx.Checkpoint(f"{folder}/epoch.onnx")
    callbacks = [checkpoint, *(Kill() for _ in stops)]
    trainer.fit(*data(), epochs=WHOLE - before, callbacks=callbacks)
    return {"before": before, "losses": list(trainer.history), **trainer.weights}


def test_a_job_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path):
    undisturbed = in_two_jobs(str(tmp_path))
    (tmp_path / "epoch.onnx").unlink()
    with pytest.raises(JobFailedError, match="SIGKILL"):
        run_job(in_two_jobs, folder=str(tmp_path), stops=["here"])
    both = run_job(in_two_jobs, folder=str(tmp_path), resumes=True)
    for found in both:
        assert 0 < found.pop("before") < WHOLE
        assert found.keys() == undisturbed.keys() - {"before"}
        for name, array in found.items():
            np.testing.assert_array_equal(array, both[0][name])
            np.testing.assert_allclose(array, undisturbed[name], rtol=1e-5, atol=2e-6)


SCALED_STEPS = 4


def scaled(folder):
    """Automatic loss scaling, whose counts have to be those of all replicas together."""
    options = popdist_onnx.SessionOptions()
    popdist.popart.configureSessionOptions(options)
    settings = options.automaticLossScalingSettings
    settings.enabled = True
    settings.binEdgeLocation = 2.0 / float(np.finfo(np.float64).max)
    settings.thresholdUpperCountProportion = 0.02
    every = popdist_onnx.AnchorReturnType("All")
    made = popdist_onnx.TrainingSession(
        networks.perceptron(2),
        popdist_onnx.DataFlow(SCALED_STEPS, {"Gradient___loss": every}),
        "loss",
        popdist_onnx.SGD({"defaultLearningRate": (0.1, False), "lossScaling": (4.0, False)}),
        popdist_onnx.DeviceManager().createCpuDevice(),
        userOptions=options,
    )
    made.prepareDevice()
    made.weightsFromHost()
    # What the replicas see differs so much that their own counts would decide otherwise.
    x, target = networks.batches(SCALED_STEPS, 2, 2)
    x *= np.asarray([0.01, 3.0]).reshape(1, 2, 1, 1)
    first = popdist.getReplicaIndexOffset()
    mine = slice(first, first + popdist.getNumLocalReplicas())
    anchors = made.initAnchorArrays()
    data = {"x": x[:, mine].copy(), "target": target[:, mine].copy()}
    made.run(popdist_onnx.PyStepIO(data, anchors))
    made.weightsToHost()
    scales = anchors["Gradient___loss"].reshape(SCALED_STEPS, -1)[:, 0]
    weights = {name: made.fetched[name] for name in networks.weights()}
    return {"scales": scales, **weights, **uneven(folder)}


def test_the_loss_scale_and_divisors_of_means_are_those_of_all_instances(tmp_path):
    one, *_ = run_job(scaled, instances=1, replicas=2, folder=str(tmp_path))
    assert len(np.unique(one["scales"])) > 1
    both = run_job(scaled, instances=2, replicas=2, folder=str(tmp_path))
    for name, found in both[0].items():
        np.testing.assert_array_equal(found, both[1][name], err_msg=name)
    require_uneven(one, *both)
    for found in both:
        np.testing.assert_array_equal(found["scales"], one["scales"])
        for name, wanted in one.items():
            np.testing.assert_allclose(found[name], wanted, rtol=0, atol=1e-12)


FROZEN = ["turn", "one/then_branch/*"]
RATE, EPOCHS = 0.1, 3


def nested():
    """Weights in the bodies of If, Loop and Scan, all of them and without some."""
    instances = popdist.getNumInstances()
    found = {}
    for label, freeze in (("all", ()), ("some", FROZEN)):
        made = popdist_onnx.Trainer(
            nested_weights.nested_model(GLOBAL_BATCH // instances),
            optimizer="sgd",
            learning_rate=RATE,
            loss="mse",
            batch_size=GLOBAL_BATCH // instances,
            freeze=freeze,
        )
        made.fit(*nested_weights.nested_data(GLOBAL_BATCH), epochs=EPOCHS, shuffle=False)
        found |= {f"{label} {name}": value for name, value in made.weights.items()}
        found[f"{label} summary"] = made.summary()
    made = popdist_onnx.Trainer(
        parser.parse_model(nested_weights.OPEN),
        optimizer="sgd",
        learning_rate=RATE,
        loss="loss",
        batch_size=GLOBAL_BATCH // instances,
    )
    made.fit(nested_weights.open_data(GLOBAL_BATCH), epochs=EPOCHS, shuffle=False)
    return found | {f"open {name}": value for name, value in made.weights.items()}


def test_weights_inside_loops_and_branches_train_as_in_torch():
    x, y = nested_weights.nested_data(GLOBAL_BATCH)
    wanted = {
        "all": nested_weights.trained_by_torch(x, y, RATE, EPOCHS),
        "some": nested_weights.trained_by_torch(x, y, RATE, EPOCHS, frozen=["turn", "then"]),
    }
    runs = [*run_job(nested, instances=1), *run_job(nested, instances=2)]
    for found in runs:
        for name, array in nested_weights.open_by_torch(GLOBAL_BATCH, RATE, EPOCHS).items():
            np.testing.assert_allclose(found[f"open {name}"], array, rtol=2e-5, atol=1e-6)
        for label, weights in wanted.items():
            for name, full in nested_weights.NAMES.items():
                got = found[f"{label} {full}"]
                np.testing.assert_allclose(got, weights[name], rtol=2e-5, atol=1e-6, err_msg=name)
                frozen = label == "some" and name in ("turn", "then")
                listed = [one.split() for one in found[f"{label} summary"].splitlines()]
                (said,) = [one[-1] for one in listed if one[:1] == [full]]
                assert said == ("frozen" if frozen else "trained")
    for name, value in runs[1].items():
        np.testing.assert_array_equal(value, runs[2][name], err_msg=name)
