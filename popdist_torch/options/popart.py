"""``Options._Popart``: settings handed to PopART as they are; here they are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from popdist_torch.errors import OptionError
from popdist_torch.options.effects import stored_only
from popdist_torch.options.settings import with_effect, without_effect
from popdist_torch.options.storage import OptionsDict

if TYPE_CHECKING:
    from collections.abc import Mapping


_PAIR = 2

SYNTHETIC_DATA = "syntheticDataMode"
"""The one session option with a meaning on a host: 0 for real data, else generated data."""


class PopartOptions(OptionsDict):
    """PopART session options by name."""

    path = "_Popart."

    def __init__(self) -> None:
        super().__init__(
            options={"instrumentWithHardwareCycleCounter": False, "rearrangeAnchorsOnHost": False},
            patterns={},
            patterns_level=2,
        )

    @with_effect("`syntheticDataMode` acts as `enableSyntheticData`; no other name does")
    # The published method takes a name and a value, unlike that of every other group.
    def set(self, *name_and_value: Any, **values: Any) -> PopartOptions:  # type: ignore[override]
        """Stores one PopART session option.

        Args:
            *name_and_value: The option's name, and its value.
            **values: As for every other group; used by attribute assignment.

        Returns:
            These options.

        Raises:
            OptionError: Not a name and a value.
        """
        if name_and_value:
            self._require_unfrozen()
            if len(name_and_value) != _PAIR:
                raise OptionError(
                    "PD300", "_Popart.set takes a name and a value", value=name_and_value
                )
            name, value = name_and_value
            if name != SYNTHETIC_DATA:
                stored_only(f"_Popart.{name}")
            self("options")[name] = value
        super().set(**values)
        return self

    @without_effect
    def setPatterns(self, patterns: Mapping[str, bool], level: int = 2) -> PopartOptions:
        """Stores which graph patterns PopART applies.

        Args:
            patterns: Switches by pattern.
            level: The set of patterns to start from.

        Returns:
            These options.
        """
        return self.set(patterns=dict(patterns), patterns_level=level)
