"""Completes an instance's environment: the names of other launchers, the user's variables."""

from __future__ import annotations

from popdist.contract import NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

STANDARD = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "TF_CONFIG"}
)
"""What is set here, unless the user sets it."""

CLUSTER = "POPRUN_TF_WORKERS"
"""Carries the workers' addresses from the launcher to the guards."""

PRIVATE = "POPRUN_SET_"
"""Begins the names under which the user's variables travel: <NAME> for all instances, and
<index>_<NAME> for one alone."""

SET = "set."
"""Begins settings that carry a variable for this instance: set.<NAME>=<value>."""


def adopt(environ: MutableMapping[str, str], settings: Mapping[str, str]) -> None:
    """Completes the environment of this instance.

    Args:
        environ: The environment that its program is going to get, with the contract in it.
        settings: ``index`` (of the instance), ``neighbours`` (instances on this host), ``node``
            (this host's number among those of the job), ``keep`` (names that the user has set,
            separated by commas), ``set.<NAME>``, and ``names`` where the program may import the
            SDK's modules.
    """
    environ.update(
        {name[len(SET) :]: text for name, text in settings.items() if name.startswith(SET)}
    )
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
    carried = sorted(name for name in environ if name.startswith(PRIVATE))
    values = {name[len(PRIVATE) :]: environ.pop(name) for name in carried}
    mine = f"{index}_"
    for name, value in values.items():
        if name and not name[0].isdigit():
            environ[name] = value
    for name, value in values.items():
        if name.startswith(mine):
            environ[name[len(mine) :]] = value
    if "names" in settings:
        from popdist.sdk.startup.environment import enable

        enable(environ)
