import copy
from itertools import pairwise

import pytest
import torch
from torch import nn

import popdist_torch as poptorch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.loss = nn.MSELoss()

    def forward(self, x, y=None):
        out = self.layer(x)
        return out if y is None else (out, self.loss(out, y))


X, Y = torch.randn(8, 3), torch.randn(8, 2)


def options(*, replicas=1, iterations=1):
    return poptorch.Options().replicationFactor(replicas).deviceIterations(iterations)


def test_all_rows_come_back_in_order_by_default():
    model = Net()
    inference = poptorch.inferenceModel(model, options(replicas=2, iterations=2))
    expected = torch.cat([model(rows) for rows in X.split(2)]).detach()
    assert torch.equal(inference(X), expected)
    assert not inference(X).requires_grad


def test_final_returns_the_last_iteration_of_every_replica():
    made = options(replicas=2, iterations=2).outputMode(poptorch.OutputMode.Final)
    model = Net()
    assert torch.allclose(poptorch.inferenceModel(model, made)(X), model(X[4:]), atol=1e-6)


def test_accumulation_is_an_error_at_once():
    made = options()
    made.Training.gradientAccumulation(2)
    with pytest.raises(RuntimeError, match=r"gradientAccumulation to 1 or leave it.*pipelined"):
        poptorch.inferenceModel(Net(), made)
    made = made.clone().setExecutionStrategy(poptorch.ShardedExecution())
    with pytest.raises(RuntimeError, match=r"inferenceModel\(\)\.\n"):
        poptorch.inferenceModel(Net(), made)


def test_it_follows_training_of_the_same_module():
    model = Net()
    training = poptorch.trainingModel(model, options(), torch.optim.SGD(model.parameters(), 0.1))
    inference = poptorch.inferenceModel(training, options())
    assert inference.model is model
    seen = []
    for _ in range(3):
        seen.append(inference(X))
        training(X, Y)
    seen.append(inference(X))
    for earlier, later in pairwise(seen):
        assert not torch.equal(earlier, later)
    assert torch.equal(seen[-1], model(X).detach())


def test_changes_by_the_program_need_an_explicit_copy():
    model = Net()
    inference = poptorch.inferenceModel(model, options())
    before = inference(X)
    with torch.no_grad():
        model.layer.weight.zero_()
    assert torch.equal(inference(X), before)
    inference.copyWeightsToDevice()
    assert torch.equal(inference(X), model(X).detach())


def test_buffers_changed_on_the_device_come_back_when_asked():
    model = nn.BatchNorm1d(3)
    inference = poptorch.inferenceModel(model)
    inference(X)
    assert not model.running_mean.any()
    inference.copyWeightsToHost()
    assert model.running_mean.any()


def test_load_state_dict_reaches_the_device():
    model, other = Net(), Net()
    inference = poptorch.inferenceModel(model)
    inference(X)
    inference.load_state_dict(other.state_dict())
    assert torch.equal(inference(X), other(X).detach())


def test_options_must_be_options():
    with pytest.raises(RuntimeError, match=r"must be a poptorch\.Options"):
        poptorch.inferenceModel(Net(), {"device_iterations": 2})


def test_it_follows_training_that_has_ended():
    """Also where its wrapper was made first, and called only before and after."""
    model = Net()
    inference = poptorch.inferenceModel(model, options())
    seen = [inference(X)]
    for _ in range(2):
        training = poptorch.trainingModel(model, options(), torch.optim.SGD(model.parameters(), 1))
        training(X, Y)
        training.destroy()
        seen.append(inference(X))
        assert torch.equal(seen[-1], model(X).detach())
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


def test_a_part_of_a_model_in_training_is_followed():
    model = Net()
    inference = poptorch.inferenceModel(model.layer, options())
    inference(X)
    training = poptorch.trainingModel(model, options(), torch.optim.SGD(model.parameters(), 1))
    training(X, Y)
    assert torch.equal(inference(X), model.layer(X).detach())
    training(X, Y)
    training.destroy()
    assert torch.equal(inference(X), model.layer(X).detach())


class Mode(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x):
        return x * 2 if self.training or self.drop.training else x


def test_the_mode_of_a_wrapper_is_its_own_until_it_is_compiled():
    model = Mode().train()
    wrapped = poptorch.inferenceModel(model)
    assert wrapped.eval() is wrapped
    assert wrapped(torch.ones(1)).item() == 1
    assert model.training
    assert not model.drop.training
    assert poptorch.inferenceModel(model).train()(torch.ones(1)).item() == 2


@pytest.mark.parametrize("weights", [torch.float32, torch.float16])
@pytest.mark.parametrize("data", [torch.float32, torch.float16])
@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 3), lambda: nn.Conv1d(4, 3, 2)])
def test_layers_compute_in_the_precision_of_their_input(make, data, weights):
    torch.manual_seed(1)
    layer, x = make().to(weights), torch.randn(2, 4, 4).to(data)
    seen = poptorch.inferenceModel(layer)(x)
    assert seen.dtype == data
    plain = copy.deepcopy(layer).to(data)
    assert torch.equal(seen, plain(x))


class Attention(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x)[0]


LAYERS = {
    "layer norm": lambda: nn.LayerNorm(4),
    "group norm": lambda: nn.GroupNorm(2, 4),
    "batch norm": lambda: nn.BatchNorm1d(4),
    "instance norm": lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True),
    "attention": lambda: Attention(4, 2),
    "encoder": lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.0),
}


@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_in_half_precision_take_single_precision(kind, is_training):
    torch.manual_seed(1)
    layer, x = LAYERS[kind]().train(is_training), torch.randn(2, 4, 4)
    for weight in layer.parameters():
        nn.init.normal_(weight)
    plain = copy.deepcopy(layer.half()).float()
    wrapped = poptorch.inferenceModel(layer)
    seen = (wrapped.train() if is_training else wrapped)(x)
    torch.testing.assert_close(seen, plain(x))
    wrapped.copyWeightsToHost()
    for buffer, expected in zip(layer.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(buffer, expected.to(buffer.dtype))


def test_products_of_two_precisions_have_the_wider_one():
    class Product(nn.Module):
        def forward(self, x, y):
            return x @ y, torch.einsum("ij,jk->ik", x, y)

    x, y = torch.randn(2, 3).half(), torch.randn(3, 2)
    for seen in poptorch.inferenceModel(Product())(x, y):
        torch.testing.assert_close(seen, x.float() @ y)
