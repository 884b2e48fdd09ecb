"""PopTorch's enumerations under their published module, ``poptorch.enums``."""

from popdist_torch.options import enums as _enums
from popdist_torch.options.enums import *  # noqa: F403 - its list of names serves here too

__all__: list[str] = []
__all__ += _enums.__all__
