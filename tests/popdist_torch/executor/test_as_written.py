"""The module that trains is the program's: buffers, plain tensors, flags, aliases; one process.

Real jobs are in tests/distributed/test_torch_as_written.py.
"""

import copy
import io
import logging
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import popdist_torch as poptorch
from tests.popdist_torch import reference

X = torch.randn(8, 3, dtype=torch.float64)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x):
        return poptorch.identity_loss(self.norm(self.layer(x)).sum(1).square(), reduction="mean")


def wrapped(model, options=None, rate=0.1):
    return poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=rate))


def test_buffers_follow_as_parameters_do():
    model, plain = Normed().double(), Normed().double()
    plain.load_state_dict(model.state_dict())
    held = model.norm.running_mean
    training = wrapped(model)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(2):
        training(X)
        optimizer.zero_grad()
        plain(X).backward()
        optimizer.step()
        assert torch.equal(held, plain.norm.running_mean)
        assert torch.equal(model.norm.running_var, plain.norm.running_var)
        assert int(model.norm.num_batches_tracked) == int(plain.norm.num_batches_tracked)
    assert model.norm.running_mean is held
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=False)
    assert type(loaded.norm.running_mean) is torch.Tensor
    assert type(copy.deepcopy(model).norm.running_mean) is torch.Tensor
    training.destroy()
    assert type(held) is torch.Tensor
    assert torch.equal(held, plain.norm.running_mean)


def test_a_buffer_that_the_program_changes_waits_for_a_copy():
    model = Normed().double()
    training = wrapped(model)
    training(X)
    model.norm.running_mean.fill_(7)
    before = model.layer.weight.clone()
    assert model.norm.running_mean.tolist() == [7, 7, 7]
    training(X)
    assert model.norm.running_mean.max() < 7
    assert not torch.equal(model.layer.weight, before)


class Counter(nn.Module):
    """What PopTorch's guide shows: a plain tensor is a constant, a buffer is not."""

    def __init__(self, how):
        super().__init__()
        self.how, self.scale = how, nn.Parameter(torch.ones(()))
        first = torch.zeros(1)
        if how == "buffer":
            self.register_buffer("count", first)
        elif how == "list":
            self.counts = [first]
        else:
            self.count = first

    def forward(self, x):
        if self.how == "list":
            self.counts[0] += 1
            seen = self.counts[0]
        elif self.how == "anew":
            self.count = self.count + 1
            seen = self.count
        else:
            self.count += 1
            seen = self.count
        return seen, poptorch.identity_loss(self.scale * x.sum(), reduction="none")


@pytest.mark.parametrize("wrap", [poptorch.trainingModel, poptorch.inferenceModel])
@pytest.mark.parametrize(
    ("how", "seen"), [("buffer", [1, 2]), ("in place", [1, 1]), ("anew", [1, 1]), ("list", [1, 1])]
)
def test_a_plain_tensor_that_forward_changes_is_a_constant(wrap, how, seen, caplog):
    model = Counter(how)
    runs = wrap(model)
    with caplog.at_level(logging.WARNING, logger="popdist.torch"):
        assert [runs(torch.ones(2))[0].item() for _ in seen] == seen
    told = [record for record in caplog.records if "register_buffer" in record.getMessage()]
    assert len(told) == (how != "buffer")
    assert (model.counts[0] if how == "list" else model.count).item() == (
        2 if how == "buffer" and wrap is poptorch.trainingModel else 0
    )


