"""Functions and values as bytes, wherever the functions are from.

With cloudpickle, what a script or a notebook defines travels whole; so no module is imported again
in the instances, and no ``if __name__ == "__main__"`` is needed. What an importable module defines
travels by its name, for which pickle is enough.
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
    """Pickles a value.

    Args:
        value: The value.
        function: The function that it belongs to, whose module may have to travel with it.

    Returns:
        Its pickle.

    Raises:
        ArgumentError: Something in it cannot be pickled.
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
    """Packs a call for the instances, with the places where they look for modules.

    Args:
        function: The function.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Returns:
        A pickle that needs no module of the caller to be read, and holds another that may.

    Raises:
        ArgumentError: Something in it cannot be pickled.
    """
    call = dump((function, tuple(args), dict(kwargs)), function)
    return pickle.dumps({"call": call, "path": list(sys.path), "argv": list(sys.argv)})


def load(data: bytes) -> Any:
    """A value from its pickle, which must come from this job."""
    return pickle.loads(data)  # noqa: S301 - authenticated by the job's own key


class _ByNames(pickle.Pickler):
    """Refuses what has no name that can be imported: what the calling program itself defines."""

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
    """Lets a module travel whole where the instances could not import it, as one made by `exec`."""
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
