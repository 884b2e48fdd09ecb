"""Cutting graphs: nothing is lost, nothing runs too early, buckets are as large as asked."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

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
