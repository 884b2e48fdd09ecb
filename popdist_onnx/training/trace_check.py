"""Whether a traced file depends on the numbers in the example inputs.

torch's exporter that traces runs ``forward`` once. Where ``forward`` asks for a number in a tensor
(``if x.sum() > 0``, ``int(lengths.max())``), the file holds the answer for the examples, and
computes something else for other inputs. torch warns at each such place, but at the many harmless
ones too: those that ask for a shape. So the file and the module are run with other numbers, and
compared.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_stack
from typing import TYPE_CHECKING

import numpy as np

import popdist_onnx
from popdist_onnx.errors import popart_exception
from popdist_onnx.training.export_check import RANDOM
from popdist_onnx.training.file_runs import file_of
from popdist_onnx.training.module_runs import outputs_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import onnx
    import torch

    from popdist_onnx.training.module_runs import Array

_SHOWN = 3
_SCALE = 10.0
_FAR = 1e-2
"""The relative difference of another computation; rounding, of larger inputs too, is below it."""


@contextmanager
def noted_decisions(places: list[str]) -> Iterator[None]:
    """A context without warnings; ``places`` gets the lines where a trace asks for a number."""
    from torch.jit._trace import TracerWarning

    def note(*_: object, **__: object) -> None:
        if (place := _place()) not in places:
            places.append(place)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", TracerWarning)
        warnings.showwarning = note
        yield


def _place() -> str:
    """The innermost line that is neither of torch nor of this package."""
    import torch

    own = (str(Path(torch.__file__).parent), str(Path(popdist_onnx.__file__).parent))
    lines = [
        one for one in extract_stack() if not one.filename.startswith((*own, warnings.__file__))
    ]
    return f"{Path(lines[-1].filename).name}:{lines[-1].lineno}" if lines else "an unknown place"


def check_decisions(
    proto: onnx.ModelProto,
    module: torch.nn.Module,
    arguments: Sequence[torch.Tensor],
    places: Sequence[str],
) -> None:
    """Runs a traced file and its module with other inputs than the examples, where numbers count.

    Args:
        proto: The exported model, in training mode.
        module: The module.
        arguments: The example inputs.
        places: Where ``forward`` asked for a number, by `noted_decisions`.

    Raises:
        popart_exception: The file computes something else than the module for other inputs.
    """
    import torch

    if not places or {node.op_type for node in proto.graph.node} & RANDOM:
        return
    names = [one.name for one in proto.graph.output]
    by_file = file_of(proto, arguments, ())
    for others in _others(arguments):
        wanted = _by_module(module, others)
        if wanted is None:
            continue
        try:
            made = by_file(others)
        except Exception as error:  # ONNX Runtime's own classes are private
            raise _baked(f"other numbers, it cannot be run: {error}", places) from error
        _compare("other numbers", [made[name] for name in names], wanted, places)
    # len(x), float(x.shape[0]) and the like are the examples' number of samples.
    others = [torch.cat([one, one.flip(0)]) if one.dim() else one for one in arguments]
    wanted = _by_module(module, others)
    if wanted is not None:
        try:
            made = file_of(proto, others, ())(others)
        except Exception:  # noqa: BLE001 - as above; such a file says so where it is trained
            return
        _compare("more samples", [made[name] for name in names], wanted, places)


def _by_module(module: torch.nn.Module, arguments: Sequence[torch.Tensor]) -> list[Array] | None:
    """A module's outputs; None where the numbers mean nothing to it."""
    try:
        return outputs_of(module, arguments)[0]
    except Exception:  # noqa: BLE001 - whatever the module raises
        return None


def _compare(
    inputs: str, made: Sequence[Array], wanted: Sequence[Array], places: Sequence[str]
) -> None:
    for number, (found, array) in enumerate(zip(made, wanted, strict=False)):
        if gap := _gap(found, array):
            raise _baked(f"{inputs}, output {number} differs {gap}", places)


def _others(arguments: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Inputs with other numbers, of the same kind: none beyond the largest and smallest index."""
    yield [_changed(one, -1.0, least=True) for one in arguments]
    yield [_changed(one, _SCALE, least=False) for one in arguments]
    yield [one.flip(0) if one.dim() else one for one in arguments]


def _changed(one: torch.Tensor, factor: float, *, least: bool) -> torch.Tensor:
    import torch

    if one.is_floating_point():
        return one * factor
    if not one.numel():
        return one
    low, high = int(one.min()), int(one.max())
    if low == high:
        # Examples that are all alike: masks are turned round, and lengths are one less.
        low = 1 - low if one.dtype is torch.bool else max(low - 1, min(low, 1))
    return torch.full_like(one, low if least else high)


def _gap(found: Array, wanted: Array) -> str | None:
    """How far an output is off, where it is floating-point and finite."""
    if found.shape != wanted.shape:
        return f"in its shape: {list(found.shape)} instead of {list(wanted.shape)}"
    if wanted.dtype.kind != "f" or not np.isfinite(wanted).all():
        return None
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    far, large = (
        np.abs(a - b).max(initial=0),
        max(np.abs(a).max(initial=0), np.abs(b).max(initial=0)),
    )
    if far <= _FAR * (large + _FAR):
        return None
    return f"by up to {far:.2g}, where values are up to {large:.2g}"


def _baked(what: str, places: Sequence[str]) -> popart_exception:
    return popart_exception(
        "PD124",
        f"the file that torch exported holds for the example inputs only: with {what}",
        value="forward asks for numbers at " + ", ".join(places[:_SHOWN]),
        hint="write such places with torch.where, with indices, or with x.shape[0] for len(x), or "
        'try exporter="dynamo"; with check=False the file is taken as it is',
    )
