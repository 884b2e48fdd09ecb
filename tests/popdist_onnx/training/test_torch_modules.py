"""Modules of torch exported, trained here, and put back: weights are those that torch trains."""

import copy
import io
from importlib.util import find_spec

import numpy as np
import onnx_ir
import pytest
import torch
from torch import nn

import popdist_onnx

# The first onnx-ir that torch's newer exporter can use needs a newer ml-dtypes than TensorFlow 2.15
# has. `make test-latest` and `make test-zoo` run what is skipped here.
DYNAMO = find_spec("onnxscript") is not None and hasattr(onnx_ir, "schemas")

EXPORTERS = [
    "torchscript",
    pytest.param(
        "dynamo", marks=pytest.mark.skipif(not DYNAMO, reason="onnx-ir is too old for onnxscript")
    ),
]

SAMPLES, BATCH, CLASSES, RATE = 24, 8, 11, 0.1


class Tied(nn.Module):
    """Tied weights, batch normalisation, a buffer that is read, and a layer that is not trained."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(CLASSES, 6)
        self.conv = nn.Conv1d(6, 6, 3, padding=1)
        self.norm = nn.BatchNorm1d(6)
        self.fixed = nn.Linear(6, 6).requires_grad_(requires_grad=False)
        self.head = nn.Linear(6, CLASSES, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("shift", torch.full((6,), 0.25))

    def forward(self, tokens):
        hidden = self.conv(self.embed(tokens).transpose(1, 2))
        return self.head(self.fixed(torch.relu(self.norm(hidden)).mean(-1) + self.shift))


def data():
    rng = np.random.default_rng(0)
    return rng.integers(0, CLASSES, (SAMPLES, 5)), rng.integers(0, CLASSES, SAMPLES)


def by_torch(module, loss, epochs):
    """A copy trained by torch in double precision, and its losses."""
    module = copy.deepcopy(module).double().train()
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=RATE)
    tokens, labels = (torch.from_numpy(one) for one in data())
    losses = []
    for _ in range(epochs):
        found = []
        for start in range(0, SAMPLES, BATCH):
            optimizer.zero_grad()
            value = loss(module(tokens[start : start + BATCH]), labels[start : start + BATCH])
            value.backward()
            optimizer.step()
            found.append(value.item())
        losses.append(np.mean(found))
    return module, losses


def temperature(scores, labels):
    return nn.functional.cross_entropy(scores / 0.5, labels) + scores.square().mean()


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("loss", ["cross_entropy", temperature], ids=["named", "a function"])
def test_a_module_trains_as_in_torch_and_gets_its_weights_back(loss, exporter, tmp_path):
    torch.manual_seed(0)
    module = Tied().eval()
    before = copy.deepcopy(module.state_dict())
    tokens, labels = data()
    examples = torch.from_numpy(tokens[:2])
    own = {} if isinstance(loss, str) else {"example_labels": torch.from_numpy(labels[:2])}
    model = popdist_onnx.from_torch(module, examples, loss=loss, exporter=exporter, **own)
    assert not module.training
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)
    trainer = popdist_onnx.Trainer(
        model, optimizer="sgd", learning_rate=RATE, batch_size=BATCH, freeze="conv.bias"
    )
    module.conv.bias.requires_grad_(requires_grad=False)
    summary = {line.split()[0]: line for line in trainer.summary().splitlines()}
    assert summary["embed.weight"].endswith(" trained")
    assert summary["fixed.weight"].endswith(" frozen")
    assert summary["shift"].endswith(" frozen")
    assert summary["norm.running_mean"].endswith("running statistic")
    assert set(trainer.trained) == {"embed.weight", "conv.weight", "norm.weight", "norm.bias"}
    history = trainer.fit(tokens, labels, epochs=2, shuffle=False)
    criterion = nn.functional.cross_entropy if isinstance(loss, str) else loss
    expected, losses = by_torch(module, criterion, 2)
    np.testing.assert_allclose(history, losses, rtol=1e-5)
    trainer.save(tmp_path / "trained.onnx")
    for source in (trainer, tmp_path / "trained.onnx"):
        back = popdist_onnx.to_torch(source, copy.deepcopy(module))
        assert back.head.weight is back.embed.weight
        for (name, found), wanted in zip(
            back.named_parameters(), expected.parameters(), strict=True
        ):
            torch.testing.assert_close(found.double(), wanted, rtol=0, atol=2e-6, msg=name)
        for name in ("running_mean", "running_var"):
            found, wanted = (one.norm.get_buffer(name).double() for one in (back, expected))
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_tensors_beside_the_parameters_are_not_trained(exporter):
    """Class weights of the loss, a tensor that is no buffer, and a layer that nothing reads."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.loss = nn.Linear(2, 2)
            self.scale = torch.tensor([0.5, 1.5, 2.5])

        def forward(self, x):
            return self.layer(x) * self.scale

    torch.manual_seed(0)
    module, wide = Scaled(), Scaled().double()
    wide.load_state_dict(module.state_dict())
    wide.scale = module.scale.double()
    offset = torch.tensor([0.1, -0.2, 0.3])
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0]))

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.weighted = weighted

        def forward(self, scores, labels):
            return self.weighted(scores + offset.to(scores.dtype), labels)

    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(32, 4)).astype(np.float32), rng.integers(0, 3, 32)
    rows, goals = torch.from_numpy(x), torch.from_numpy(labels)
    model = popdist_onnx.from_torch(
        module, rows[:4], loss=Loss(), example_labels=goals[:4], exporter=exporter
    )
    trainer = popdist_onnx.Trainer(model, optimizer="sgd", learning_rate=0.3, batch_size=8)
    assert set(trainer.trained) == {"layer.weight", "layer.bias"}
    trainer.fit({"x": x, "labels": labels}, epochs=3, shuffle=False)
    optimizer = torch.optim.SGD(wide.parameters(), lr=0.3)
    criterion = Loss().double()
    for _ in range(3):
        for start in range(0, 32, 8):
            optimizer.zero_grad()
            batch = rows[start : start + 8].double()
            criterion(wide(batch), goals[start : start + 8]).backward()
            optimizer.step()
    scores = wide(rows.double())
    parts = [criterion(scores[n : n + 8], goals[n : n + 8]).item() for n in range(0, 32, 8)]
    assert trainer.evaluate(x, labels)["loss"] == pytest.approx(np.mean(parts), rel=1e-6)
    np.testing.assert_allclose(trainer.predict(x[:5]), scores[:5].detach(), rtol=0, atol=1e-5)
    with pytest.raises(popdist_onnx.popart_exception, match="no labels were given"):
        trainer.fit(x)
    before = module.loss.weight.clone()
    back = popdist_onnx.to_torch(trainer, module)
    for name, wanted in wide.named_parameters():
        found = back.get_parameter(name).double()
        torch.testing.assert_close(found, wanted.detach(), rtol=0, atol=2e-6, msg=name)
    torch.testing.assert_close(back.loss.weight, before, rtol=0, atol=0)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_dropout_stays_and_several_inputs_have_names(exporter):
    class Two(nn.Module):
        def forward(self, a, b):
            return nn.functional.dropout(a * b, 0.5, self.training)

    examples = (torch.ones(2, 3), torch.ones(2, 3))
    model = popdist_onnx.from_torch(Two(), examples, exporter=exporter)
    assert [one.name for one in model.graph.input] == ["x0", "x1"]
    assert "Dropout" in [node.op_type for node in model.graph.node]


