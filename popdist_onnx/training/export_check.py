"""Whether an exported file computes what the module of torch computes, and trains like it.

torch's exporters write some operators wrongly without an error: the one that traces leaves out
`torch.repeat_interleave`, for example, and keeps one branch of an ``if``. A file has the values of
a forward pass only: `detach`, `torch.no_grad`, numbers taken out of tensors, hooks, and the
backward of a `torch.autograd.Function` are not in it. So outputs, updated buffers and all gradients
are compared, each with its own size, at two scales of the weights and for two batches: fresh
weights are so small that some wrong operators hide behind the rounding of others.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.names import updated
from popdist_onnx.training.file_runs import file_of, gradients_of_file
from popdist_onnx.training.module_buffers import aliases_of, require_carried, written_buffers
from popdist_onnx.training.module_runs import (
    doubled,
    factors_of,
    gradients_of,
    outputs_of,
    scaled_weights,
    wide,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import onnx
    import torch

    from popdist_onnx.training.module_runs import Array, Gradients

logger = logging.getLogger("popdist.onnx")

RANDOM = {
    *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike"),
    *("RandomUniform", "RandomUniformLike"),
}

_LARGER = 3.0
"""The second scale of the weights: scores of attention grow tenfold."""

_LARGEST = 1 << 28
"""Bytes of parameters up to which gradients and larger weights are compared, in several copies."""

_SHARE = {"float16": 2e-2, "bfloat16": 1e-1}
_SINGLE, _OF_GRADIENTS, _OF_BUFFERS = 1e-3, 0.02, 1e-4
"""The shares of its largest element by which an output, a gradient or a buffer may differ."""

_NOISE = 1e-6
"""Rounding of results near zero: of outputs, and of gradients as a share of the largest one."""

_ROUNDING = 30
"""How many times as far from the result in double precision as torch's own a result may be."""

_TRIES = 3
"""Inputs that are tried near a point: at an edge of an activation both gradients may be right."""

_SHOWN = 4


class _Point(NamedTuple):
    """Weights and inputs at which a file and its module are compared."""

    label: str
    factor: float
    given: Sequence[Any]


def check_export(
    proto: onnx.ModelProto,
    module: torch.nn.Module,
    arguments: Sequence[Any],
    exporter: str,
    names: Mapping[str, str],
    prefix: str,
) -> None:
    """Compares outputs, updated buffers and gradients of an exported module with the module's.

    A module that draws random numbers of its own cannot be compared; a log message reports it. The
    gradients, and the outputs for larger weights, of a module with other parameters than of single
    precision, or with more than 256 MiB of them, are not compared.

    Args:
        proto: The exported model, as it will be trained.
        module: The module.
        arguments: Its inputs.
        exporter: What exported the module, for the error.
        names: The names of the model's weights, by those of the module's parameters.
        prefix: What the module's names begin with, and the file's do not.

    Raises:
        popart_exception: The exported model cannot be run, an output or a gradient differs, or the
            module writes a buffer that the file does not update in the same way.
    """
    written, lasting = written_buffers(module, arguments)
    aliases = aliases_of(module, prefix)
    require_carried(proto, aliases, lasting, module)
    if drawn := sorted({node.op_type for node in proto.graph.node} & RANDOM):
        logger.info("an exported module draws random numbers (%s): it is not compared", drawn)
        return
    check = _Check(proto, module, arguments, exporter, names)
    found = check.outputs(check.first)
    check.buffers(found, written, aliases)
    if not check.weights:
        logger.info("the gradients of an exported module are not compared")
        return
    check.gradients(check.first)
    for point in check.others():
        check.outputs(point)
        check.gradients(point)


