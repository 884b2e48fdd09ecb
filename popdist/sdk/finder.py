"""Serves the SDK's module names to ``import``, from popdist's modules.

Where the names are enabled, interpreters load this file at startup by its path. So the file imports
only `sys` at first, not even `__future__`, and does not import `popdist`: importing `popdist` tells
the launcher that a process is the instance's program.

A popdist module is served unchanged: ``poptorch is popdist_torch``, and a class is the same under
both names.
"""

import sys

TYPE_CHECKING = False  # `typing` costs milliseconds; type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType
    from typing import Any

ALIASES: dict[str, str] = {
    "popart": "popdist_onnx",
    "horovod.popart": "popdist_onnx.horovod",
    "poptorch": "popdist_torch",
    "poptorch_geometric": "popdist_torch.geometric",
    "tensorflow.python.ipu": "popdist_tf.ipu",
    "ipu_tensorflow_addons": "popdist_tf.ipu.addons",
    "tensorflow.compiler.plugin": "popdist_tf.ipu.plugin",
    "libpvti": "popdist.sdk.pvti",
}
"""The SDK's modules and popdist's; submodules map accordingly."""

BESIDE: dict[str, str] = {
    "popart_core": "popdist_onnx",  # the compiled part, whose names `popart` has
    "keras.ipu": "popdist_tf.ipu.keras",
    "keras.optimizer_v2": "keras.src.optimizers.legacy",
    "keras.saving.save": "keras.src.saving.legacy.save",
    "tensorflow.keras.ipu": "popdist_tf.ipu.keras",
    # Modules that the SDK's TensorFlow had, and that moved since.
    "tensorflow.python.distribute.distribution_strategy_context": (
        "tensorflow.python.distribute.distribute_lib"
    ),
    "tensorflow.python.training.tracking.util": "tensorflow.python.checkpoint.checkpoint",
    "tensorflow.python.training.tracking": "tensorflow.python.trackable",
    "tensorflow.python.keras.applications": "keras.src.applications",
    "tensorflow.python.keras.datasets": "keras.src.datasets",
    "tensorflow.python.keras.preprocessing": "keras.src.preprocessing",
    # `keras.engine`, `keras.layers.core` and others: what only Keras itself imports now.
    "keras": "keras.src",
}
"""More modules of the SDK and its frameworks, of which `ALIASES` has the published lists."""

# By name, as what is served is: the lists of the SDK's names stand on this module, not below it.
_REFUSALS = "popdist.sdk.surface"

_ABSENT = ("popxl",)  # modules of the SDK without a counterpart, refused with a message

TOOLS = ("pva",)
"""Modules that programs import to read profiles of the hardware: their names raise when used."""

_TOPS = {name.partition(".")[0] for name in (*ALIASES, *BESIDE, *_ABSENT, *TOOLS)}


def ours(name: str) -> str | None:
    """The popdist module for a module name of the SDK; None for other names."""
    for aliases in (ALIASES, BESIDE):
        for sdk, mine in aliases.items():
            if f"{name}.".startswith(f"{sdk}.") and not f"{name}.".startswith(f"{mine}."):
                return mine + name[len(sdk) :]
    return None


class Finder:
    """Finds the SDK's modules and submodules, unless a later finder has the real modules."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """The spec of a module for the import system, or None for a module of others."""
        top = name.partition(".")[0]
        mine = ours(name) if top in _TOPS else None
        if mine is None and top not in _ABSENT and name not in TOOLS:
            return None
        if self._is_served_behind(name, path, target):
            return None
        if name in TOOLS:
            from importlib.machinery import ModuleSpec

            return ModuleSpec(name, _Tool())  # type: ignore[arg-type]
        spec = None if mine is None else _spec_of_ours(name, mine)
        if spec is None and _is_importing():
            from importlib import import_module

            import_module(_REFUSALS).refuse_import(name)
        return spec

    def _is_served_behind(
        self, name: str, path: "Sequence[str] | None", target: "ModuleType | None"
    ) -> bool:
        """Whether a later finder, such as the finder of `sys.path`, has the real module."""
        finders = sys.meta_path
        behind = finders[finders.index(self) + 1 :] if self in finders else []
        return any(
            (spec := other.find_spec(name, path, target)) is not None
            # A folder without __init__.py is no module of Graphcore's.
            and spec.loader is not None
            for other in behind
            if hasattr(other, "find_spec")
        )


class _Inside:
    """Finds submodules of popdist's packages under the SDK's names; the first finder.

    The import system would find ``poptorch.optim`` in the folder of `popdist_torch`, and load it a
    second time under another name.
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
    """Returns a popdist module, imported under its own name."""

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
        # The import system has just set the other name's spec. Reloading, relative imports and
        # pickling need the module's own spec.
        module.__spec__ = self._own
        if self._mine == "popdist_tf.ipu":
            from importlib import import_module

            for served in (
                "popdist.sdk.tensorflow1",
                "popdist.sdk.keras2",
                "popdist_tf.strategies.device_names",
            ):
                import_module(served).serve(sys.modules["tensorflow"])

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


