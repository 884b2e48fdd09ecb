import copy
import logging
import pickle
import sys
import threading
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import popdist_torch as poptorch
from popdist_torch.ops.running import wrapped_call
from popdist_torch.options.placement import Placement


@pytest.fixture(autouse=True)
def _numbered_from_zero():
    poptorch.Block.useAutoId()


def test_a_block_begins_at_a_module_once():
    layer = nn.Linear(2, 2)
    assert poptorch.BeginBlock(layer, "first", ipu_id=0) is layer
    with pytest.raises(poptorch.Error, match="begins at this layer already"):
        poptorch.BeginBlock(layer, "again")
    model = nn.Sequential(layer)
    poptorch.removeBlocks(model)
    poptorch.BeginBlock(layer)
    assert torch.equal(copy.deepcopy(model)(torch.ones(1, 2)), layer(torch.ones(1, 2)))


def test_the_text_of_a_module_shows_where_blocks_begin():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Flatten(1), nn.ReLU()), nn.Sequential())
    assert poptorch.module_repr(model) == repr(model)  # torch's
    poptorch.BeginBlock(model[0], ipu_id=1)
    poptorch.BeginBlock(model[1], "b")
    for text in (
        poptorch.module_repr(copy.deepcopy(model)),
        repr(poptorch.inferenceModel(model)),
    ):
        assert text != repr(model)
        assert "(0): BeginBlock(user_id=None, ipu_id=1) Linear(" in text
        assert "(1): BeginBlock(user_id='b', ipu_id=None) Sequential(" in text
        assert text.replace("BeginBlock(user_id=None, ipu_id=1) ", "").replace(
            "BeginBlock(user_id='b', ipu_id=None) ", ""
        ) == repr(model)


def test_functions_are_annotated_and_unchanged():
    def double(x):
        """Twice."""
        return 2 * x

    begun = poptorch.BeginBlock(double, "b")
    assert (begun(3), begun.__doc__, begun._user_id) == (6, "Twice.", "b")

    @poptorch.BlockFunction("c", ipu_id=1)
    def triple(x):
        return 3 * x

    assert triple(2) == 6
    assert triple.__name__ == "triple"


def double_of(_model, x):
    return 2 * x


def test_annotated_functions_are_methods_and_can_be_pickled():
    begun = poptorch.BeginBlock(double_of, "b", 1)
    model = type("Model", (), {"double": begun})()
    assert model.double(3) == 6
    saved = pickle.dumps(begun)
    for again in (pickle.loads(saved), copy.deepcopy(begun)):  # noqa: S301 - made above
        assert (again(None, 3), again._user_id, again._ipu_id) == (6, "b", 1)


def test_contexts_surround_code():
    with poptorch.Block("a", 0), poptorch.NameScope("scope"), poptorch.Attribute(key="value"):
        poptorch.Block.start("b")
    assert [poptorch.Block().user_id for _ in range(2)] == ["0", "1"]
    with poptorch.MultiConv() as convolutions:
        convolutions.availableMemoryProportions((0.1, 0.2)).partialsTypes(torch.half)
        convolutions.planType(poptorch.MultiConvPlanType.Parallel).perConvReservedTiles(50)
        convolutions.cycleBackOff(0.1).enableConvDithering([True, False])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: poptorch.Block(3.5),
        lambda: poptorch.Block("a", -1),
        poptorch.Attribute,
        lambda: poptorch.MultiConv().planType(1),
        lambda: poptorch.MultiConv().partialsTypes([torch.half, "half"]),
        lambda: poptorch.MultiConv().availableMemoryProportions("a lot"),
    ],
)
def test_wrong_annotations_are_errors(wrong):
    with pytest.raises((AssertionError, ValueError), match="PD300"):
        wrong()


class Asking(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.answers = []

    def forward(self, x):
        self.answers.append(poptorch.isRunningOnIpu())
        return nn.functional.mse_loss(self.layer(x), x)


def test_running_on_an_ipu_means_inside_a_wrapped_model():
    answers = []

    class Model(Asking):
        def forward(self, x):
            answers.append(poptorch.isRunningOnIpu())
            return super().forward(x)

    model, x = Model(), torch.ones(2, 1)
    model(x)
    poptorch.inferenceModel(model)(x)
    poptorch.trainingModel(model)(x)
    answers.append(poptorch.isRunningOnIpu())
    assert answers == [False, True, True, False]


def test_a_host_has_no_ipus():
    assert poptorch.ipuHardwareIsAvailable() is False
    assert poptorch.ipuHardwareIsAvailable(4) is False
    with pytest.raises(poptorch.Error, match="no IPU"):
        poptorch.ipuHardwareVersion()


@pytest.mark.parametrize(("level", "number"), [("DEBUG", 10), ("warn", 30), (2, 20), ("OFF", 51)])
def test_the_log_level_has_published_names(level, number):
    before = poptorch.logger.level
    try:
        poptorch.setLogLevel(level)
        assert poptorch.logger.level == number
    finally:
        poptorch.logger.setLevel(before)
    with pytest.raises(ValueError, match="does not support this level"):
        poptorch.setLogLevel("LOUD")


@pytest.mark.parametrize("has_log", [False, True])
def test_what_the_log_level_allows_is_shown_once(capsys, monkeypatch, has_log):
    """By the program's log if it has one."""
    logs = [logging.StreamHandler(sys.stdout)] if has_log else []
    monkeypatch.setattr(logging.getLogger(), "handlers", logs)
    monkeypatch.setattr(poptorch.logger, "handlers", [])
    before = poptorch.logger.level
    try:
        for _ in range(2):
            poptorch.setLogLevel("DEBUG")
        poptorch.logger.debug("a detail")
    finally:
        poptorch.logger.setLevel(before)
    shown = capsys.readouterr()
    own = "[popdist.torch] [DEBUG] a detail\n"
    assert (shown.out, shown.err) == (("a detail\n", "") if has_log else ("", own))


def test_parts_of_a_model_can_run_on_the_cpu():
    weight = nn.Parameter(torch.tensor([2.0]))
    result = poptorch.CPU(lambda x, *, scale: {"y": (x * scale,)}, "op")(weight, scale=3)
    result["y"][0].backward()
    assert weight.grad.item() == 3


class Pair:
    def __init__(self, left, right, name):
        self.left, self.right, self.name = left, right, name


class PairParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):  # noqa: N802 - a published name
        yield from (struct.left, struct.right)

    def reconstruct(self, original_structure, tensor_iterator):
        return Pair(next(tensor_iterator), next(tensor_iterator), original_structure.name)


