import pytest
import torch

import popdist_torch as poptorch
from popdist_torch import MatMulSerializationMode as Mode
from popdist_torch.ops.library import OPERATORS


def test_a_serialised_product_is_the_product():
    lhs, rhs = torch.randn(4, 6), torch.randn(6, 8)
    for mode, factor in ((Mode.InputChannels, 2), (Mode.ReducingDim, 3), (Mode.OutputChannels, 8)):
        result = poptorch.serializedMatMul(lhs, rhs, mode, factor, keep_precision=True)
        assert torch.equal(result, lhs @ rhs)
        with pytest.raises(ValueError, match="equal pieces"):
            poptorch.serializedMatMul(lhs, rhs, mode, 5)
    assert torch.equal(poptorch.serializedMatMul(lhs, rhs, Mode.Disabled), lhs @ rhs)
    with pytest.raises(ValueError, match="MatMulSerializationMode"):
        poptorch.serializedMatMul(lhs, rhs, "none")


def test_hints_give_back_what_they_get():
    tensor = torch.ones(2)
    assert poptorch.set_available_memory(tensor, 0.3) is tensor
    assert poptorch.set_overlap_for_input([tensor], poptorch.OverlapMode.NoOverlap) == [tensor]
    assert poptorch.set_overlap_for_output(tensor, poptorch.OverlapMode.NoOverlap) is tensor
    for wrong in (
        lambda: poptorch.set_available_memory(tensor, 1.1),
        lambda: poptorch.set_overlap_for_input(tensor, "no_overlap"),
        lambda: poptorch.set_overlap_for_output(tensor, 0),
    ):
        with pytest.raises(ValueError, match="PD300"):
            wrong()
    nothing = poptorch.nop(tensor)
    assert nothing is not tensor
    assert torch.equal(nothing, tensor)


def test_tensors_and_gradients_are_printed(capsys):
    before = torch.get_printoptions() if hasattr(torch, "get_printoptions") else None
    tensor = torch.tensor([1.23456], requires_grad=True)
    (3 * poptorch.ipu_print_tensor(tensor, "x", digits=2)).sum().backward()
    poptorch.ipu_print_tensor(tensor, print_gradient=False, separator=",").sum().backward()
    assert capsys.readouterr().err == (
        "x: tensor([1.23])\ngradient of x: tensor([3.])\ntensor: tensor([1.2346])\n"
    )
    assert before is None or torch.get_printoptions() == before
    with pytest.raises(TypeError, match="brackets"):
        poptorch.ipu_print_tensor(tensor, brackets="[]")


def test_loops_feed_on_their_results():
    one, two = poptorch.for_loop(3, lambda a, b: (b, a + b), [torch.tensor(1), torch.tensor(1)])
    assert (one.item(), two.item()) == (3, 5)
    assert poptorch.for_loop(2, lambda a: 2 * a, [torch.tensor(1.0)])[0].item() == 4
    weight = torch.tensor(2.0, requires_grad=True)
    poptorch.for_loop(3, lambda a: a * weight, [torch.tensor(1.0)])[0].backward()
    assert weight.grad.item() == 12
    for wrong in (
        lambda: poptorch.for_loop(2, lambda a: a, torch.ones(1)),
        lambda: poptorch.for_loop(2, lambda a: a.repeat(2), [torch.ones(1)]),
        lambda: poptorch.for_loop(2, lambda a: (a, a), [torch.ones(1)]),
    ):
        with pytest.raises(ValueError, match="PD300"):
            wrong()


def test_branches_are_taken_by_value():
    def branch(condition):
        return poptorch.cond(
            condition, lambda x: x + 1, [torch.tensor(1)], lambda x: (x, x), [torch.tensor(5)]
        )

    assert [v.item() for v in branch(torch.tensor([True]))] == [2]
    assert [v.item() for v in branch(condition=False)] == [5, 5]
    with pytest.raises(ValueError, match="one element"):
        branch(torch.tensor([True, False]))


