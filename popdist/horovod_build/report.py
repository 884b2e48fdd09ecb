"""The texts that a user sees on the way: one place, pure, so that tests can read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from popdist.horovod_build.check import Checked
    from popdist.horovod_build.facts import Facts
    from popdist.horovod_build.plan import Plan

_NAMES = {"torch": "PyTorch", "tensorflow": "TensorFlow"}


def headline(plan: Plan) -> str:
    """What the plan is for, in one line.

    Args:
        plan: The plan.

    Returns:
        The line.
    """
    parts = dict(plan.components)
    bindings = " and ".join(parts[framework] for framework in plan.frameworks)
    extra = "" if parts["nccl"] == "off" else f", {parts['nccl']}"
    return f"Horovod {parts['horovod']} for {bindings} over {parts['mpi']}{extra}"


def explain_plan(facts: Facts, plan: Plan, wheel: Path | None, installed: str | None) -> str:
    """Everything that is decided, for ``--print-plan``.

    Args:
        facts: What was found.
        plan: What follows from it.
        wheel: The cached wheel, if there is one.
        installed: The installed version of Horovod, if any.

    Returns:
        Several lines.
    """
    assert facts.mpi is not None  # noqa: S101 - checked by requirements
    lines = [headline(plan), "", "What the wheel depends on:"]
    width = max(len(name) for name, _ in plan.components)
    lines += [f"  {name:{width}}  {value or '-'}" for name, value in plan.components]
    lines += ["", f"MPI: {facts.mpi.origin}: {facts.mpi.mpicxx}, {facts.mpi.mpirun}"]
    lines += ["", "Patches:"]
    lines += [f"  {patch.name} ({patch.condition}): {patch.why}" for patch in plan.patches]
    lines += ["", "Environment:"]
    lines += [f"  {name}={value}" for name, value in plan.variables]
    lines += [f"  PATH={':'.join(plan.search)}:..."]
    lines += ["", "Command:", "  " + " ".join(plan.command)]
    lines += ["", f"Key: {plan.key}"]
    lines += [f"Cached wheel: {wheel or 'none'}"]
    lines += [f"Installed: {installed or 'none'}"]
    lines += [f"Note: {note}" for note in plan.notes]
    return "\n".join(lines)


def verdict(results: Sequence[Checked]) -> str:
    """What the check has shown.

    Args:
        results: One result per binding.

    Returns:
        A line per binding.
    """
    return "\n".join(
        f"  horovod.{result.framework}: two ranks reduced correctly with "
        f"{_NAMES[result.framework]} {result.version} on {result.device} "
        f"({', '.join(result.abilities)})"
        for result in results
    )