def test_modules_that_are_no_parts_have_buffers_for_each_replica():
    norm = nn.BatchNorm1d(3).double()

    class Outside(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return poptorch.identity_loss(norm(self.layer(x)).square(), reduction="mean")

    torch.manual_seed(1)
    model = Outside().double()
    layer = copy.deepcopy(model.layer)
    wrapped(model, poptorch.Options().replicationFactor(2))(X)
    expected = nn.BatchNorm1d(3).double()
    expected(layer(X[:4]))
    torch.testing.assert_close(norm.running_mean, expected.running_mean)
    assert int(norm.num_batches_tracked) == 1


def test_the_program_sees_its_own_module_between_calls():
    """Flags, gradients and memory of the program's are back after every call."""
    model = Normed().double()
    view = model.layer.weight.detach().view(-1)
    model.layer.weight.grad = torch.full_like(model.layer.weight, 3)
    training = wrapped(model)
    model.eval()
    training(X)
    assert not model.norm.training
    assert model.layer.weight.grad.tolist() == [[3.0] * 3] * 3
    assert int(model.norm.num_batches_tracked) == 1
    training.destroy()
    assert torch.equal(view, model.layer.weight.detach().view(-1))


def test_an_error_in_forward_leaves_the_module_as_it_was():
    class Failing(Normed):
        fails = False

        def forward(self, x):
            if self.fails:
                raise ValueError("on purpose")
            return super().forward(x)

    model = Failing().double()
    training = wrapped(model)
    training(X)
    weights, statistics = reference.flat(model), reference.running_statistics(model)
    model.fails = True
    with pytest.raises(ValueError, match="on purpose"):
        training(X)
    assert (reference.flat(model) == weights).all()
    assert (reference.running_statistics(model) == statistics).all()
    model.fails = False
    training(X)
    assert (reference.flat(model) != weights).any()


def test_parameters_of_a_class_of_their_own_are_up_to_date_after_every_call():
    class Special(nn.Parameter):
        pass

    model = Normed().double()
    model.layer.bias = Special(torch.zeros(3, dtype=torch.float64))
    plain = copy.deepcopy(model)
    wrapped(model)(X)
    plain(X).backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    assert type(model.layer.bias) is Special
    assert torch.equal(model.layer.bias, plain.layer.bias)


def test_a_model_without_anything_to_train_computes_its_outputs():
    model = Normed().double().requires_grad_(requires_grad=False)
    before = reference.flat(model)
    loss = poptorch.trainingModel(model, None, torch.optim.SGD(model.parameters(), lr=0.1))(X)
    assert loss.item() >= 0
    assert (reference.flat(model) == before).all()
    other = Normed().double()
    other.layer.requires_grad_(requires_grad=False)
    with pytest.raises(AssertionError, match="no parameter that requires gradients"):
        poptorch.trainingModel(other, None, torch.optim.SGD(other.layer.parameters(), lr=0.1))(X)


# --- arguments -----------------------------------------------------------------------------------


class Taken(nn.Module):
    def forward(self, x, y, *rest, z=None, **named):
        weight = 1
        total = 0
        for value in (x, y, *rest, z, *(named[key] for key in sorted(named))):
            leaves = value.values() if isinstance(value, dict) else [value]
            leaves = vars(value).values() if isinstance(value, Row) else leaves
            for leaf in leaves:
                total = total + weight * (0 if leaf is None else leaf)
                weight *= 10
        return total


@dataclass
class Row:
    a: torch.Tensor
    b: torch.Tensor


class Named(OrderedDict):
    pass


Pair = namedtuple("Pair", ["a", "b"])  # noqa: PYI024 - a plain one
ONE, TWO, SIX = (torch.tensor([float(n)] * 2) for n in (1, 2, 6))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda m: m(ONE, TWO), lambda m: m(ONE, y=TWO)),
        (lambda m: m(ONE, TWO), lambda m: m(y=TWO, x=ONE)),
        (lambda m: m(ONE, TWO, z=SIX), lambda m: m(z=SIX, y=TWO, x=ONE)),
        (lambda m: m(ONE, TWO, b=SIX, a=ONE), lambda m: m(ONE, TWO, a=ONE, b=SIX)),
        (lambda m: m(ONE, TWO, SIX), lambda m: m(ONE, TWO, SIX)),
        (lambda m: m({"a": ONE, "b": TWO}, SIX), lambda m: m({"b": TWO, "a": ONE}, SIX)),
    ],
)
def test_arguments_are_bound_as_python_binds_them(first, second):
    inference = poptorch.inferenceModel(Taken())
    assert torch.equal(first(inference), first(Taken()))
    assert torch.equal(second(inference), second(Taken()))


