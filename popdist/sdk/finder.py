"""Serves the SDK's module names to ``import``, from modules of ours.

Interpreters start with this file where the names are enabled, so at first it imports nothing but
`sys`, not even `__future__`. It is loaded by its place then, without `popdist` around it: importing
`popdist` tells the launcher that a process is the instance's program.

A module of ours is served as it is: ``poptorch is popdist_torch``, and a class is the same by
whichever name it was imported.
"""

import sys

TYPE_CHECKING = False  # `typing` costs milliseconds; type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

ALIASES: dict[str, str] = {
    "popart": "popdist_onnx",
    "horovod.popart": "popdist_onnx.horovod",
    "poptorch": "popdist_torch",
    "tensorflow.python.ipu": "popdist_tf.ipu",
}
"""The SDK's modules and ours: the one declaration of it. Sub-modules follow."""

# By name, as what is served is: the lists of the SDK's names stand on this module, not below it.
_REFUSALS = "popdist.sdk.surface"

_ABSENT = ("popxl",)  # modules of the SDK for which there is nothing, refused with a word
_TOPS = {name.partition(".")[0] for name in (*ALIASES, *_ABSENT)}


def ours(name: str) -> str | None:
    """The module of ours that a module name of the SDK stands for.

    Args:
        name: Any absolute module name.

    Returns:
        Our module's name, or None where the name is none of the SDK's.
    """
    for sdk, mine in ALIASES.items():
        if name == sdk or name.startswith(f"{sdk}."):
            return mine + name[len(sdk) :]
    return None


class Finder:
    """Finds the SDK's modules and what is below them, where no finder behind it has real ones."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Finds a module, as the import system asks for it.

        Args:
            name: Its absolute name.
            path: Where its package looks for modules.
            target: The module that is reloaded.

        Returns:
            How to load it, or None for a module that is not ours to serve.
        """
        top = name.partition(".")[0]
        mine = ours(name) if top in _TOPS else None
        if mine is None and top not in _ABSENT:
            return None
        if self._is_served_behind(name, path, target):
            return None
        spec = None if mine is None else _spec_of_ours(name, mine)
        if spec is None and _is_importing():
            from importlib import import_module

            import_module(_REFUSALS).refuse_import(name)
        return spec

    def _is_served_behind(
        self, name: str, path: "Sequence[str] | None", target: "ModuleType | None"
    ) -> bool:
        """Whether a finder behind it, as that of `sys.path`, has the real module."""
        finders = sys.meta_path
        behind = finders[finders.index(self) + 1 :] if self in finders else []
        return any(
            other.find_spec(name, path, target) is not None
            for other in behind
            if hasattr(other, "find_spec")
        )


class _Inside:
    """Finds what is below a package of ours that is known by the SDK's name; stands first.

    The import system would look for ``poptorch.optim`` in the folder of `popdist_torch`, and load
    what it finds there a second time under another name.
    """

    def find_spec(
        self, name: str, _path: "Sequence[str] | None" = None, _target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        parent = name.rpartition(".")[0]
        if parent.partition(".")[0] not in _TOPS:
            return None
        mine = ours(parent)
        if mine is None or sys.modules.get(parent) is not sys.modules.get(mine, self):
            return None
        return _spec_of_ours(name, f"{mine}.{name.rpartition('.')[2]}")


class _Loader:
    """Hands out a module of ours, imported under its own name."""

    def __init__(self, mine: str, spec: "ModuleSpec") -> None:
        self._mine = mine
        self._spec = spec

    def create_module(self, _spec: "ModuleSpec") -> "ModuleType":
        from importlib import import_module

        module = import_module(self._mine)
        self._own = module.__spec__
        if hasattr(module, "__path__") and _INSIDE not in sys.meta_path:
            sys.meta_path.insert(0, _INSIDE)
        return module

    def exec_module(self, module: "ModuleType") -> None:
        # The import system has just put the other name's spec there. Its own is what reloading,
        # relative imports and pickling go by.
        module.__spec__ = self._own
        if self._mine == "popdist_tf.ipu":
            from popdist.sdk.tensorflow1 import serve

            serve(sys.modules["tensorflow"])

    def get_code(self, _name: str) -> "CodeType | None":
        code: CodeType | None = self._spec.loader.get_code(self._mine)  # type: ignore[union-attr]
        return code

    def get_source(self, _name: str) -> str | None:
        source: str | None = self._spec.loader.get_source(self._mine)  # type: ignore[union-attr]
        return source

    def get_filename(self, _name: str) -> str | None:
        return self._spec.origin

    def is_package(self, _name: str) -> bool:
        return self._spec.submodule_search_locations is not None


_INSIDE = _Inside()


def _spec_of_ours(name: str, mine: str) -> "ModuleSpec | None":
    from importlib.machinery import ModuleSpec
    from importlib.util import find_spec

    try:
        own = find_spec(mine)
    except ModuleNotFoundError as error:
        if error.name is None or not mine.startswith(error.name):
            raise  # a framework is missing, which is worth knowing
        return None
    if own is None:
        return None
    spec = ModuleSpec(name, _Loader(mine, own), origin=own.origin)  # type: ignore[arg-type]
    spec.submodule_search_locations = own.submodule_search_locations
    return spec


def _is_importing() -> bool:
    """Whether a module is imported, and not looked for as by `importlib.util.find_spec`."""
    frame = sys._getframe(1)  # noqa: SLF001 - the only way to tell
    for _ in range(5):
        if frame.f_code.co_name == "_find_and_load_unlocked":
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def install() -> None:
    """Makes the SDK's names importable in this process; each is resolved when it is asked for."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        # The last finder stays the last one. absl puts its own before that to learn of reloads, and
        # learns of none where the finder of `sys.path` is asked earlier.
        sys.meta_path.insert(-1, Finder())