@pytest.mark.skipif(DYNAMO, reason="the packages are here")
def test_the_newer_exporter_says_which_packages_it_needs():
    with pytest.raises(
        popdist_onnx.popart_exception, match=r"(?s)onnxscript>=0\.7.*PD596|PD596.*onnxscript>=0\.7"
    ):
        popdist_onnx.from_torch(nn.Linear(2, 2), torch.ones(2, 2), exporter="dynamo")


class Several(nn.Module):
    """Returns several tensors, as a tuple, a dictionary, or one in the other; the scores last."""

    def __init__(self, pack):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, CLASSES)
        self.pack = pack

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        return self.pack(hidden, hidden.square().mean(), self.last(hidden))


PACKS = {
    "tuple": (lambda *made: made, lambda made: made[1:]),
    "dictionary": (
        lambda hidden, size, scores: {"scores": scores, "size": size, "hidden": hidden},
        lambda made: (made["size"], made["scores"]),
    ),
    "nested": (
        lambda hidden, size, scores: (hidden, {"size": size, "more": [scores]}),
        lambda made: (made[1]["size"], made[1]["more"][0]),
    ),
}


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("pack", PACKS)
def test_a_function_of_several_outputs_is_the_loss(pack, exporter):
    torch.manual_seed(0)
    make, parts = PACKS[pack]
    module, x, y = Several(make), torch.randn(BATCH, 6), torch.randint(0, CLASSES, (BATCH,))

    def loss(made, labels):
        size, scores = parts(made)
        return nn.functional.cross_entropy(scores, labels) + 3 * size

    model = popdist_onnx.from_torch(module, x, loss=loss, example_labels=y, exporter=exporter)
    trainer = popdist_onnx.Trainer(model, optimizer="sgd", learning_rate=RATE, batch_size=BATCH)
    history = trainer.fit(x.numpy(), y.numpy(), epochs=2, shuffle=False)
    exact = copy.deepcopy(module).double()
    optimizer, losses = torch.optim.SGD(exact.parameters(), lr=RATE), []
    for _ in range(2):
        optimizer.zero_grad()
        value = loss(exact(x.double()), y)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    np.testing.assert_allclose(history, losses, rtol=1e-5)
    for name, wanted in exact.state_dict().items():
        np.testing.assert_allclose(trainer.weights[name], wanted, atol=1e-6, err_msg=name)
    assert [one.name for one in model.graph.output][::3] == ["output", "loss"]