@pytest.mark.parametrize("kind", [Row, lambda a, b: Named(a=a, b=b), lambda a, b: {"a": a, "b": b}])
def test_inputs_and_outputs_of_a_programs_own_classes(kind):
    class Same(nn.Module):
        def forward(self, row):
            return row

    inference = poptorch.inferenceModel(Same(), poptorch.Options().deviceIterations(2))
    for first in (ONE, SIX):
        given = kind(first, TWO)
        made = inference(given)
        assert type(made) is type(given)
        values = vars(made) if isinstance(made, Row) else made
        assert torch.equal(values["a"], first)
        assert torch.equal(values["b"], TWO)


def test_named_tuples_stay_what_they_are():
    class Swap(nn.Module):
        def forward(self, pair):
            return Pair(pair.b, [pair.a])

    made = poptorch.inferenceModel(Swap())(Pair(ONE, TWO))
    assert isinstance(made, Pair)
    assert torch.equal(made.b[0], ONE)


def test_an_argument_that_a_call_omits_has_its_default():
    class Optional(nn.Module):
        def forward(self, x, y=ONE, times=2):
            return times * x + y

    inference = poptorch.inferenceModel(Optional())
    for given in ({}, {"times": 2}, {"y": TWO}, {"y": ONE, "times": 2}):
        assert torch.equal(inference(ONE, **given), Optional()(ONE, **given))
    with pytest.raises(poptorch.Error, match="Value mismatch for times: expected 2 but got 3"):
        inference(ONE, times=3)


def test_missing_and_unknown_arguments_are_named():
    class Three(nn.Module):
        def forward(self, x, y, z):
            return x + y + z

    class Optional(nn.Module):
        def forward(self, x, y=None):
            return x if y is None else x + y

    class Any(nn.Module):
        def forward(self, *args):
            return args[0] + args[1]

    with pytest.raises(poptorch.Error, match=r"Mandatory parameter z missing\."):
        poptorch.inferenceModel(Three())(ONE, TWO)
    with pytest.raises(
        poptorch.Error, match=r"Mandatory parameter z missing\. Unexpected arguments: w\."
    ):
        poptorch.inferenceModel(Three())(ONE, w=TWO)
    inference = poptorch.inferenceModel(Optional())
    inference(ONE, TWO)
    with pytest.raises(
        poptorch.Error, match=r"have changed.*Type mismatch for y: expected .*Tensor.* got None"
    ) as caught:
        inference(ONE)
    several = poptorch.inferenceModel(Any())
    with pytest.raises(IndexError):
        several(ONE)  # this call compiles nothing that later calls have to be like
    assert torch.equal(several(ONE, TWO), ONE + TWO)
    with pytest.raises(
        poptorch.Error, match="positional arguments mismatch: expected 2 arguments but got 1"
    ):
        several(ONE)
    assert "TreeSpec" not in str(caught.value)
    with pytest.raises(poptorch.Error, match=r"Type mismatch for y: expected torch.Size"):
        inference(ONE, SIX[:1])


def test_a_destroyed_wrapper_trains_again_unless_another_one_has_the_module():
    model = Normed().double()
    first = wrapped(model)
    first(X)
    first.destroy()
    second = wrapped(model)
    with pytest.raises(poptorch.Error, match="Model has already been wrapped"):
        first(X)
    second(X)
    second.destroy()
    before = reference.flat(model)
    first(X)
    assert (reference.flat(model) != before).any()
    model.destroy()
    assert not first.isCompiled()


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_buffer_that_forward_registers_is_one(replicas):
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            if not hasattr(self, "seen"):
                self.register_buffer("seen", torch.zeros(3, dtype=torch.float64))
            self.seen += x.sum(0)
            return poptorch.identity_loss(self.layer(x).square(), reduction="mean")

    model = Cached().double()
    training = wrapped(model, poptorch.Options().replicationFactor(replicas))
    for call in (1, 2):
        training(X)
        expected = call * X[: 8 // replicas].sum(0)
        torch.testing.assert_close(model.seen, expected)
        torch.testing.assert_close(model.state_dict()["seen"], expected)
