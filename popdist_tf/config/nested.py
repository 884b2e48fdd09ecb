"""Nested categories of attributes, declared in tables.

An assignment is checked against the declared type; an unknown name raises an error that suggests
similar names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from popdist.nearest import did_you_mean
from popdist.settings import Setting
from popdist_tf.errors import ConfigError, ConfigTypeError

Table = Mapping[str, "Setting | Table"]


@dataclass(frozen=True)
class AttributeMetadata:
    """What an attribute of a configuration is, or a category of them.

    Attributes:
        name: Its full name, below the configuration.
        default: Its value in a new configuration; None for a category.
        type: The types that it accepts, in words; None for a category.
        actual_type: The type, where it accepts one alone.
        deprecated: Whether it is deprecated: none is.
        deprecated_msg: Why; None.
    """

    name: str
    default: Any = None
    type: str | None = None
    actual_type: Any = None
    deprecated: bool = False
    deprecated_msg: str | None = None
    _setting: Setting | None = None

    def check_type(self, value: object) -> None:
        """Checks that a value could be assigned to the attribute.

        Args:
            value: The value.

        Raises:
            ConfigTypeError: It has a wrong type. It is a `TypeError`.
        """
        if self._setting is not None and not self._setting.accepts(value):
            raise _wrong_type(self.name, value, self._setting)

    def warn_if_deprecated(self) -> None:
        """Does nothing, as no attribute is deprecated."""


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
            raise _wrong_type(f"{self._path}.{name}", value, entry)
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

    def get_attribute_metadata(self, attr: str) -> AttributeMetadata:
        """What one of the attributes or categories is.

        Args:
            attr: Its name below this category, such as ``matmuls.clear_pass_type``.

        Raises:
            ConfigError: There is no such attribute. It is a `ValueError`.
        """
        return self._metadata_of(attr, attr)

    def _metadata_of(self, attr: str, asked: str) -> AttributeMetadata:
        name, _, rest = attr.partition(".")
        entry = self._table.get(name)
        if entry is None or (rest and isinstance(entry, Setting)):
            raise self._unknown(attr, f"Could not get attribute metadata for '{asked}': ")
        if rest:
            below: Category = self.__dict__[name]
            return below._metadata_of(rest, asked)
        if not isinstance(entry, Setting):
            return AttributeMetadata(self._name_of(name))
        kind = entry.types[0] if len(entry.types) == 1 else None
        known = entry.fresh(), entry.accepted, kind
        return AttributeMetadata(self._name_of(name), *known, _setting=entry)

    def to_dict(self) -> dict[str, Any]:
        """The value of each attribute by its full name; of members of enumerations, the number."""
        values = {self._name_of(path): value for path, value in self.attributes().items()}
        return {k: value.value if isinstance(value, Enum) else value for k, value in values.items()}

    def from_dict(self, dct: dict[str, Any]) -> None:
        """Sets the attributes that a dict of `to_dict` has.

        Args:
            dct: Values by full name.

        Raises:
            ConfigTypeError: A value has a wrong type.
        """
        for name, entry in self._table.items():
            if not isinstance(entry, Setting):
                self.__dict__[name].from_dict(dct)
            elif self._name_of(name) in dct:
                value = dct[self._name_of(name)]
                kind = type(entry.fresh())
                is_number = issubclass(kind, Enum) and not isinstance(value, bool | Enum)
                setattr(self, name, kind(value) if is_number else value)

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict())

    def from_json(self, json_cfg: str) -> None:
        """`from_dict`, of the text of `to_json`.

        Args:
            json_cfg: The text.
        """
        self.from_dict(json.loads(json_cfg))

    def _name_of(self, path: str) -> str:
        """The full name of what is below this category, without the name of the root."""
        return f"{self._path}.{path}".partition(".")[2]

    def __repr__(self) -> str:
        lines = [f"  {path} = {value!r}" for path, value in self.attributes().items()]
        return "\n".join([f"{self._path}:", *lines])

    def _unknown(self, name: str, problem: str = "") -> ConfigError:
        return ConfigError(
            "PD400",
            f"{problem}{self._path} has no attribute '{name}'",
            accepted=", ".join(sorted(self._table)),
            hint=did_you_mean(name, self._table, shown=f"{self._path}.{{}}"),
        )


def _wrong_type(name: str, value: object, setting: Setting) -> ConfigTypeError:
    return ConfigTypeError(
        "PD400",
        f"{name} was assigned a value of a wrong type",
        value=value,
        accepted=setting.accepted,
    )
