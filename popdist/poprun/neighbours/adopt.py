"""Completes an instance's environment with the names that other launchers use."""

from __future__ import annotations

from popdist.contract import NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

CLUSTER = "POPRUN_TF_WORKERS"
"""Carries the workers' addresses from the launcher to the guards."""

PRIVATE = "POPRUN_VALUE_"
"""Begins the variables that carry what one instance alone is to get, as <index>_<NAME>."""


def adopt(environ: MutableMapping[str, str], settings: Mapping[str, str]) -> None:
    """Completes the environment of this instance.

    Args:
        environ: The environment that its program is going to get, with the contract in it.
        settings: ``index`` (of the instance), ``neighbours`` (instances on this host), ``node``
            (this host's number among those of the job) and ``keep`` (names that the user has set,
            separated by commas).
    """
    index = settings["index"]
    standard = {
        "RANK": index,
        "WORLD_SIZE": environ.get(NAMES["num_instances"]),
        "LOCAL_RANK": environ.get(NAMES["local_instance_index"]),
        "LOCAL_WORLD_SIZE": settings.get("neighbours"),
        "NODE_RANK": settings.get("node"),
    }
    workers = environ.pop(CLUSTER, None)
    if workers is not None:
        standard["TF_CONFIG"] = (
            f'{{"cluster": {{"worker": [{workers}]}}, '
            f'"task": {{"type": "worker", "index": {index}}}}}'
        )
    kept = settings.get("keep", "").split(",")
    for name, value in standard.items():
        if name not in kept and value is not None:
            environ[name] = value
    for name in [name for name in environ if name.startswith(PRIVATE)]:
        value = environ.pop(name)
        owner, _, bare = name[len(PRIVATE) :].partition("_")
        if owner == index:
            environ[bare] = value
