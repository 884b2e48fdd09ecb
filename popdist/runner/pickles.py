"""Functions and values as bytes, also functions of scripts and notebooks.

cloudpickle includes the code that a script or a notebook defines, so instances import no such
module again, and no ``if __name__ == "__main__"`` is needed. Functions of importable modules are
pickled by name.
"""

from __future__ import annotations

import copyreg
import pickle
import sys
from collections import ChainMap
from contextlib import contextmanager

from popdist.errors import ArgumentError
from popdist.runner.streams import Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


Parts = list["Stream | memoryview"]
"""A pickle, which may be large, and the contents of its arrays beside it, which are not copied."""

_BESIDE = 1 << 16
"""Contents of at least so many bytes are not put into the pickle."""


def dump(value: object, function: object = None) -> Parts:
    """Pickles a value; the module of ``function`` is included where instances cannot import it.

    Raises:
        ArgumentError: A part of the value cannot be pickled.
    """
    stream = Stream()
    contents: list[memoryview] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        content = buffer.raw()
        if content.nbytes >= _BESIDE:
            contents.append(content)
        return content.nbytes < _BESIDE

    try:
        try:
            import cloudpickle
        except ImportError:
            _with_tensors(_ByNames)(stream, 5, buffer_callback=is_small).dump(value)
        else:
            with _whole_module(function, cloudpickle):
                pickler = _with_tensors(cloudpickle.Pickler)
                pickler(stream, 5, buffer_callback=is_small).dump(value)
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
    return [stream, *contents]


def pack(function: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Parts:
    """Packs a call for the instances, after the caller's module path, which the call may need.

    Raises:
        ArgumentError: A part of the call cannot be pickled.
    """
    call = dump((function, tuple(args), dict(kwargs)), function)
    return [facts({"path": list(sys.path), "argv": list(sys.argv)}), *call]


def facts(values: Mapping[str, object]) -> Stream:
    """Plain values as a pickle of its own, which can be read without modules of the caller."""
    return Stream([pickle.dumps(values)])


def load(parts: Parts) -> Any:
    """A value from its parts, which must come from this job; frees the pickle."""
    stream, *contents = parts
    return pickle.Unpickler(stream, buffers=contents).load()  # type: ignore[arg-type]  # noqa: S301 - authenticated by the job's own key


def _with_tensors(pickler: Any) -> Any:
    """A pickler that keeps contents of torch's tensors beside the pickle, as those of arrays.

    torch's own way copies them on each side.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return pickler
    others = getattr(pickler, "dispatch_table", copyreg.dispatch_table)
    table = ChainMap({torch.Tensor: _reduce_tensor}, others)
    return type("Pickler", (pickler,), {"dispatch_table": table})


def _reduce_tensor(tensor: Any) -> Any:
    import torch

    is_plain = tensor.device.type == "cpu" and tensor.layout == torch.strided
    has_more = tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or vars(tensor)
    if not is_plain or has_more:
        return tensor.__reduce_ex__(5)
    storage = tensor.untyped_storage()
    if storage.nbytes() < _BESIDE:
        return tensor.__reduce_ex__(5)
    torch.utils.hooks.warn_if_has_hooks(tensor)  # as torch does
    content = torch.empty(0, dtype=torch.uint8).set_(storage).numpy().data
    form = tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    return _tensor, (pickle.PickleBuffer(content), *form, tensor.requires_grad)


def _tensor(
    content: Any, dtype: Any, shape: Any, stride: Any, offset: int, requires_grad: bool
) -> Any:
    """A tensor over received bytes."""
    import torch

    flat = torch.frombuffer(content, dtype=torch.uint8)
    tensor = torch.empty(0, dtype=dtype).set_(flat.untyped_storage(), offset, shape, stride)
    return tensor.requires_grad_(requires_grad)


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
