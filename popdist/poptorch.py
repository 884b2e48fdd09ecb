"""The module for PyTorch programs: ``popdist.poptorch.Options``.

Where Graphcore's own ``poptorch`` is installed, its Options are the base, and its devices are used;
elsewhere the base is `popdist_torch.Options`. Either way PopDist settles what the launcher knows:
replicas, process index and number, device, offline mode. Calls that would contradict the launcher
raise, whether or not there is one, so that a program fails alike everywhere.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn

from popdist.errors import PopdistError
from popdist.popdist_core import as_told, getDeviceId

if TYPE_CHECKING:
    from popdist.popdist_core import Topology
    from popdist_torch.options.placement import Placement

if TYPE_CHECKING or find_spec("poptorch") is None:
    import popdist_torch as _poptorch
else:
    import poptorch as _poptorch

__all__ = ["Options"]

logger = logging.getLogger("popdist.torch")


class BlockedCallError(PopdistError, RuntimeError):
    """A call that would contradict the launcher."""


def _blocked(call: str) -> NoReturn:
    raise BlockedCallError(
        "PD005",
        f"Cannot call `{call}` with popdist.poptorch.Options",
        hint="poprun decides this (--num-replicas, --num-instances); a plain poptorch.Options() "
        "leaves it to the program",
    )


class _Distributed(_poptorch.options._DistributedOptions):  # noqa: SLF001 - as PopTorch's PopDist does
    """The place of this process, which only the launcher sets."""

    @property
    def chosen(self) -> bool:
        """Whether the program has set the place: never."""
        return False

    def disable(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        _blocked("Distributed.disable")

    def setEnvVarNames(self, *_args: Any, **_kwargs: Any) -> NoReturn:  # noqa: N802
        _blocked("Distributed.setEnvVarNames")

    def configureProcessId(self, *_args: Any, **_kwargs: Any) -> NoReturn:  # noqa: N802
        _blocked("Distributed.configureProcessId")


class Options(_poptorch.Options):
    """PopTorch's Options for this instance of the job.

    Args:
        ipus_per_replica: Devices that one replica uses; checked against the launcher's.

    Raises:
        ArgumentError: The job was placed for another number of devices per replica.
    """

    def __init__(self, ipus_per_replica: int | None = None) -> None:
        super().__init__()
        here = as_told()
        _warn_of_strangers(here, int(getattr(self.Distributed, "numProcesses", 1)))
        super().replicationFactor(here.num_local_replicas)
        self.Distributed.configureProcessId(*_process(here))
        if here.executable_cache_path is not None:
            self.enableExecutableCaching(here.executable_cache_path)
        if here.offline:
            super().connectionType(_poptorch.ConnectionType.Never)
        else:
            super().useIpuId(getDeviceId(ipus_per_replica))
        self.Distributed.__class__ = _Distributed

    def useIpuId(self, *_args: Any, **_kwargs: Any) -> NoReturn:  # noqa: N802
        """Raises: the launcher places instances on devices.

        Raises:
            BlockedCallError: Always.
        """
        _blocked("useIpuId")

    def replicationFactor(self, *_args: Any, **_kwargs: Any) -> NoReturn:  # noqa: N802
        """Raises: the launcher divides replicas over instances.

        Raises:
            BlockedCallError: Always.
        """
        _blocked("replicationFactor")

    @property
    def placement(self) -> Placement:
        """Which replicas of the job this instance runs, also where instances differ in number.

        Raises:
            BlockedCallError: The program has assigned another number of replicas.
        """
        here = as_told()
        if self.replication_factor != here.num_local_replicas:
            raise BlockedCallError(
                "PD005",
                "the options have another number of replicas than the launcher gave this instance",
                value=f"replication_factor = {self.replication_factor}",
                accepted=str(here.num_local_replicas),
                hint="poprun decides this (--num-replicas, --num-instances)",
            )
        process, processes = _process(here)
        return _poptorch.options.Placement(
            first_replica=here.replica_index_offset,
            local_replicas=here.num_local_replicas,
            total_replicas=here.num_total_replicas,
            process_id=process,
            num_processes=processes,
        )


def _warn_of_strangers(here: Topology, processes: int) -> None:
    """Says so where another launcher's processes will know nothing of each other."""
    if not here.launched and processes > 1:
        logger.warning(
            "mpirun or horovodrun started %d processes, but poprun did not: "
            "popdist.poptorch.Options() describes each as a job of its own, in which training is "
            "an error. Start the job with poprun, or use popdist_torch.Options() to train together "
            "here",
            processes,
        )


def _process(here: Topology) -> tuple[int, int]:
    if here.instance_index is None or here.num_instances is None:
        raise BlockedCallError(
            "PD005",
            "the launcher does not say which instance this is, and instances differ in their "
            "number of replicas",
            hint="start the job with poprun, which sets POPDIST_INSTANCE_INDEX and "
            "POPDIST_NUM_INSTANCES",
        )
    return here.instance_index, here.num_instances
