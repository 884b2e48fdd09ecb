"""Nested categories of attributes, declared in tables.

An assignment is checked against the declared type; an unknown name raises an error that suggests
similar names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from popdist.nearest import did_you_mean
from popdist.settings import Setting
from popdist_tf.errors import ConfigError, ConfigTypeError

Table = Mapping[str, "Setting | Table"]


class Category:
    """A group of attributes.

    Args:
        table: The attributes and nested groups.
        path: Full name of the group, such as ``IPUConfig.matmuls``.
    """

    def __init__(self, table: Table, path: str) -> None:
        values = {
            name: entry.fresh() if isinstance(entry, Setting) else Category(entry, f"{path}.{name}")
            for name, entry in table.items()
        }
        self.__dict__.update(_table=table, _path=path, **values)

    def __getattr__(self, name: str) -> Any:
        # Reached for unknown names only. Copying and pickling ask for dunders before __init__ ran.
        if name.startswith("__") or "_table" not in self.__dict__:
            raise AttributeError(name)
        raise self._unknown(name)

    def __setattr__(self, name: str, value: object) -> None:
        entry = self._table.get(name)
        if entry is None:
            raise self._unknown(name)
        if not isinstance(entry, Setting):
            raise ConfigError(
                "PD400",
                f"{self._path}.{name} is a category of attributes and cannot be assigned",
                value=value,
                accepted=f"one of its attributes: {', '.join(entry)}",
            )
        if not entry.accepts(value):
            raise ConfigTypeError(
                "PD400",
                f"{self._path}.{name} was assigned a value of a wrong type",
                value=value,
                accepted=entry.accepted,
            )
        self.__dict__[name] = value

    def attributes(self) -> dict[str, Any]:
        """Every attribute below this category, by path (such as ``matmuls.clear_pass_type``)."""
        found: dict[str, Any] = {}
        for name, entry in self._table.items():
            value = self.__dict__[name]
            if isinstance(entry, Setting):
                found[name] = value
            else:
                found |= {f"{name}.{path}": held for path, held in value.attributes().items()}
        return found

    def __repr__(self) -> str:
        lines = [f"  {path} = {value!r}" for path, value in self.attributes().items()]
        return "\n".join([f"{self._path}:", *lines])

    def _unknown(self, name: str) -> ConfigError:
        return ConfigError(
            "PD400",
            f"{self._path} has no attribute '{name}'",
            accepted=", ".join(sorted(self._table)),
            hint=did_you_mean(name, self._table, shown=f"{self._path}.{{}}"),
        )