class Packed(nn.Module):
    """A recurrent layer over sequences of other lengths."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer(4, 3, bidirectional=True, batch_first=True), nn.Linear(6, 5)

    def forward(self, x):
        rows = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 3, 1]), batch_first=True)
        made = nn.utils.rnn.pad_packed_sequence(self.layer(rows)[0], batch_first=True)[0]
        return self.head(made.sum(1))


@pytest.mark.parametrize("layer", [nn.GRU, nn.LSTM, nn.RNN])
def test_packed_sequences_train_as_in_torch(layer):
    torch.manual_seed(0)
    module, x, y = Packed(layer), torch.randn(3, 4, 4), torch.tensor([4, 0, 2])
    trainer = popdist_onnx.Trainer(
        popdist_onnx.from_torch(module, x), optimizer="sgd", learning_rate=RATE, batch_size=3
    )
    trainer.fit(x.numpy(), y.numpy(), shuffle=False)
    exact = copy.deepcopy(module).double()
    nn.functional.cross_entropy(exact(x.double()), y).backward()
    found = popdist_onnx.to_torch(trainer, module)
    for (name, one), wanted in zip(found.named_parameters(), exact.parameters(), strict=True):
        after = wanted.detach() - RATE * wanted.grad
        torch.testing.assert_close(one.detach().double(), after, rtol=0, atol=1e-6, msg=name)


def test_what_cannot_be_exported_or_put_back():
    with pytest.raises(popdist_onnx.popart_exception, match="no such exporter"):
        popdist_onnx.from_torch(nn.Linear(2, 2), torch.ones(2, 2), exporter="script")
    with pytest.raises(popdist_onnx.popart_exception, match="takes a tensor, or a tuple"):
        popdist_onnx.from_torch(nn.Linear(2, 2), np.ones((2, 2)))
    with pytest.raises(popdist_onnx.popart_exception, match="needs example labels"):
        popdist_onnx.from_torch(nn.Linear(2, 2), torch.ones(2, 2), loss=temperature)
    with pytest.raises(popdist_onnx.popart_exception, match="does not return a tensor"):
        popdist_onnx.from_torch(nn.Linear(2, 2), torch.ones(2, 2), lambda *_: 0.5, example_labels=0)
    with pytest.raises(popdist_onnx.popart_exception, match=r"from_torch\(\.\.\., opset=18\)"):
        popdist_onnx.from_torch(nn.Fold((4, 4), 2), torch.ones(2, 4, 9))
    model = popdist_onnx.from_torch(nn.Linear(2, 2), torch.ones(2, 2))
    with pytest.raises(popdist_onnx.popart_exception, match="lazy layers"):
        popdist_onnx.to_torch(model, nn.LazyLinear(2))
    with pytest.raises(popdist_onnx.popart_exception, match="the model is not of this module"):
        popdist_onnx.to_torch(model, nn.Linear(3, 2))


class WritesIntoAView(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.ModuleList([Overwritten()])
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.second[0](self.first(x)))


class Overwritten(nn.Module):
    def forward(self, x):
        x = x.clone()
        x.t()[1] *= 2
        return torch.sigmoid(x)


def test_a_file_that_computes_something_else_is_refused():
    """torch's exporter by tracing loses what is written into a transposed view."""
    x = torch.randn(3, 4)
    with pytest.raises(popdist_onnx.popart_exception) as refused:
        popdist_onnx.from_torch(WritesIntoAView(), x)
    said = str(refused.value)
    assert "another output 'output'" in said
    assert "submodule 'second.0'" in said
    assert "PD592" in said
    kept = popdist_onnx.from_torch(WritesIntoAView(), x, check=False)
    assert kept.graph.node


