"""Makes each new DistributedDataParallel use popdist's exchange.

Interpreters load this file at startup by its path, so it imports only `sys` at first. A finder
waits for torch's module; popdist and Horovod are loaded when the program makes a model.
"""

import sys

TYPE_CHECKING = False  # `typing` costs milliseconds; type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_MODULE = "torch.nn.parallel.distributed"


class _Finder:
    """Finds torch's module as the other finders do, and patches it once it is loaded."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name != _MODULE:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (f.find_spec(name, path, target) for f in others if hasattr(f, "find_spec"))
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: "ModuleType") -> None:
                execute(module)
                _patch(module.DistributedDataParallel)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _patch(model: "Any") -> None:
    """Registers popdist's hook with each model that is made."""
    init = model.__init__

    def __init__(self: "Any", *args: "Any", **kwargs: "Any") -> None:  # noqa: N807 - as torch's
        from importlib import import_module

        init(self, *args, **kwargs)
        import_module("popdist_torch.ddp").install(self)

    __init__.__wrapped__ = init  # type: ignore[attr-defined]  # for inspect.signature
    __init__.__doc__ = init.__doc__
    model.__init__ = __init__


def install() -> None:
    """Patches the class in this process, as soon as torch is imported."""
    if not any(type(finder).__name__ == _Finder.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
