"""Cutting graphs: nothing is lost, nothing runs too early, buckets are as large as asked."""

from types import SimpleNamespace

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from popdist_onnx.errors import popart_exception
from popdist_onnx.runtime.collectives import group_members
from popdist_onnx.runtime.compiled import Execution, make_session
from popdist_onnx.runtime.graph_reader import Step
from popdist_onnx.runtime.stages import MOST_BUCKETS, buckets, cut


def step(reads, *writes, update=False):
    return Step(SimpleNamespace(name=writes[0]), frozenset(reads), writes, update)


@st.composite
def graphs(draw):
    """Random graphs whose last tensors are gradients, and updates that read all of them."""
    count = draw(st.integers(3, 20))
    steps = []
    for index in range(count):
        known = ["x", *(f"t{i}" for i in range(index))]
        steps.append(
            step(draw(st.sets(st.sampled_from(known), min_size=1, max_size=3)), f"t{index}")
        )
    sent = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=6, unique=True))
    gradients = [f"t{i}" for i in sorted(sent)]
    updates = [step({g, "w"}, f"u{g}", update=True) for g in gradients]
    cuts = sorted(draw(st.sets(st.integers(1, len(gradients)), max_size=3)) | {len(gradients)})
    groups = [gradients[a:b] for a, b in zip([0, *cuts], cuts, strict=False)]
    return steps + updates, gradients, groups


@given(graphs())
def test_every_needed_step_runs_once_and_after_what_it_reads(case):
    steps, gradients, groups = case
    wanted = {name for one in steps if one.update for name in one.writes}
    stages = cut(steps, wanted=wanted, groups=groups)
    order = [i for stage in stages for i in stage.steps]
    assert len(order) == len(set(order))
    made = {"x", "w"}
    for stage in stages:
        inside = set()
        for i in stage.steps:
            assert steps[i].reads <= made | inside
            inside |= set(steps[i].writes)
        assert set(stage.reads) <= made
        made |= set(stage.writes)
    assert wanted <= made
    assert [n for stage in stages for n in stage.complete] == gradients
    for stage in stages:
        assert set(stage.complete) <= made


@given(graphs())
def test_a_bucket_leaves_as_soon_as_it_can(case):
    """A stage holds nothing that only later buckets need."""
    steps, _, groups = case
    stages = cut(steps, wanted=(), groups=groups)
    needed = set()
    for stage in stages:
        ancestors = set(stage.complete)
        for one in reversed(steps):
            if ancestors & set(one.writes):
                ancestors |= one.reads
        needed |= ancestors
        for i in stage.steps:
            assert set(steps[i].writes) & needed


def test_one_micro_batch_without_exchange_is_one_stage():
    steps = [step({"x"}, "g"), step({"g", "w"}, "u", update=True)]
    (only,) = cut(steps, wanted={"u"}, whole=True)
    assert (only.steps, only.update, only.reads, only.writes) == ((0, 1), False, ("x", "w"), ("u",))


def test_what_nobody_needs_is_left_out():
    steps = [step({"x"}, "a"), step({"x"}, "b")]
    assert [stage.steps for stage in cut(steps, wanted={"b"})] == [(1,)]
    assert cut(steps, wanted=()) == []


@given(st.lists(st.integers(1, 100), min_size=1), st.integers(1, 200))
def test_buckets_keep_order_and_are_few(sizes, least):
    names = {f"g{i}": size for i, size in enumerate(sizes)}
    groups = buckets(names, least_bytes=least)
    assert [name for group in groups for name in group] == list(names)
    assert len(groups) <= MOST_BUCKETS
    assert all(sum(names[n] for n in group) >= least for group in groups[:-1])


def test_sums_over_instances_are_stages_of_their_own():
    """Even where an earlier bucket of gradients waits for them."""

    def total(read, write):
        return Step(SimpleNamespace(name=write), frozenset({read}), (write,), False, True)  # noqa: FBT003

    steps = [
        step({"x"}, "a"),
        total("a", "s"),
        step({"s", "a"}, "b"),
        step({"x"}, "g1"),
        total("b", "t"),
        step({"t"}, "g0"),
        step({"g0", "g1"}, "w", update=True),
    ]
    stages = cut(steps, wanted={"w"}, groups=[["g0"], ["g1"]])
    assert [one.collective for one in stages] == [False, False, True, False, True, False, False]
    assert [one.steps for one in stages] == [(0,), (3,), (1,), (2,), (4,), (5,), (6,)]
    assert [one.complete for one in stages if one.complete] == [("g1",), ("g0",)]
    assert stages[-1].update


def test_groups_of_instances():
    assert group_members([], 1, 4) == group_members([0, 0], 3, 4) == [0, 1, 2, 3]
    assert [group_members([1, 2], rank, 4) for rank in range(4)] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [group_members([2, 2], rank, 4) for rank in range(4)] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    with pytest.raises(popart_exception, match="cannot divide 4 replicas"):
        group_members([1, 3], 0, 4)


def test_a_gpu_computes_single_precision_on_the_device_of_the_session():
    execution = Execution(providers=("CUDAExecutionProvider", "CPUExecutionProvider"), gpu=2)
    cuda, cpu = execution.with_settings()
    assert cuda == ("CUDAExecutionProvider", {"device_id": "2", "use_tf32": "0"})
    assert cpu == "CPUExecutionProvider"


def test_a_provider_that_does_not_start_is_named(caplog):
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", [x], [y]),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=10,
    )
    absent = "WebNNExecutionProvider"
    with pytest.warns(UserWarning, match=absent):
        make_session(model.SerializeToString(), Execution((absent, "CPUExecutionProvider")))
    assert absent in caplog.text