class _Tool:
    """Makes a module whose names raise when they are used."""

    def create_module(self, _spec: "ModuleSpec") -> "ModuleType | None":
        return None

    def exec_module(self, module: "ModuleType") -> None:
        from importlib import import_module

        refused: Callable[[str], Callable[[str], object]]
        refused = import_module(_REFUSALS).refused_names
        module.__getattr__ = refused(module.__name__)  # type: ignore[method-assign]


_INSIDE = _Inside()


def _spec_of_ours(name: str, mine: str) -> "ModuleSpec | None":
    from importlib.machinery import ModuleSpec
    from importlib.util import find_spec

    try:
        own = find_spec(mine)
    except ModuleNotFoundError as error:
        if error.name is None or not mine.startswith(error.name):
            raise  # a framework is missing; the user needs this error
        return None
    if own is None:
        return None
    spec = ModuleSpec(name, _Loader(mine, own), origin=own.origin)  # type: ignore[arg-type]
    spec.submodule_search_locations = own.submodule_search_locations
    return spec


def _is_importing() -> bool:
    """Whether a module is imported, and not just searched for by `importlib.util.find_spec`."""
    frame = sys._getframe(1)  # noqa: SLF001 - the only way to tell
    for _ in range(5):
        if frame.f_code.co_name == "_find_and_load_unlocked":
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def _part(name: str) -> "ModuleType":
    """A module of popdist, loaded by its path where popdist itself is not imported."""
    loaded = sys.modules.get(f"popdist.{name}")
    if loaded is not None:
        return loaded
    import _frozen_importlib
    import _frozen_importlib_external

    folder = f"{__file__.rpartition('/')[0]}/../{name.replace('.', '/')}".rpartition("/")[0]
    spec = _frozen_importlib_external.PathFinder.find_spec(f"popdist.{name}", [folder])
    module: ModuleType = _frozen_importlib._load(spec)  # type: ignore[attr-defined] # noqa: SLF001 - as runpy loads
    return module


def _choose_interface(tensorflow: "ModuleType", version1: "bool | None") -> None:
    """Chooses the interface of TensorFlow by a program's sources: 1, 2, or the SDK's 2."""
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    if version1 is None and program is None:
        return
    from importlib import import_module

    from popdist.sdk.sources import sources_of
    from popdist.sdk.version1 import are_of_version1, become, import_ipu

    trees = [tree for _, tree in sources_of(str(program))]
    if version1 or (version1 is None and are_of_version1(trees)):
        become(tensorflow)
    if import_ipu(trees):  # what the program imports before it is the SDK's as well
        import_module("tensorflow.python.ipu")


def _choosing(version1: "bool | None") -> "dict[str, Callable[[str, ModuleType], None]]":
    """Calls that choose the interface of TensorFlow once it is loaded.

    Keras loads TensorFlow where a program imports Keras first. Until Keras itself is loaded, no
    library that needs it can be.
    """
    waiting: list[ModuleType] = []

    def loaded(_: str, tensorflow: "ModuleType") -> None:
        keras = getattr(sys.modules.get("keras"), "__spec__", None)
        if getattr(keras, "_initializing", False):
            waiting.append(tensorflow)
        else:
            _choose_interface(tensorflow, version1)

    def keras_loaded(*_: "Any") -> None:
        while waiting:
            _choose_interface(waiting.pop(), version1)

    return {"tensorflow": loaded, "keras": keras_loaded}


def install(version1: "bool | None" = None) -> None:
    """Makes the SDK's names importable in this process; each name is resolved on first import.

    Args:
        version1: Whether ``tensorflow`` has the interface of TensorFlow 1; None where the sources
            of the program decide.
    """
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    removed = _part("sdk.removed")
    removed.complete_loaded()
    calls: dict[str, Callable[[str, ModuleType], None]] = dict.fromkeys(
        removed.MODULES, removed.complete
    )
    if "tensorflow" not in sys.modules:
        calls |= _choosing(version1)
    sys.meta_path.insert(0, _part("startup.imports").Finder(calls.get))
    # The last finder remains the last. absl inserts its finder before the last to detect reloads,
    # and detects none where the finder of `sys.path` comes earlier.
    sys.meta_path.insert(-1, Finder())