class Normalized(nn.Module):
    """Batch statistics in every way: shared, alike, without weights, frozen, and of a weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.shared, self.latest = nn.BatchNorm1d(8), nn.BatchNorm1d(8, momentum=1.0)
        self.plain, self.alike = (nn.BatchNorm1d(8, affine=False) for _ in range(2))
        self.frozen = nn.BatchNorm1d(8).requires_grad_(requires_grad=False)

    def forward(self, x):
        hidden = torch.tanh(self.shared(torch.tanh(self.first(x))))
        hidden = self.latest(hidden + self.shared(self.second(hidden)))
        hidden = self.plain(hidden) * self.alike(hidden) + self.alike(torch.sin(hidden))
        weight = self.second.weight.reshape(1, 8, -1)
        weight = nn.functional.batch_norm(weight, None, None, training=True, momentum=0.0)
        return self.head(torch.tanh(self.frozen(hidden @ weight.reshape(8, 8))))


class Block(nn.Module):
    """A module with batch normalisation inside, of as many dimensions as asked."""

    def __init__(self, dimensions, **settings):
        super().__init__()
        kinds = {1: (nn.Conv1d, nn.BatchNorm1d), 2: (nn.Conv2d, nn.BatchNorm2d)}
        conv, norm = kinds.get(dimensions, (nn.Conv3d, nn.BatchNorm3d))
        self.inner = nn.Sequential(conv(3, 3, 1), norm(3, **settings), nn.Tanh())

    def forward(self, x):
        return self.inner(x)


class Repeats(nn.Module):
    """Blocks that are used several times."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = Block(1, momentum=0.3), Block(2), Block(3, momentum=1.0)
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        x = self.one(self.one(x)) - self.one(0.5 * x)
        x = self.two(self.two(x[..., None]))
        x = self.three(self.two(x)[..., None] + self.three(x[..., None]))
        return self.head(x.flatten(2).mean(2))


@pytest.mark.parametrize("module", [Normalized, Repeats])
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_every_use_of_batch_statistics_trains_as_in_torch(exporter, module):
    torch.manual_seed(0)
    shape = (10, 6) if module is Normalized else (10, 3, 4)
    module, steps = module(), 3
    x, y = torch.randn(shape) + 0.3, torch.randint(0, 3, (10,))
    expected = copy.deepcopy(module).double().train()
    optimizer = torch.optim.SGD([p for p in expected.parameters() if p.requires_grad], lr=RATE)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(expected(x.double()), y).backward()
        optimizer.step()
    trainer = popdist_onnx.Trainer(
        popdist_onnx.from_torch(module, x, "cross_entropy", exporter=exporter),
        optimizer="sgd",
        learning_rate=RATE,
        batch_size=len(x),
    )
    trainer.fit(x.numpy(), y.numpy(), epochs=steps, shuffle=False)
    found = popdist_onnx.to_torch(trainer, copy.deepcopy(module)).state_dict()
    for name, wanted in expected.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(found[name].double(), wanted, rtol=1e-6, atol=2e-6, msg=name)


class Counting(nn.Module):
    """Writes the mean of its inputs into a buffer and reads it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        self.seen.mul_(0.9).add_(x.detach().mean((0, 2)), alpha=0.1)
        return x - self.seen[:, None]


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(
    ("part", "buffers", "by_torch"),
    [
        (nn.BatchNorm1d(3, momentum=None), "num_batches_tracked", "dynamo"),
        (nn.InstanceNorm1d(3, track_running_stats=True), "running_mean", "torchscript"),
        (nn.utils.parametrizations.spectral_norm(nn.Conv1d(3, 3, 1)), "_u", "torchscript"),
        (Counting(), "seen", None),
    ],
    ids=["no momentum", "instance norm", "spectral norm", "mean of its own"],
)
def test_buffers_that_a_file_does_not_update_are_refused(part, buffers, by_torch, exporter):
    """``by_torch`` is the exporter that does not take the module at all."""
    module = nn.Sequential(nn.Conv1d(3, 3, 1), part, nn.Tanh())
    before = {name: one.clone() for name, one in module.state_dict().items()}
    with pytest.raises(popdist_onnx.popart_exception) as refused:
        popdist_onnx.from_torch(module, torch.randn(6, 3, 4), exporter=exporter)
    if exporter == by_torch:
        assert refused.value.code == "PD584"
    else:
        assert refused.value.code == "PD594"
        assert buffers in str(refused.value)
    assert all(torch.equal(one, before[name]) for name, one in module.state_dict().items())


class Padded(nn.Module):
    """Looks up a padding row that is not zero, and uses the same weight for its scores."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(CLASSES, 6, padding_idx=1)
        self.other = nn.Embedding(CLASSES, 6, padding_idx=-1)
        self.head = nn.Linear(6, CLASSES, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight)

    def forward(self, tokens):
        return self.head(torch.tanh(self.embed(tokens).mean(1) + self.other(tokens[:, 0])))


