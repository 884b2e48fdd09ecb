"""The mode "tf1" of the SDK's names: ``tensorflow`` is TensorFlow 1's interface.

A program that was written for the SDK's TensorFlow 1.15 does ``import tensorflow as tf`` and means
graphs, sessions, ``tf.contrib``, and what a name meant in TensorFlow 1 (``tf.reduce_sum`` with
``reduction_indices``, ``tf.nn.dropout`` with ``keep_prob``). In this mode the module ``tensorflow``
is a view of TensorFlow 2: it has the names of ``tf.compat.v1``, and those of TensorFlow 2 that
TensorFlow 1 does not have. TensorFlow's own modules, and libraries that have imported it before,
are not concerned.

The mode is asked for (``poprun --sdk-names tf1``, ``python -m popdist.sdk --tf1``), or chosen where
the sources of a program are those of TensorFlow 1.
"""

from __future__ import annotations

import ast
import functools
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from popdist.sdk.contrib import MODULES
from popdist.sdk.tensorflow1 import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_OWN = ("_api", "compat", "core", "python", "tools")
"""Parts of TensorFlow 2 that are not those of ``tf.compat.v1``: its packages."""

_LIBRARIES = ("horovod.tensorflow", "tensorflow_estimator.python.estimator.estimator_lib")
"""Libraries that import ``tensorflow``, and mean TensorFlow 2."""


class _Version1(ModuleType):
    """The module ``tensorflow`` with the names of TensorFlow 1.

    Args:
        tensorflow: The module.
    """

    def __init__(self, tensorflow: ModuleType) -> None:
        super().__init__(tensorflow.__name__, tensorflow.__doc__)
        for name in ("__file__", "__loader__", "__package__", "__spec__"):
            setattr(self, name, getattr(tensorflow, name))
        # Where Keras and the Estimator have their modules for TensorFlow 1, such as
        # `tensorflow.keras.backend`.
        folders = [(path, path.removesuffix("_v2") + "_v1") for path in tensorflow.__path__]
        self.__path__ = [old if Path(old).is_dir() else path for path, old in folders]
        self._popdist_version2 = tensorflow

    def __getattr__(self, name: str) -> Any:
        version2 = vars(self)["_popdist_version2"]
        first = version2 if name in _OWN or name.startswith("_") else version2.compat.v1
        for module in (first, version2):
            try:
                value = getattr(module, name)
            except AttributeError:
                continue
            return vars(self).setdefault(name, value)
        raise AttributeError(f"module 'tensorflow' has no attribute {name!r}", name=name)

    def __dir__(self) -> list[str]:
        version2 = vars(self)["_popdist_version2"]
        return sorted({*dir(version2.compat.v1), *dir(version2), *vars(self)})


def become(tensorflow: ModuleType) -> None:
    """Puts TensorFlow 1's interface in the place of a module ``tensorflow`` that has just loaded.

    Args:
        tensorflow: The module.
    """
    for library in _LIBRARIES:
        if find_spec(library.partition(".")[0]) is not None:
            try:
                import_module(library)
            except ImportError:  # a Horovod that was built without TensorFlow
                continue
    level = tensorflow.get_logger().level
    tensorflow.get_logger().setLevel("ERROR")  # it is said what the program has chosen
    tensorflow.compat.v1.disable_v2_behavior()
    tensorflow.get_logger().setLevel(level)
    _take_whole_floats(import_module("tensorflow.python.framework.tensor_shape").Dimension)
    version1 = _Version1(tensorflow)
    sys.modules["tensorflow"] = version1
    version1.contrib = _contrib()  # type: ignore[attr-defined]
    version1.enable_eager_execution = _enable_eager(tensorflow)  # type: ignore[attr-defined]


def _enable_eager(tensorflow: ModuleType) -> Callable[..., None]:
    """``tf.enable_eager_execution``, which takes its options from a program that has begun.

    Whoever asks whether code runs eagerly, such as ``hvd.init``, makes a context in TensorFlow 2.
    """
    enable: Callable[..., None] = tensorflow.compat.v1.enable_eager_execution
    context: Any = import_module("tensorflow.python.eager.context")

    @functools.wraps(enable)
    def enable_eager_execution(*args: Any, **kwargs: Any) -> None:
        made = context.context_safe()
        if made is not None and not made._initialized:  # noqa: SLF001 - no public name
            context._context = None  # noqa: SLF001 - as above
        enable(*args, **kwargs)

    return enable_eager_execution


