"""Calls popdist when a program has imported a framework.

Interpreters load this file at startup by its path, so it imports only `sys`. popdist itself is
imported after the framework: that tells the launcher that a process is the instance's program.
"""

import sys

TYPE_CHECKING = False  # `typing` costs milliseconds; type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class Finder:
    """Finds modules as the other finders do, and calls a function when one is loaded.

    Args:
        call_for: The function for a module of this name; None for none.
    """

    def __init__(
        self, call_for: "Callable[[str], Callable[[str, ModuleType], None] | None]"
    ) -> None:
        self.call_for = call_for
        self._searched: set[str] = set()  # names that are searched for now, also by other Finders

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """The spec that the other finders have for a module."""
        call = self.call_for(name)
        if call is None or name in self._searched:
            return None
        self._searched.add(name)
        try:
            others = [finder for finder in sys.meta_path if finder is not self]
            specs = (f.find_spec(name, path, target) for f in others if hasattr(f, "find_spec"))
            spec = next((spec for spec in specs if spec is not None), None)
        finally:
            self._searched.discard(name)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            execute = spec.loader.exec_module

            def exec_module(module: "ModuleType") -> None:
                execute(module)
                call(name, module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _note(name: str, module: "ModuleType") -> None:
    """Calls popdist, which notes each training with the framework."""
    try:
        from popdist.checks.frameworks import imported
    except ImportError:  # the program's Python has no popdist
        return
    imported("keras" if name == "tf_keras" else name, module)


def _exchange(_name: str, module: "ModuleType") -> None:
    """Registers popdist's hook with each DistributedDataParallel that is made."""
    model = module.DistributedDataParallel
    init = model.__init__

    def __init__(self: "Any", *args: "Any", **kwargs: "Any") -> None:  # noqa: N807 - as torch's
        from importlib import import_module

        init(self, *args, **kwargs)
        import_module("popdist_torch.ddp").install(self)

    __init__.__wrapped__ = init  # type: ignore[attr-defined]  # for inspect.signature
    __init__.__doc__ = init.__doc__
    model.__init__ = __init__


def _strategy(_name: str, module: "ModuleType") -> None:
    """Makes popdist's strategy known to Lightning by its name; it is imported where it is used."""

    def popdist(**settings: "Any") -> "Any":
        from importlib import import_module

        return import_module("popdist_torch.lightning").PopdistStrategy(**settings)

    registry = getattr(module, "StrategyRegistry", None)  # of Lightning 2
    if registry is not None:
        registry.register("popdist", popdist, "Data-parallel training over Horovod")


_CALLS: "dict[str, dict[str, Callable[[str, ModuleType], None]]]" = {
    "frameworks": {
        **dict.fromkeys(("torch", "keras", "tf_keras", "tensorflow"), _note),
        "lightning.pytorch.strategies": _strategy,
    },
    "ddp": {"torch.nn.parallel.distributed": _exchange},
}


def install(part: str) -> None:
    """Waits for the modules of a part in this process; calls at once for those that are loaded.

    Args:
        part: ``"frameworks"`` or ``"ddp"``.
    """
    for name, call in _CALLS[part].items():
        if name in sys.modules:
            call(name, sys.modules[name])
    sys.meta_path.insert(0, Finder(_CALLS[part].get))