@pytest.mark.parametrize("loss", ["cross_entropy", temperature], ids=["name", "function"])
def test_looking_up_padding_does_not_train_it_as_in_torch(loss):
    torch.manual_seed(0)
    module = Padded()
    tokens, labels = data()
    assert (tokens == 1).any()
    assert (tokens[:, 0] == CLASSES - 1).any()
    example = torch.from_numpy(labels[:BATCH]) if callable(loss) else None
    model = popdist_onnx.from_torch(
        module, torch.from_numpy(tokens[:BATCH]), loss, example_labels=example
    )
    trainer = popdist_onnx.Trainer(model, optimizer="sgd", learning_rate=RATE, batch_size=BATCH)
    trainer.fit(tokens, labels, epochs=2, shuffle=False)
    plain = loss if callable(loss) else nn.functional.cross_entropy
    wanted, _ = by_torch(module, plain, 2)
    for name, found in trainer.weights.items():
        np.testing.assert_allclose(found, wanted.state_dict()[name], atol=2e-6)
    # The row of `other` is never trained; that of `embed` is, by the scores.
    start = module.other.weight[-1].detach()
    np.testing.assert_array_equal(trainer.weights["other.weight"][-1], start)
    module.register_forward_hook(
        lambda one, given, made: made + nn.functional.embedding(given[0], one.embed.weight).sum()
    )
    with pytest.raises(popdist_onnx.popart_exception, match="but not their padding_idx"):
        popdist_onnx.from_torch(module, torch.from_numpy(tokens[:BATCH]), check=False)


class Bags(nn.Module):
    """Reduces rows of one embedding by a module, and of another one by functions."""

    def __init__(self, mode, padding=None, **settings):
        super().__init__()
        self.bag = nn.EmbeddingBag(CLASSES, 6, mode=mode, padding_idx=padding, **settings)
        self.weight = nn.Parameter(torch.randn(CLASSES, 6))
        self.head = nn.Linear(6, CLASSES)

    def forward(self, tokens):
        weighed = {"per_sample_weights": tokens / 4 - 1} if self.bag.mode == "sum" else {}
        found = nn.functional.embedding(tokens, self.weight, padding_idx=-1).mean(1)
        return self.head(self.bag(tokens, **weighed) + found)


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_one_length_train_as_in_torch(mode, padding):
    torch.manual_seed(0)
    module = Bags(mode, padding)
    tokens, labels = data()
    tokens[0] = 2  # a bag of nothing but padding
    model = popdist_onnx.from_torch(module, torch.from_numpy(tokens[:BATCH]), "cross_entropy")
    trainer = popdist_onnx.Trainer(model, optimizer="sgd", learning_rate=RATE, batch_size=BATCH)
    trainer.fit(tokens, labels, epochs=1, shuffle=False)
    wanted = copy.deepcopy(module).double()
    optimizer = torch.optim.SGD(wanted.parameters(), RATE)
    for start in range(0, SAMPLES, BATCH):
        optimizer.zero_grad()
        given, asked = (torch.from_numpy(one[start : start + BATCH]) for one in (tokens, labels))
        weighed = {"per_sample_weights": (given / 4 - 1).double()} if mode == "sum" else {}
        found = nn.functional.embedding(given, wanted.weight, padding_idx=-1).mean(1)
        scores = wanted.head(wanted.bag(given, **weighed) + found)
        nn.functional.cross_entropy(scores, asked).backward()
        optimizer.step()
    for name, found in trainer.weights.items():
        np.testing.assert_allclose(found, wanted.state_dict()[name], atol=2e-6, err_msg=name)


@pytest.mark.parametrize(
    ("look_up", "named"),
    [
        (lambda one, x: one.bag(x.reshape(-1), x[:, 0]), "offsets"),
        (lambda one, x: nn.functional.embedding_bag(x, one.weight), "embedding_bag"),
        (lambda one, x: nn.functional.embedding(x, one.weight, max_norm=1.0).sum(1), "max_norm"),
        (lambda one, x: one.bag(x), "scale_grad_by_freq=True"),
        (lambda one, x: nn.functional.embedding(x, 2 * one.weight, 1).sum(1), "computed weight"),
    ],
    ids=["offsets", "function", "max_norm", "frequency", "computed"],
)
def test_what_a_file_does_not_say_of_an_embedding_is_refused(look_up, named, monkeypatch):
    monkeypatch.setattr(Bags, "forward", look_up)
    module = Bags("mean", scale_grad_by_freq="freq" in named)
    with pytest.raises(popdist_onnx.popart_exception, match=named) as refused:
        popdist_onnx.from_torch(module, torch.from_numpy(data()[0][:BATCH]))
    assert refused.value.code == "PD595"


