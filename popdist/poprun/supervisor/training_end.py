"""What the instances of a job had trained when their programs ended, compared by the launcher.

Each instance has stated a digest of every weight, and whether it has exchanged anything with others
(see `popdist.checks.trained`). No instance waits for another one's statement. An instance without a
statement has trained nothing, or was killed, and is not compared.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from popdist.poprun.supervisor.outcome import Outcome

_CONNECTED = '"connected": true'

_DIVERGED = (
    "hint: what changes weights after the last exchange (load_state_dict, a best or averaged "
    "model, a new layer) has to do so on every instance, or broadcast the result; "
    "--check-weights=no where instances are to end with weights of their own"
)
_CONNECT = {
    "torch": (
        "torch: popdist_torch.horovod.init(), DistributedOptimizer(optimizer, "
        "model.named_parameters()) and broadcast_parameters(model.state_dict(), root_rank=0)"
    ),
    "lightning": (
        "Lightning: Trainer(strategy='popdist'), or --trainer.strategy=popdist of a LightningCLI"
    ),
    "keras": (
        "Keras: popdist_tf.keras.init() and compile with "
        "popdist_tf.keras.DistributedOptimizer(optimizer), or build and compile the model in the "
        "scope of popdist.tensorflow.PopDistStrategy()"
    ),
}


def diverged(outcome: Outcome) -> list[str]:
    """The lines of an error about weights that differ between instances; none where all are equal.

    Args:
        outcome: The outcome of a job whose instances have all ended well.
    """
    stated = [one.trained for one in outcome.instances.values() if one.trained]
    if len(set(stated)) <= 1:
        return []
    from popdist.agreement import ABSENT, compare, listed

    weights = [statement["weights"] for statement in _read(stated)]
    rows = [row for row in compare(weights) if ABSENT not in row.values]
    if not rows:
        return []
    first = "[PD007] the instances have ended with different weights, so each has its own model:"
    return [*(first + listed(rows)).splitlines(), _DIVERGED]


def apart(outcome: Outcome, instances: int) -> str:
    """A message about connected instances, all of whose weights have ended different.

    Args:
        outcome: The outcome of the job.
        instances: The number of its instances.

    Returns:
        The message; empty where a weight is equal on all, or they have trained different models,
        as where each instance has a part of one.
    """
    found = _read([one.trained for one in outcome.instances.values() if one.trained])
    own = [statement["own"] for statement in found]
    if len(own) < instances or instances == 1 or not own[0]:
        return ""
    if any(weights.keys() != own[0].keys() for weights in own):
        return ""
    from popdist.agreement import compare

    if len(compare(own)) < len(own[0]):
        return ""
    return (
        f"[PD025] the {instances} instances exchange values, but have ended with other weights: "
        f"all {len(own[0])} differ, so each has a model of its own\n"
        "  hint:     exchange gradients (DistributedDataParallel(model), or "
        "horovod.torch.DistributedOptimizer with broadcast_parameters first); --check-weights=no "
        "where it is meant"
    )


def unconnected(outcome: Outcome, instances: int) -> str:
    """A message about instances that have all trained, and have exchanged nothing.

    Args:
        outcome: The outcome of the job.
        instances: The number of its instances.

    Returns:
        The message; empty where an instance has trained nothing, or has exchanged something.
    """
    stated = [one.trained for one in outcome.instances.values()]
    if instances == 1 or len(stated) < instances:
        return ""
    if any(not text or _CONNECTED in text for text in stated):
        return ""
    found = _read(stated)
    if not all(statement["framework"] for statement in found):
        return ""
    fixes = [_CONNECT[name] for name in sorted({statement["framework"] for statement in found})]
    return (
        f"[PD025] the {instances} instances have trained without exchanging anything: each has a "
        f"model of its own, and has repeated the work of the others\n  hint:     {'; '.join(fixes)}"
    )


def _read(stated: Sequence[str]) -> list[dict[str, Any]]:
    import json

    return [json.loads(text) for text in stated]