def test_rows_are_taken_and_replaced_at_run_time():
    tensor = torch.arange(12).view(6, 2)
    assert poptorch.dynamic_slice(tensor, 0, torch.tensor([1]), 4).tolist() == tensor[1:5].tolist()
    for step in (2, 3):
        rows = poptorch.dynamic_slice(tensor, 0, 1, 4, step)
        assert rows.tolist() == tensor[1:5:step].tolist()
    new = torch.full((6, 1), -1)
    updated = poptorch.dynamic_update(tensor, new, 1, 1, 1)
    assert updated[:, 1].tolist() == [-1] * 6
    assert tensor[0, 1] == 1
    for what, wrong in (
        ("outside the tensor", lambda: poptorch.dynamic_slice(tensor, 0, 4, 3)),
        ("start and end of a slice must be d", lambda: poptorch.dynamic_slice(tensor, 0, 4, 0)),
        ("end less than the start", lambda: poptorch.dynamic_slice(tensor, 0, 4, -2)),
        ("must be positive", lambda: poptorch.dynamic_slice(tensor, 0, 0, 4, 0)),
        ("outside the tensor", lambda: poptorch.dynamic_update(tensor, new, 1, 2, 1)),
        ("size rows", lambda: poptorch.dynamic_update(tensor, new, 1, 0, 2)),
        (r"\(2\) vs \(1\)", lambda: poptorch.dynamic_update(tensor, new[0], 1, 0, 1)),
        ("same dtype", lambda: poptorch.dynamic_update(tensor, new.float(), 1, 0, 1)),
    ):
        with pytest.raises(poptorch.Error, match=what):
            wrong()


CALLS = {
    "push_name_scope": ("name",),
    "pop_name_scope": (),
    "begin_ipu_block": (0, 0, 0),
    "end_ipu_block": (),
    "begin_multi_conv": (),
    "set_attribute": ("a", "b", "c"),
    "clear_attribute": ("a", "b"),
    "internal_cast": (torch.ones(2), "FLOAT16"),
    "nop": (torch.ones(2),),
    "recomputation_checkpoint": (torch.ones(2),),
    "set_available_memory": (torch.ones(2), 0.5),
    "set_matmul_serialization": (torch.ones(2), "none", 0, False),
    "set_overlap_for_input": (torch.ones(2), "no_overlap"),
    "set_overlap_for_output": (torch.ones(2), "no_overlap"),
    "identity_loss": (torch.ones(2), 0),
    "ipu_print_tensor": (torch.ones(2), "x"),
    "ctc_beam_search_decoder": (torch.zeros(3, 1, 2), torch.tensor([3]), 0, 4, 1),
}


@pytest.mark.parametrize("schema", OPERATORS)
def test_registered_operators_compute_and_differentiate(schema):
    name = schema.partition("(")[0]
    arguments = CALLS[name]
    result = getattr(torch.ops.poptorch, name)(*arguments)
    if not arguments or not isinstance(arguments[0], torch.Tensor):
        assert result is None
    elif name != "ctc_beam_search_decoder":
        leaf = arguments[0].clone().requires_grad_()
        getattr(torch.ops.poptorch, name)(leaf, *arguments[1:]).sum().backward()
        assert leaf.grad.tolist() == [1, 1]


def test_a_registered_operator_can_mark_the_loss():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x):
            return torch.ops.poptorch.identity_loss(self.layer(x) ** 2, 1)

    model = Model()
    training = poptorch.trainingModel(model)
    losses = [training(torch.ones(4, 2)).item() for _ in range(3)]
    assert losses[2] < losses[0]
    with pytest.raises(ValueError, match="does not support this type"):
        torch.ops.poptorch.internal_cast(torch.ones(1), "COMPLEX")


def test_bodies_get_copies_of_their_tensors():
    """PopTorch's bodies are graphs of their own: in-place changes reach nobody else."""
    mine = torch.tensor([5.0])

    def add(x):
        x += 1
        return x

    assert poptorch.for_loop(3, add, [mine])[0].item() == 8
    assert mine.item() == 5
    assert poptorch.cond(torch.tensor([True]), add, [mine], add, [mine])[0].item() == 6
    assert mine.item() == 5
    for result in (
        poptorch.for_loop(0, add, [mine])[0],
        poptorch.dynamic_slice(mine, 0, 0, 1),
        poptorch.dynamic_update(mine, mine, 0, 0, 1),
    ):
        result.add_(1)
        assert mine.item() == 5
    # Results that are one tensor are two in the next iteration.
    first, second = poptorch.for_loop(2, lambda a, b: (a.add_(b - b + 1), a), [mine, mine])
    assert (first.item(), second.item()) == (7, 7)
