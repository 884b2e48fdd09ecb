"""The PopDist programming model on ordinary machines.

`import popdist` is fast: every name, also the modules for frameworks (`popdist.poptorch`), is
imported on first use (PEP 562).
"""

from __future__ import annotations

from popdist import program_status as _program_status
from popdist._version import __version__

TYPE_CHECKING = False  # `typing` alone would cost most of the ten milliseconds; checkers know it
if TYPE_CHECKING:
    from typing import Any

    from popdist.backend import (
        execute_on_instances,
        finalizeBackend,
        init,
        initializeBackend,
        isBackendInitialized,
        synchronize,
    )
    from popdist.errors import PopdistError
    from popdist.metrics import report_progress
    from popdist.popdist_core import (
        Topology,
        checkNumIpusPerReplica,
        getDeviceId,
        getInstanceIndex,
        getLocalInstanceIndex,
        getNumInstances,
        getNumIpusPerReplica,
        getNumLocalReplicas,
        getNumTotalReplicas,
        getReplicaIndexOffset,
        isPopdistEnvSet,
        isUniformReplicasPerInstance,
        topology,
    )
    from popdist.runner.caller import JobError, run
    from popdist.tracker import track

__all__ = [
    "JobError",
    "PopdistError",
    "Topology",
    "__version__",
    "checkNumIpusPerReplica",
    "execute_on_instances",
    "finalizeBackend",
    "getDeviceId",
    "getInstanceIndex",
    "getLocalInstanceIndex",
    "getNumInstances",
    "getNumIpusPerReplica",
    "getNumLocalReplicas",
    "getNumTotalReplicas",
    "getReplicaIndexOffset",
    "init",
    "initializeBackend",
    "isBackendInitialized",
    "isPopdistEnvSet",
    "isUniformReplicasPerInstance",
    "report_progress",
    "run",
    "synchronize",
    "topology",
    "track",
]

_HOMES = {
    "JobError": "runner.caller",
    "PopdistError": "errors",
    "execute_on_instances": "backend",
    "finalizeBackend": "backend",
    "init": "backend",
    "initializeBackend": "backend",
    "isBackendInitialized": "backend",
    "report_progress": "metrics",
    "run": "runner.caller",
    "synchronize": "backend",
    "track": "tracker",
}


OTHER_NAMES = {
    "rank": "popdist.getInstanceIndex()",
    "size": "popdist.getNumInstances()",
    "world_size": "popdist.getNumInstances()",
    "local_rank": "popdist.getLocalInstanceIndex()",
    "torch": "import popdist_torch",
    "keras": "import popdist_tf.keras",
    "onnx": "import popdist_onnx",
    "horovod": "import popdist_torch.horovod, or popdist_tf.keras",
    "DataLoader": "popdist_torch.DataLoader",
    "Options": "popdist.poptorch.Options",
    "trainingModel": "popdist_torch.trainingModel",
}
"""The names by which other libraries call what popdist has too."""


_program_status.register()


def __getattr__(name: str) -> Any:
    from importlib import import_module
    from importlib.util import find_spec

    if name in __all__:
        home = import_module(f"popdist.{_HOMES.get(name, 'popdist_core')}")
        return globals().setdefault(name, getattr(home, name))
    # Published programs reach `popdist.poptorch` after `import popdist` alone.
    if not name.startswith("_") and find_spec(f"popdist.{name}") is not None:
        return import_module(f"popdist.{name}")
    message = f"module 'popdist' has no attribute {name!r}"
    meant = OTHER_NAMES.get(name)
    if meant is None:
        raise AttributeError(message)
    # With a name of its own, Python guesses none.
    raise AttributeError(f"{message}; it is {meant}", name=meant)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