class _Check:
    """The comparison of one file with its module."""

    def __init__(
        self,
        proto: onnx.ModelProto,
        module: torch.nn.Module,
        arguments: Sequence[Any],
        exporter: str,
        names: Mapping[str, str],
    ) -> None:
        self._proto, self._module, self._exporter = proto, module, exporter
        self.first = _Point("", 1.0, arguments)
        trained = {n: one for n, one in module.named_parameters() if one.requires_grad}
        size = sum(one.numel() * one.element_size() for one in trained.values())
        single = {str(one.dtype) for one in trained.values()} == {"torch.float32"}
        stored = {one.name for one in proto.graph.initializer}
        # The parameters that are compared, by their names in the module.
        self.weights = (
            {name: names[name] for name in trained if names[name] in stored}
            if single and size <= _LARGEST
            else {}
        )

    def others(self) -> Iterator[_Point]:
        """Another batch, and both batches with larger weights."""
        moved = [_changed(one) for one in self.first.given]
        yield _Point(" for other inputs", 1.0, moved)
        for given in (self.first.given, moved):
            yield _Point(f" where weights are {_LARGER:g} times as large", _LARGER, given)

    # Outputs.

    def outputs(self, point: _Point) -> Mapping[str, Array]:
        """Compares all outputs at a point; the file's values, those of submodules included."""
        is_first, wrong = point is self.first, ("", "")
        for number in range(1 if is_first else _TRIES):
            given = [_moved(one, number) for one in point.given]
            with scaled_weights(self._module, self.weights, point.factor):
                try:
                    wanted, inside = outputs_of(self._module, given)
                except Exception:
                    if is_first:
                        raise
                    return {}  # inputs or weights that mean nothing to the module
                found = self._run(point, given)
                gap = self._wrong_output(found, wanted, given, whole=is_first)
            if gap is None:
                return found
            wrong = gap
        raise _difference(
            f"gives another output {wrong[0]!r} than the module{point.label}: {wrong[1]}",
            self._exporter,
            self._proto,
            self._first_place(found, inside) if is_first else None,
        )

    def _run(self, point: _Point, given: Sequence[Any]) -> Mapping[str, Array]:
        try:
            return self._file(given, point.factor)
        except Exception as error:  # ONNX Runtime's own classes are private
            raise _difference(
                f"cannot be run{point.label}: {error}", self._exporter, self._proto
            ) from error

    @cached_property
    def _file(self) -> Callable[..., dict[str, Array]]:
        _, inside = outputs_of(self._module, self.first.given)
        self._places = _of_submodules(self._proto, inside)
        return file_of(
            self._proto, self.first.given, [*self._places.values()], {*self.weights.values()}
        )

    def _wrong_output(
        self,
        found: Mapping[str, Array],
        wanted: Sequence[Array],
        given: Sequence[Any],
        *,
        whole: bool,
    ) -> tuple[str, str] | None:
        exact: list[Array] = []
        for number, (output, array) in enumerate(
            zip(self._proto.graph.output, wanted, strict=False)
        ):
            finite = array.dtype.kind == "f" and np.isfinite(array).all()
            if not whole and not finite:
                continue
            gap = _gap(found[output.name], array)
            if gap is None:
                continue
            if not exact and array.dtype == np.float32 and finite:
                exact = outputs_of(doubled(self._module), [wide(one) for one in given])[0]
            if not exact or not _is_rounding(found[output.name], array, exact[number], _NOISE):
                return output.name, gap
        return None

    def _first_place(self, found: Mapping[str, Array], inside: Mapping[str, Array]) -> str | None:
        """The first submodule whose output differs."""
        return next(
            (n for n, place in self._places.items() if _gap(found[place], inside[n]) is not None),
            None,
        )

    # Buffers and gradients.

    def buffers(
        self,
        found: Mapping[str, Array],
        written: Mapping[str, Array],
        aliases: Mapping[str, set[str]],
    ) -> None:
        """Compares what the file makes of the module's buffers."""
        for name, array in written.items():
            for there in (found[updated(one)] for one in aliases[name] if updated(one) in found):
                if (gap := _gap(there, array, _OF_BUFFERS)) is not None:
                    raise _difference(
                        f"updates buffer {name!r} in another way: {gap}", self._exporter
                    )

    def gradients(self, point: _Point) -> None:
        """Compares all gradients at a point."""
        if self._gradients is None:
            return
        found: list[str] = []
        for number in range(_TRIES):
            given = [_moved(one, number) for one in point.given]
            made = self._gradients(given, point.factor)
            with scaled_weights(self._module, self.weights, point.factor):
                found = self._different(made, given, whole=point is self.first)
            if not found:
                return
        raise _other_gradients(found, point)

    @cached_property
    def _factors(self) -> list[Array]:
        return factors_of(self._module, self.first.given)

    @cached_property
    def _gradients(self) -> Callable[[Sequence[torch.Tensor], float], Gradients] | None:
        try:
            return gradients_of_file(
                self._proto, self.first.given, self._factors, {*self.weights.values()}
            )
        except popart_exception as error:
            # Training will say so.
            logger.info("an exported module cannot be differentiated: %s", error)
            return None

    def _different(
        self, made: Gradients, given: Sequence[torch.Tensor], *, whole: bool
    ) -> list[str]:
        """The parameters whose gradients differ from those that torch computes."""
        try:
            every = gradients_of(self._module, given, self._factors)
        except RuntimeError:
            return []  # inputs or weights that mean nothing to the module
        wanted = {name: one for name, one in every.items() if name in self.weights}
        largest = max((float(np.abs(one).max(initial=0)) for one in wanted.values()), default=0.0)
        if not whole and not np.isfinite(largest):
            return []
        noise = _NOISE * largest

        def of_file(name: str) -> Array:
            return np.asarray(made.get(self.weights[name], 0.0))

        suspects = [
            name
            for name, one in wanted.items()
            if not np.abs(of_file(name) - one).max(initial=0)
            <= max(_OF_GRADIENTS * np.abs(one).max(initial=0), noise)
        ]
        if not suspects:
            return []
        exact = gradients_of(doubled(self._module), [wide(one) for one in given], self._factors)
        return [
            name
            for name in suspects
            if not np.abs(of_file(name) - exact[name]).max(initial=0)
            <= _ROUNDING * np.abs(wanted[name] - exact[name]).max(initial=0) + noise
        ]