def test_operators_that_only_other_kernels_take_train_as_in_torch():
    """Indices that are cast twice, and padding="same" of dilated windows, odd in one dimension."""

    class Sorted(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 4, (3, 4), padding="same", dilation=(2, 3), groups=2)
            self.head = nn.Linear(7, CLASSES)

        def forward(self, x):
            hidden = self.conv(x).mean((1, 2))
            return self.head(torch.gather(hidden, 1, torch.argsort(x[:, 0, 0], 1)))

    torch.manual_seed(0)
    module = Sorted()
    x = np.random.default_rng(0).normal(size=(SAMPLES, 2, 5, 7)).astype(np.float32)
    y = data()[1]
    model = popdist_onnx.from_torch(module, torch.from_numpy(x[:BATCH]))
    trainer = popdist_onnx.Trainer(model, optimizer="sgd", learning_rate=RATE, batch_size=BATCH)
    trainer.fit(x[:BATCH], y[:BATCH])
    exact = copy.deepcopy(module).double()
    scores = exact(torch.from_numpy(x[:BATCH]).double())
    nn.functional.cross_entropy(scores, torch.from_numpy(y[:BATCH])).backward()
    for name, parameter in exact.named_parameters():
        wanted = parameter.detach() - RATE * parameter.grad
        np.testing.assert_allclose(trainer.weights[name], wanted, atol=1e-6)


class Cloned(nn.Module):
    """Reads copies of its weights, which an exporter writes as `Identity`."""

    def __init__(self):
        super().__init__()
        self.scale, self.matrix = nn.Parameter(torch.ones(4)), nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        x = torch.tanh(x * self.scale + self.scale.clone())
        return torch.tanh(x @ self.matrix) @ self.matrix.clone()


def test_copied_layers_of_a_plain_export_train_apart():
    """The older exporter writes equal weights once, in evaluation mode."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    stack = nn.Sequential(layer, nn.Tanh(), copy.deepcopy(layer), Cloned(), copy.deepcopy(layer))
    x, y = torch.randn(8, 4), torch.randint(0, 4, (8,))
    file = io.BytesIO()
    torch.onnx.export(stack, (x,), file, dynamo=False)
    expected = copy.deepcopy(stack).double()
    optimizer = torch.optim.SGD(expected.parameters(), lr=RATE)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(expected(x.double()), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    trainer = popdist_onnx.Trainer(
        file.getvalue(), optimizer="sgd", learning_rate=RATE, batch_size=8
    )
    found = trainer.fit(x.numpy(), y.numpy(), epochs=3, shuffle=False)
    np.testing.assert_allclose(list(found), losses, rtol=1e-6)


class Everything(nn.Module):
    """Dropout in all its places, statistics of the batch, indices, and sizes that are rounded."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4, affine=False), nn.Dropout(0.5)
        )
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)
        self.up = nn.Upsample(scale_factor=0.6)

    def forward(self, x):
        hidden = nn.functional.dropout(self.body(x), 0.3, training=self.training).transpose(1, 2)
        hidden = self.attention(hidden, hidden, hidden)[0]
        # Indices have 32 bits here, as in PopART, and 64 in torch.
        return self.up(hidden.transpose(1, 2)), hidden.argmax(1).clamp(1, 3)


