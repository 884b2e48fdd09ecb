"""Base of option objects: attributes that are declared, with values of their declared type."""

from __future__ import annotations

import dataclasses
from typing import Any

from popdist.nearest import did_you_mean
from popdist.settings import Setting, stored_only
from popdist_onnx.errors import ArgumentError, OptionError


def option(default: Any, meaning: str) -> Any:
    """Declares an option that has an effect; a callable ``default`` is a factory."""
    return _field(default, meaning, effect=meaning)


def stored(default: Any, meaning: str) -> Any:
    """Declares an option without effect on a host; a callable ``default`` is a factory."""
    return _field(default, meaning)


def _field(default: Any, meaning: str, effect: str = "") -> Any:
    kind = type(default() if callable(default) else default)
    metadata = {"setting": Setting(default, (kind,), effect, meaning)}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass
class Settings:
    """An object whose attributes are the declared options, and no others."""

    def __setattr__(self, name: str, value: object) -> None:
        field = type(self).__dataclass_fields__.get(name)
        if field is None:
            raise self._unknown(name)
        setting: Setting = field.metadata["setting"]
        if type(value) is int and float in setting.types:
            value = float(value)
        if not setting.accepts(value):
            raise ArgumentError(
                "PD506",
                f"{type(self).__name__}.{name} takes a value of another type",
                value=value,
                accepted=setting.accepted,
            )
        if not setting.effect and hasattr(self, name):
            stored_only("popdist.onnx", f"{type(self).__name__}.{name}")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        # Called for missing attributes only.
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._unknown(name)

    def _unknown(self, name: str) -> OptionError:
        return OptionError(
            "PD506",
            f"{type(self).__name__} has no option {name}",
            hint=did_you_mean(name, type(self).__dataclass_fields__, cutoff=0.5),
        )