def _changed(one: torch.Tensor) -> torch.Tensor:
    """Other inputs: floating-point ones closer to zero, the samples of others in reverse order."""
    return one * 0.75 if one.is_floating_point() else one.flip(0) if one.dim() else one


def _moved(one: torch.Tensor, number: int) -> torch.Tensor:
    """An input; in later tries floating-point ones with noise as large as they are."""
    import torch

    if number == 0 or not one.is_floating_point():
        return one
    drawn = torch.randn(one.shape, generator=torch.Generator().manual_seed(number))
    return one + drawn.to(one) * max(float(one.abs().max()), 1.0) / 4


def _other_gradients(found: Sequence[str], point: _Point) -> popart_exception:
    hint = (
        "a file does not carry detach, torch.no_grad, tensors made into numbers, hooks, or the "
        "backward of a torch.autograd.Function: write forward without them, or freeze what they "
        "keep from training; with check=False the file is trained as it is"
    )
    floating = [one for one in point.given if one.is_floating_point()]
    if floating and not any(one.any() for one in floating):
        hint = (
            "the example inputs are zeros, at which roots, norms and deviations have no gradient: "
            "give inputs such as those of the training. Else: " + hint
        )
    return popart_exception(
        "PD597",
        f"the file that torch exported has other gradients than the module{point.label}",
        value=", ".join(found[:_SHOWN])
        + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""),
        hint=hint,
    )


def _difference(
    what: str, exporter: str, proto: onnx.ModelProto | None = None, first: str | None = None
) -> popart_exception:
    cause = "an operator that this exporter writes wrongly, or a branch that depends on data"
    if first is not None and proto is not None:
        scope = "/" + first.replace(".", "/") + "/"
        nodes = dict.fromkeys(n.op_type for n in proto.graph.node if n.name.startswith(scope))
        cause = f"submodule {first!r} ({', '.join(nodes)}) is the first that differs"
    other = "dynamo" if exporter == "torchscript" else "torchscript"
    return popart_exception(
        "PD592",
        f"the file that torch exported {what}",
        value=f"likely cause: {cause}",
        hint=f'try exporter="{other}", or write the operator in another way; check=False keeps the '
        "file as it is",
    )


def _gap(found: Array, wanted: Array, single: float = _SINGLE) -> str | None:
    """How an array differs from the one that is wanted; None where both agree."""
    if found.shape != wanted.shape:
        return f"shape {list(found.shape)} instead of {list(wanted.shape)}"
    if wanted.dtype.kind not in "fV":
        different = int((found != wanted).sum())
        return f"{different} of {wanted.size} elements differ" if different else None
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    size = np.max(np.abs(b), initial=0, where=np.isfinite(b))
    limit = max(_SHARE.get(str(wanted.dtype), single) * size, _NOISE)
    if np.allclose(a, b, rtol=0, atol=limit, equal_nan=True):
        return None
    far, large = np.nanmax(np.abs(a - b)), np.nanmax(np.abs(b))
    return f"by up to {far:.2g}, where values are up to {large:.2g}"


def _is_rounding(found: Array, wanted: Array, exact: Array, noise: float) -> bool:
    """Whether a difference is one of single precision: torch's own result is off, too."""
    if found.shape != exact.shape:
        return False
    own = np.abs(wanted - exact).max(initial=0)
    return bool(np.abs(found - exact).max(initial=0) <= _ROUNDING * own + noise)


def _of_submodules(
    proto: onnx.ModelProto, names: Sequence[str] | dict[str, Array]
) -> dict[str, str]:
    """The last value that the nodes of each submodule make, by the submodule's name."""
    last: dict[str, str] = {}
    for node in proto.graph.node:
        scope = node.name.rpartition("/")[0].strip("/").replace("/", ".")
        if scope and node.output:
            last[scope] = node.output[0]
    return {name: last[name] for name in names if name in last}
