"""Checks that a training model's options and Horovod describe the same job."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from popdist import backend
from popdist.popdist_core import topology
from popdist_torch.errors import AgreementError

if TYPE_CHECKING:
    from popdist_torch.options import Options
    from popdist_torch.options.placement import Placement

logger = logging.getLogger("popdist.torch")


def require(here: Placement) -> Any:
    """The initialised ``horovod.torch``, checked to connect the processes of the options.

    Raises:
        AgreementError: Horovod sees another job.
    """
    horovod = backend.connect("torch", here.num_processes)
    seen = (0, 1) if horovod is None else (horovod.rank(), horovod.size())
    if (here.process_id, here.num_processes) != seen:
        raise AgreementError(
            "PD014",
            "the options describe another job than the one this process belongs to",
            value=f"process {here.process_id} of {here.num_processes} in options.Distributed; "
            f"instance {seen[0]} of {seen[1]} in the job",
            hint="start the job with poprun and use popdist.poptorch.Options(), or call "
            "options.Distributed.disable() to train alone",
        )
    return horovod


def require_meant_alone(options: Options) -> None:
    """Checks that a process of a larger job trains alone only if its program asks for it.

    Raises:
        AgreementError: It was started with others, and nothing in the program chose to be alone.
    """
    started = backend.launch()
    if (started.size or 1) > 1 and not options.Distributed.chosen:
        raise AgreementError(
            "PD321",
            "this process would train alone, though it was started with others",
            value=f"one process in options.Distributed; {started.size} started by {started.by}",
            hint="start the job with poprun, or use popdist_torch.Options() to train together "
            "under other launchers; options.Distributed.disable() says that it is meant",
        )


def warn_of_other_replicas(here: Placement) -> None:
    """Warns, on process 0, of options that have other replicas than the launcher was asked for.

    A library that knows nothing of popdist builds plain options, in which only the program's calls
    decide the number of replicas. One replica for each instance is what every launcher has, and no
    request of a user.
    """
    asked = topology()
    wanted, seen = asked.num_local_replicas, here.local_replicas
    if wanted == 1 or asked.num_instances != here.num_processes or wanted == seen:
        return
    if here.process_id == 0:
        logger.warning(
            "%s",
            AgreementError(
                "PD353",
                "the options have another number of replicas than the job",
                value=f"{seen} of options.replicationFactor in this instance; {wanted} of "
                "--num-replicas",
                hint=f"call options.replicationFactor({wanted}), or use popdist.poptorch.Options()",
            ),
        )