class Routed(nn.Module):
    """A mixture of experts: one-hot rows of computed indices, which have 32 bits here."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(4, 3), nn.Linear(4, 12)

    def forward(self, x):
        scores = torch.softmax(self.router(x), -1)
        best = nn.functional.one_hot(torch.topk(scores, 2)[1], num_classes=3).sum(1)
        first = nn.functional.one_hot(scores.argmax(-1), num_classes=3)
        weights = scores * (best + first)
        return (self.experts(x).reshape(-1, 3, 4) * weights[..., None]).sum(1)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_one_hot_rows_of_computed_indices_are_exported(exporter):
    assert popdist_onnx.from_torch(Routed(), torch.randn(6, 4), exporter=exporter).graph.node


def test_a_file_that_differs_in_its_dropout_only_is_taken():
    module = Everything()
    before = {name: one.clone() for name, one in module.state_dict().items()}
    example, state = torch.randn(6, 2, 10), torch.random.get_rng_state()
    popdist_onnx.from_torch(module.eval(), example)
    assert all(torch.equal(one, before[name]) for name, one in module.state_dict().items())
    assert not any(one.training for one in module.modules())
    assert not any(one._forward_hooks for one in module.modules())
    assert torch.equal(state, torch.random.get_rng_state())


class Straight(torch.autograd.Function):
    """Rounds, and lets gradients through."""

    @staticmethod
    def forward(_, x):
        return torch.round(4 * x) / 4

    @staticmethod
    def backward(_, gradient):
        return gradient


class Halves(torch.autograd.Function):
    """A tanh whose gradient is half of the given one."""

    @staticmethod
    def forward(_, x):
        return torch.tanh(x)

    @staticmethod
    def backward(_, gradient):
        return gradient / 2


def without_gradients(x):
    with torch.no_grad():
        return torch.tanh(x)


def hooked(x):
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient / 10)
    return x


class Between(nn.Module):
    """Two layers, and a function between them."""

    def __init__(self, function):
        super().__init__()
        self.first, self.last, self.function = nn.Linear(6, 6), nn.Linear(6, CLASSES), function

    def forward(self, x):
        return self.last(self.function(self.first(x)))


@pytest.mark.parametrize(
    ("function", "trains"),
    [
        (lambda x: x + torch.tanh(x).detach(), False),
        (lambda x: x + (torch.round(x) - x).detach(), False),
        (lambda x: x + without_gradients(x), False),
        (Straight.apply, False),
        (Halves.apply, False),
        (hooked, False),
        (lambda x: x * x.data, False),
        (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127), True),
        (lambda x: torch.utils.checkpoint.checkpoint(torch.tanh, x, use_reentrant=False), True),
        (torch.round, True),
        (lambda x: torch.relu(x - x), True),
    ],
    ids=[
        *("detach", "straight", "no_grad", "own straight", "own backward", "hook", "data"),
        *("fake quantization", "checkpoint", "no gradient", "an edge"),
    ],
)
def test_what_a_file_does_not_say_of_gradients_is_refused(function, trains, request):
    torch.manual_seed(0)
    module, x = Between(function), torch.randn(BATCH, 6)
    if trains:
        popdist_onnx.from_torch(module, x)
        return
    # What the examples bring is a constant of the file, so that its outputs differ for others.
    baked = "data" in request.node.callspec.id
    said = "for other inputs" if baked else r"first\.weight"
    with pytest.raises(popdist_onnx.popart_exception, match=said) as refused:
        popdist_onnx.from_torch(module, x)
    assert refused.value.code == ("PD592" if baked else "PD597")
    popdist_onnx.from_torch(module, x, check=False)


class Decides(nn.Module):
    """Two layers, and a function of them, of rows and of lengths."""

    def __init__(self, function):
        super().__init__()
        self.first, self.last, self.function = nn.Linear(6, 6), nn.Linear(6, 6), function

    def forward(self, x, lengths):
        return self.function(self, x, lengths)


@pytest.mark.parametrize(
    ("function", "trains"),
    [
        (lambda one, x, _: one.first(x) if x.sum() > 0 else one.last(x), False),
        (lambda one, x, lengths: one.first(x[:, : int(lengths.max())].mean(1)), False),
        (
            lambda one, x, n: torch.stack(
                [one.first(x[i, :k].mean(0)) for i, k in enumerate(n.tolist())]
            ),
            False,
        ),
        (
            lambda one, x, _: torch.stack(
                [one.first(r) if r[0, 0] > 0 else one.last(r) for r in x]
            ),
            False,
        ),
        (lambda one, x, _: one.first(x) / x.abs().max().item(), False),
        (lambda one, x, _: one.first(x[:, : int(x.shape[1] // 2)]), True),
        (lambda one, x, _: one.first(x) if x.shape[1] > 2 else one.last(x), True),
        (lambda one, x, _: one.first(x) if torch.isfinite(x).all() else None, True),
        (
            lambda one, x, n: torch.where(
                (n > 2)[:, None], one.first(x.mean(1)), one.last(x[:, 0])
            ),
            True,
        ),
    ],
    ids=[
        *("branch", "longest", "each length", "each row", "item"),
        *("part of a shape", "branch on a shape", "assertion", "where"),
    ],
)
def test_what_a_trace_reads_in_the_examples_is_refused(function, trains):
    torch.manual_seed(0)
    module, given = Decides(function), (torch.randn(4, 3, 6).abs(), torch.tensor([2, 1, 3, 2]))
    if trains:
        popdist_onnx.from_torch(module, given)
        return
    with pytest.raises(
        popdist_onnx.popart_exception, match=r"test_torch_modules\.py:\d"
    ) as refused:
        popdist_onnx.from_torch(module, given)
    assert refused.value.code == "PD124"
    popdist_onnx.from_torch(module, given, check=False)


def test_examples_that_are_all_alike_hide_no_decision():
    """A mask that hides nothing, and lengths that are all equal."""
    x, mask = torch.randn(4, 6), torch.zeros(4, dtype=torch.bool)

    def masked(one, x, mask):
        return one.first(x).masked_fill(mask[:, None], 0.0) if mask.any() else one.first(x)

    for function, given in (
        (masked, (x, mask)),
        (
            lambda one, x, n: one.first(x[:, None].expand(-1, 3, -1)[:, : int(n.max())].sum(1)),
            (x, torch.full((4,), 2)),
        ),
    ):
        with pytest.raises(popdist_onnx.popart_exception) as refused:
            popdist_onnx.from_torch(Decides(function), given)
        assert refused.value.code == "PD124"


@pytest.mark.parametrize("count", [len, lambda rows: float(rows.shape[0])], ids=["len", "float"])
def test_the_number_of_examples_is_no_divisor(count):
    """A loss that is summed and divided would be divided by the examples' number in training."""
    x, labels = torch.randn(4, 6), torch.tensor([0, 2, 1, 1])

    def loss(scores, labels):
        total = nn.functional.cross_entropy(scores, labels, reduction="sum")
        return total / count(labels)

    with pytest.raises(popdist_onnx.popart_exception, match="with more samples") as refused:
        popdist_onnx.from_torch(nn.Linear(6, 3), x, loss=loss, example_labels=labels)
    assert refused.value.code == "PD124"


