"""Functions and values as bytes, also functions of scripts and notebooks.

cloudpickle includes the code that a script or a notebook defines, so instances import no such
module again, and no ``if __name__ == "__main__"`` is needed. Functions of importable modules are
pickled by name.
"""

from __future__ import annotations

import io
import pickle
import sys
from contextlib import contextmanager

from popdist.errors import ArgumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


def dump(value: object, function: object = None) -> bytes:
    """Pickles a value; the module of ``function`` is included where instances cannot import it.

    Raises:
        ArgumentError: A part of the value cannot be pickled.
    """
    try:
        try:
            import cloudpickle
        except ImportError:
            return _dump_by_names(value)
        with _whole_module(function, cloudpickle):
            data: bytes = cloudpickle.dumps(value)
            return data
    except ArgumentError:
        raise
    except Exception as error:  # whatever the value's own methods raise
        raise ArgumentError(
            "PD112",
            f"it cannot be carried to another process: {type(error).__name__}: {error}",
            accepted="functions and values that pickle or cloudpickle takes; no open files, locks, "
            "connections or generators",
            hint="make it inside the function, in each instance",
        ) from error


def pack(function: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Packs a call for the instances, with the caller's module path.

    The outer pickle needs no module of the caller; the inner pickle may.

    Raises:
        ArgumentError: A part of the call cannot be pickled.
    """
    call = dump((function, tuple(args), dict(kwargs)), function)
    return pickle.dumps({"call": call, "path": list(sys.path), "argv": list(sys.argv)})


def load(data: bytes) -> Any:
    """A value from its pickle, which must come from this job."""
    return pickle.loads(data)  # noqa: S301 - authenticated by the job's own key


class _ByNames(pickle.Pickler):
    """Refuses values without an importable name, such as the calling program's own functions."""

    def reducer_override(self, value: Any) -> Any:
        if getattr(value, "__module__", None) == "__main__" and hasattr(value, "__qualname__"):
            raise ArgumentError(
                "PD112",
                "functions and classes of a script or a notebook need cloudpickle",
                value=value.__qualname__,
                accepted="with pickle alone: functions and classes of modules that can be imported",
                hint="pip install cloudpickle",
            )
        return NotImplemented


def _dump_by_names(value: object) -> bytes:
    file = io.BytesIO()
    _ByNames(file).dump(value)
    return file.getvalue()


@contextmanager
def _whole_module(function: object, cloudpickle: Any) -> Iterator[None]:
    """Includes a module's code in the pickle where instances could not import the module."""
    name = getattr(function, "__module__", None) or ""
    module = sys.modules.get(name)
    if module is None or name == "__main__" or _can_be_imported(module):
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _can_be_imported(module: ModuleType) -> bool:
    """Whether another Python with this one's `sys.path` would find the same module."""
    path, spec = None, None
    parts = module.__name__.split(".")
    for count in range(1, len(parts) + 1):
        spec = _find(".".join(parts[:count]), path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    file = getattr(module, "__file__", None)
    return file is None or spec is None or spec.origin == file


def _find(name: str, path: Any) -> ModuleSpec | None:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find(name, path) if find else None
        if spec is not None:
            return spec
    return None