def test_models_take_and_return_types_of_the_program():
    poptorch.registerCustomArgParser(Pair, PairParser())

    class Swap(nn.Module):
        def forward(self, pair):
            assert len(pair.left) == 2
            return Pair(pair.right, pair.left + 1, pair.name)

    run = poptorch.inferenceModel(Swap(), poptorch.Options().deviceIterations(2))
    for _ in range(2):
        result = run(Pair(torch.zeros(4), torch.ones(4), "name"))
    assert result.name == "name"
    assert result.left.tolist() == result.right.tolist() == [1, 1, 1, 1]


class Base:
    def __init__(self, rows):
        self.rows = rows


class Above(Base):
    pass


class Below(Above):
    pass


class RowsParser(poptorch.ICustomArgParser):
    def __init__(self, factor=1):
        self.factor = factor

    def yieldTensors(self, struct):  # noqa: N802 - a published name
        yield struct.rows

    def reconstruct(self, original_structure, tensor_iterator):
        return type(original_structure)(self.factor * next(tensor_iterator))


class Rows(nn.Module):
    def forward(self, value):
        assert len(value.rows) == 2
        return value.rows + 1


def test_a_parser_serves_subclasses_until_it_is_replaced_or_removed():
    run = poptorch.inferenceModel(Rows(), poptorch.Options().deviceIterations(2))
    poptorch.registerCustomArgParser(Base, RowsParser())
    assert run(Below(torch.zeros(4))).tolist() == [1, 1, 1, 1]
    named, _ = pytree.tree_flatten_with_path({"graph": Below(torch.zeros(4))})  # as comparisons do
    assert [pytree.keystr(path) for path, _ in named] == ["['graph'][0]"]
    poptorch.registerCustomArgParser(Base, RowsParser(3))
    assert run(Below(torch.ones(4))).tolist() == [4, 4, 4, 4]
    poptorch.registerCustomArgParser(Below, RowsParser(5))
    assert run(Below(torch.ones(4))).tolist() == [6, 6, 6, 6]
    assert poptorch.inferenceModel(Rows(), run.options)(Above(torch.ones(4))).tolist() == [4] * 4
    poptorch.registerCustomArgParser(Below, None)
    poptorch.registerCustomArgParser(Base, None)
    with pytest.raises(AssertionError):  # forward gets the whole object, which no parser splits
        poptorch.inferenceModel(Rows(), run.options)(Below(torch.ones(4)))
    with pytest.raises(poptorch.Error, match="arg_parser must inherit from ICustomArgParser"):
        poptorch.registerCustomArgParser(Base, object())


def test_blocks_begin_at_methods_and_have_numbers_for_names():
    class Model:
        @poptorch.BlockFunction("first")
        def double(self, x):
            return 2 * x

        @poptorch.BlockFunction(3, ipu_id=1)
        def half(self, x):
            return x / 2

    assert Model().double(3) == 6
    assert Model().half(3) == 1.5
    assert Model.double.__name__ == "double"
    assert poptorch.Block(7).user_id == "7"
    strategy = poptorch.PipelinedExecution(poptorch.Stage(0).ipu(1), 3)
    assert strategy == poptorch.PipelinedExecution(poptorch.Stage("0").ipu(1), "3")
    with pytest.raises(AssertionError, match="whole number"):
        poptorch.Block(1.5)


def test_backward_passes_in_threads_of_their_own_are_part_of_the_call():
    """As on a GPU, whose backward passes run parts of forward again."""
    answers = []

    def backward():
        answers.append(poptorch.isRunningOnIpu())  # a thread of the program's own
        x = torch.ones(1, requires_grad=True)
        y = x * 2
        y.register_hook(lambda _: answers.append(poptorch.isRunningOnIpu()))
        y.backward()

    for context in (nullcontext(), wrapped_call(Placement())):
        with context:
            thread = threading.Thread(target=backward)
            thread.start()
            thread.join()
    assert answers == [False, False, False, True]