def _take_whole_floats(dimension: Any) -> None:
    """Lets sizes be computed by ``/``, as TensorFlow 1 does."""
    known = dimension.__init__

    def __init__(self: Any, value: Any) -> None:  # noqa: N807 - becomes the method
        is_whole = isinstance(value, float) and value.is_integer()
        known(self, int(value) if is_whole else value)

    dimension.__init__ = __init__


def _contrib() -> ModuleType:
    """The package ``tensorflow.contrib``, with what programs use of it."""
    root = "tensorflow.contrib"
    for path, homes in MODULES.items():
        name = f"{root}.{path}".rstrip(".")
        module = sys.modules[name] = ModuleType(name, "Names of TensorFlow 1, from other places.")
        module.__path__ = []  # its parts are found in `sys.modules`
        module.__getattr__ = _answer(name, homes)  # type: ignore[method-assign]
        if path:
            above, _, last = name.rpartition(".")
            setattr(sys.modules[above], last, module)
    return sys.modules[root]


def _answer(module: str, homes: dict[str, str]) -> Callable[[str], Any]:
    def answer(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
        home, _, attribute = homes[name].partition(":")
        found = import_module(home)
        for part in attribute.split(".") if attribute else ():
            found = getattr(found, part)
        return found

    return answer


# Which programs are TensorFlow 1's.

_LOST = {name for name in NAMES if "." not in name} | {"contrib"}
"""Names that TensorFlow 2 does not have: a program that uses one is TensorFlow 1's."""

_RUN = {"InteractiveSession", "Session", "placeholder"}
"""Names of ``tensorflow.compat.v1`` that need graphs, which TensorFlow 1 builds by default."""

_OF_VERSION2 = {"GradientTape", "enable_v2_behavior", "function"}

_EAGER = "enable_eager_execution"
"""Where it is a name of ``tensorflow`` itself, the program is TensorFlow 1's, tapes or not."""

_OWN_GRAPHS = {"Graph", "disable_eager_execution", "disable_v2_behavior"}
"""Names by which a program builds graphs in TensorFlow 2 as well."""


def are_of_version1(trees: Iterable[ast.Module]) -> bool:
    """Whether the sources of a program are written for TensorFlow 1; they are never run.

    Args:
        trees: The tree of each source.
    """
    names: set[str] = set()
    below: set[str] = set()
    for tree in trees:
        nodes = [*ast.walk(tree)]
        names |= _used(nodes, "tensorflow")
        below |= _used(nodes, "tensorflow.compat.v1")
    if _EAGER in names:
        return True
    if (names | below) & _OF_VERSION2 or _EAGER in below:
        return False
    needs_graphs = below & _RUN and not (names | below) & _OWN_GRAPHS
    return bool(names & _LOST or needs_graphs)


def import_ipu(trees: Iterable[ast.Module]) -> bool:
    """Whether sources import the SDK's part of TensorFlow.

    Args:
        trees: The tree of each source.
    """
    nodes = (node for tree in trees for node in ast.walk(tree))
    return any(f"{name}.".startswith("tensorflow.python.ipu.") for name, _ in _imports(nodes))


def _used(nodes: Sequence[ast.AST], module: str) -> set[str]:
    """The names directly below a module that a source uses."""
    aliases, found = set(), set()
    for full, own in _imports(nodes):
        if full == module:
            aliases.add(own or module)  # no alias of `a.b` is called so
        elif full.startswith(f"{module}."):
            found.add(full[len(module) + 1 :].partition(".")[0])
    for node in nodes:
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in aliases
        ):
            found.add(node.attr)
    return found


def _imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str | None]]:
    """The full name of each import, and its own name where it is bound to one."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((one.name, one.asname) for one in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((f"{node.module}.{one.name}", one.asname or one.name) for one in node.names)
