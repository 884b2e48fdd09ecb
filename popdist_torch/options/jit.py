"""``Options.Jit``: how PopTorch builds its graph; on a host models run eagerly."""

from __future__ import annotations

from popdist_torch.errors import OptionValueError
from popdist_torch.options.checks import flag
from popdist_torch.options.settings import without_effect
from popdist_torch.options.storage import OptionsDict


class JitOptions(OptionsDict):
    """Options of graph building."""

    path = "Jit."

    @without_effect
    def traceModel(self, trace_model: bool) -> JitOptions:
        """Accepts the dispatcher, PopTorch's only way since SDK 3.

        Args:
            trace_model: False.

        Returns:
            These options.

        Raises:
            OptionValueError: True was given.
        """
        if flag("traceModel", trace_model):
            raise OptionValueError(
                "PD300", "tracing was removed from PopTorch in SDK 3", accepted="False"
            )
        return self
