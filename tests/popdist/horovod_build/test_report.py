from popdist.horovod_build import session
from popdist.horovod_build.check import Checked
from popdist.horovod_build.plan import make_plan
from tests.popdist.horovod_build.samples import facts, gpu_facts, options


def test_the_headline_names_what_is_built():
    assert session.headline(make_plan(facts(), options())) == (
        "Horovod 0.28.1 for torch 2.13.0+cpu and tensorflow-cpu 2.15.1 over Open MPI 4.1.8"
    )
    assert session.headline(make_plan(gpu_facts(), options(nccl=True))).endswith(
        "over Open MPI 4.1.8, NCCL 2.29.7, CUDA 13.0"
    )


def test_the_plan_shows_every_patch_component_variable_and_the_key():
    plan = make_plan(facts(), options(jobs=64))
    text = session.explain_plan(facts(), plan, None, "0.28.1")
    for patch in plan.patches:
        assert f"  {patch.name} ({patch.condition}): {patch.why}" in text
    for name, value in plan.variables:
        assert f"  {name}={value}\n" in text
    assert f"Key: {plan.key}\n" in text
    assert "Cached wheel: none\nInstalled: 0.28.1\n" in text
    assert "Note: 20.0 GB of memory is free" in text


def test_the_verdict_has_a_line_per_binding():
    text = session.verdict([Checked("torch", "2.13.0", "cpu", ("MPI", "Gloo"))])
    assert text.endswith("reduced correctly with PyTorch 2.13.0 on cpu (MPI, Gloo)")