def test_a_divisor_that_follows_the_batch_trains_as_in_torch():
    torch.manual_seed(0)
    module, x, labels = nn.Linear(6, 3), torch.randn(8, 6), torch.arange(8) % 3

    def loss(scores, labels):
        rows = nn.functional.cross_entropy(scores, labels, reduction="none")
        return rows.sum() / scores.shape[0]

    model = popdist_onnx.from_torch(module, x[:2], loss=loss, example_labels=labels[:2])
    trainer = popdist_onnx.Trainer(model, optimizer="sgd", learning_rate=RATE, batch_size=8)
    trainer.fit(x.numpy(), labels.numpy(), shuffle=False)
    exact = copy.deepcopy(module).double()
    loss(exact(x.double()), labels).backward()
    after = exact.weight.detach() - RATE * exact.weight.grad
    np.testing.assert_allclose(trainer.weights["weight"], after, atol=1e-6)


class Unused(nn.Module):
    """A layer of the first and the third input."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, ids, kinds, mask):  # noqa: ARG002 - the point of it
        return self.layer(ids * mask)


def test_an_input_that_forward_does_not_use_stays_an_input():
    torch.manual_seed(0)
    module, names = Unused(), ["ids", "kinds", "mask"]
    given = (torch.randn(5, 4), torch.zeros(5, 2, dtype=torch.int64), torch.randn(5, 4))
    proto = popdist_onnx.from_torch(module, given, loss="mse", input_names=names)
    assert [one.name for one in proto.graph.input] == names
    arrays = {name: one.numpy() for name, one in zip(names, given, strict=True)}
    trainer = popdist_onnx.Trainer(proto, batch_size=5)
    np.testing.assert_allclose(
        trainer.predict(arrays), module(*given).detach().numpy(), rtol=1e-5, atol=1e-6
    )


class Decomposed(nn.Linear):
    """Has a factorisation, which ONNX has no operator for."""

    def forward(self, x):
        return torch.linalg.qr(super().forward(x))[0]


def test_torch_prints_no_graphs_when_it_cannot_export(capfd):
    with pytest.raises(popdist_onnx.popart_exception, match="cannot export"):
        popdist_onnx.from_torch(Decomposed(4, 4), torch.randn(4, 4))
    assert capfd.readouterr().out == ""


class Clamped(torch.autograd.Function):
    """A clamp at 3, which the file lacks."""

    @staticmethod
    def forward(_, x):
        return x.clamp(-3, 3)

    @staticmethod
    def backward(_, gradient):
        return gradient

    @staticmethod
    def symbolic(graph, x):
        return graph.op("Identity", x)


def test_a_file_that_is_wrong_for_larger_weights_only_is_refused():
    torch.manual_seed(0)
    module, x = Between(Clamped.apply), torch.rand(BATCH, 6) + 1
    with torch.no_grad():
        assert 1 < module.first(x).abs().max() < 3
    with pytest.raises(popdist_onnx.popart_exception, match="weights are 3 times as large"):
        popdist_onnx.from_torch(module, x)


def test_the_error_of_gradients_at_zeros_says_so():
    module = Between(lambda x: hooked(x * 1.0))
    with pytest.raises(popdist_onnx.popart_exception, match="example inputs are zeros") as raised:
        popdist_onnx.from_torch(module, torch.zeros(BATCH, 6))
    assert raised.value.code == "PD597"
