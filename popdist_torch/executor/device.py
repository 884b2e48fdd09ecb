"""Where a wrapped model runs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from popdist.popdist_core import getDeviceId
from popdist_torch.options import ConnectionType

if TYPE_CHECKING:
    from popdist_torch.options import Options

logger = logging.getLogger("popdist.torch")


def choose(options: Options) -> torch.device:
    """Chooses the device of a model.

    All local replicas of an instance share its first device and run there one after the other.

    Args:
        options: The model's options.

    Returns:
        The GPU that ``useIpuId`` or the launcher gives this instance, where the machine has GPUs
        and the job is neither offline nor on the "IPU model"; otherwise the CPU.
    """
    simulated = options.exists("use_model") and options.use_model
    offline = options.connection_type == ConnectionType.Never
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count or simulated or offline:
        return torch.device("cpu")
    wanted = options.ipu_id if options.exists("ipu_id") else getDeviceId()
    if wanted >= count:
        logger.info("device %d does not exist; sharing device %d", wanted, wanted % count)
    return torch.device("cuda", wanted % count)
