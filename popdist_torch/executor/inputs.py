"""The arguments of a call: their fixed signature, and the rows of each micro-batch."""

from __future__ import annotations

import inspect
import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.errors import Error
from popdist_torch.executor.structure import Structure, flatten, flatten_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from popdist_torch.executor.batching import Batching


@dataclass(frozen=True)
class Signature:
    """The part of the arguments that must not change between calls.

    Attributes:
        structure: The nesting of the arguments by the names that ``forward`` gives them.
        leaves: For each leaf, the shape and type of a tensor, or the value of anything else.
    """

    structure: Structure
    leaves: tuple[Any, ...]


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call, flat.

    Attributes:
        signature: Their signature.
        values: The leaves.
        given: The leaves in the program's own memory, which `keep_changes` writes to.
        call: Converts arguments by name into positional and keyword arguments.
        taken: For each micro-batch, the start and end of reading its rows, in seconds.
    """

    signature: Signature
    values: tuple[Any, ...]
    given: tuple[Any, ...]
    call: Callable[[dict[str, Any]], tuple[Any, Any]] = field(compare=False)
    taken: list[tuple[float, float]] = field(default_factory=list, compare=False)
    _lent: dict[int, list[tuple[int, torch.Tensor, int]]] = field(
        default_factory=dict, compare=False
    )

    def tensors(self) -> int:
        """The number of tensors."""
        return sum(isinstance(value, torch.Tensor) for value in self.values)

    def rows(self) -> int | None:
        """The number of samples, by the first tensor; None without one."""
        tensors = (value for value in self.values if isinstance(value, torch.Tensor))
        return next((len(value) for value in tensors if value.dim()), None)

    def micro_batch(self, part: int, batching: Batching) -> tuple[Any, Any]:
        """Positional and keyword arguments of one micro-batch; ``part`` is its index."""
        started = time.perf_counter()
        parts = batching.parts
        rows = [_rows(value, part, parts) for value in self.values]
        self._lent[part] = [
            (place, row, row._version)  # noqa: SLF001 - counts changes in place
            for place, row in enumerate(rows)
            if isinstance(row, torch.Tensor) and row.dim()
        ]
        self.taken.append((started, time.perf_counter()))
        return self.called(rows)

    def called(self, leaves: Iterable[Any]) -> tuple[Any, Any]:
        """Positional and keyword arguments with other leaves in the same structure."""
        return self.call(self.signature.structure.build(iter(leaves)))

    def keep_changes(self, part: int, batching: Batching) -> None:
        """Copies rows of a micro-batch that forward has changed in place to the program."""
        for place, row, version in self._lent.pop(part, ()):
            if row._version != version and place < len(self.given):  # noqa: SLF001 - as above
                _store(row, self.given[place], part, batching.parts)


def collect(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    batching: Batching,
    device: torch.device,
    forward: inspect.Signature | None = None,
) -> Arguments:
    """Checks a call's arguments, moves them to the device, and detaches them from any graph.

    ``forward`` is the signature that gives arguments their names; with None, only their positions
    count.

    Raises:
        BatchError: A tensor's first dimension does not divide.
        Error: The model does not accept such arguments.
    """
    named, call = _bound(forward, args, kwargs)
    leaves, structure = flatten_arguments(named)
    values, given = [], []
    described: list[Any] = []
    parts = batching.parts
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            if _length(leaf) % parts:
                path = list(structure.paths())[place]
                batching.require_divisible(
                    _length(leaf), f"input {path}, shape {tuple(leaf.shape)},"
                )
            given.append(leaf.detach())
            values.append(given[-1].to(device))
        else:
            given.append(leaf)
            values.append(leaf)
        described.append(_described(leaf))
    signature = Signature(structure, tuple(described))
    return Arguments(signature, tuple(values), tuple(given), call)


def synthetic(arguments: Arguments) -> Arguments:
    """Replaces a call's tensors by generated ones of equal shape and type, for benchmarks.

    Floating-point numbers are drawn from a normal distribution, the same in every call. Integers
    are zero, which is a valid class, index or word.
    """
    generator = torch.Generator().manual_seed(0)

    def generated(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if not value.is_floating_point():
            return torch.zeros_like(value)
        return torch.randn(value.shape, generator=generator).to(value)

    values = tuple(map(generated, arguments.values))
    return Arguments(arguments.signature, values, (), arguments.call)


def require_same(
    expected: Signature, seen: Signature, forward: inspect.Signature | None = None
) -> None:
    """Checks that a call has the signature of the first one.

    An argument that one of the calls omits has its default value in ``forward``.

    Raises:
        Error: They differ.
    """
    if _same(expected, seen):
        return
    if forward is not None:
        expected, seen = _completed(expected, forward), _completed(seen, forward)
        if _same(expected, seen):
            return
    before, now = list(expected.structure.paths()), list(seen.structure.paths())
    problems = _missing(set(before) - set(now), set(now) - set(before))
    if forward is not None:
        first, second = (_by_position(one.structure, forward) for one in (expected, seen))
        if first != second:
            problems.insert(
                0,
                f"Number of positional arguments mismatch: expected {first} arguments but got "
                f"{second}.",
            )
    if before == now:
        for index, (first, second) in enumerate(zip(expected.leaves, seen.leaves, strict=True)):
            if not _equal(first, second):
                kind = "Value" if type(first) is type(second) is not tuple else "Type"
                name = _last_key(before[index])
                problems.append(f"{kind} mismatch for {name}: {_difference(first, second)}.")
    if not problems:
        problems.append(f"expected {expected.structure} but got {seen.structure}")
    raise Error(
        "PD391",
        f"the inputs have changed since the model was compiled: {' '.join(problems)}",
        hint="keep every batch full (drop_last=True) or pad the last one; destroy() lets the next "
        "call set new arguments and shapes",
    )


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NOTHING: dict[Any, Any] = {inspect.Parameter.VAR_POSITIONAL: (), inspect.Parameter.VAR_KEYWORD: {}}


def _same(first: Signature, second: Signature) -> bool:
    alike = first.structure is second.structure or first.structure == second.structure
    return alike and all(map(_equal, first.leaves, second.leaves))


def _completed(signature: Signature, forward: inspect.Signature) -> Signature:
    """A signature with the defaults of the arguments that its call omitted."""
    leaves = iter(signature.leaves)
    given = {
        key: (child, [next(leaves) for _ in child.paths()])
        for key, child in zip(signature.structure.keys, signature.structure.children, strict=True)
    }
    parts = []
    for name, parameter in forward.parameters.items():
        default = _NOTHING.get(parameter.kind, parameter.default)
        if name in given:
            parts.append((name, *given[name]))
        elif default is not inspect.Parameter.empty:
            values, structure = flatten(default)
            parts.append((name, structure, [_described(value) for value in values]))
    names, children, found = zip(*parts, strict=True) if parts else ((), (), ())
    structure = Structure(dict, tuple(names), tuple(children), example=dict.fromkeys(names))
    return Signature(structure, tuple(itertools.chain.from_iterable(found)))


def _by_position(structure: Structure, forward: inspect.Signature) -> int:
    """How many arguments a call had by position, as far as its number of them is free."""
    parameters = forward.parameters
    variadic = inspect.Parameter.VAR_POSITIONAL
    fixed = sum(
        p.kind not in (*_VARIADIC, inspect.Parameter.KEYWORD_ONLY) for p in parameters.values()
    )
    pairs = zip(structure.keys, structure.children, strict=True)
    return fixed + sum(
        len(child.children) for key, child in pairs if parameters[key].kind is variadic
    )


def _described(leaf: Any) -> Any:
    return (leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf


def _by_place(parameters: Iterable[inspect.Parameter]) -> bool:
    plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return all(parameter.kind is plain for parameter in parameters)


def _bound(
    signature: inspect.Signature | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], Callable[[dict[str, Any]], tuple[Any, Any]]]:
    """Arguments by the names of ``forward``, and the function that turns them back into a call."""
    if signature is None:
        places = {str(place): value for place, value in enumerate(args)} | dict(kwargs)
        return places, lambda named: (
            tuple(named[str(place)] for place in range(len(args))),
            {name: named[name] for name in kwargs},
        )
    parameters = signature.parameters
    if not kwargs and len(args) == len(parameters) and _by_place(parameters.values()):
        # What binding comes to here, at a fraction of its cost.
        names = list(parameters)
        return dict(zip(names, args, strict=True)), lambda named: (
            tuple(named[name] for name in names),
            {},
        )
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise _refused(signature, args, kwargs, str(error)) from error

    if not any(parameter.kind in _VARIADIC for parameter in signature.parameters.values()):
        # `BoundArguments` would work this out anew in each micro-batch.
        given = [name for name in bound.arguments if name not in kwargs]
        return bound.arguments, lambda named: (
            tuple(named[name] for name in given),
            {name: named[name] for name in kwargs},
        )

    def call(named: dict[str, Any]) -> tuple[Any, Any]:
        made = inspect.BoundArguments(signature, named)  # a dict will do
        return made.args, made.kwargs

    return bound.arguments, call


def _refused(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any], why: str
) -> Error:
    """The error for arguments that a model does not accept."""
    parameters = signature.parameters.values()
    single = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    by_place = [p.name for p in parameters if p.kind in single]
    needed = [
        p.name
        for p in parameters
        if p.default is inspect.Parameter.empty
        and p.kind in (*single, inspect.Parameter.KEYWORD_ONLY)
    ]
    missing = [n for n in needed if n not in by_place[: len(args)] and n not in kwargs]
    unknown = [n for n in kwargs if n not in signature.parameters]
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        unknown = []
    problems = [f"Mandatory parameter {name} missing." for name in missing]
    problems += _missing((), unknown)
    return Error(
        "PD391",
        f"the model cannot be called with these arguments. {' '.join(problems)}".rstrip(),
        value=None if problems else why,
        accepted=f"forward{signature}",
    )


def _missing(missing: Iterable[str], unexpected: Iterable[str]) -> list[str]:
    """PopTorch's messages for missing and unexpected arguments."""
    return [
        f"{kind} arguments: {', '.join(sorted(map(_last_key, names)))}."
        for kind, names in (("Missing", set(missing)), ("Unexpected", set(unexpected)))
        if names
    ]


def _last_key(path: str) -> str:
    """The last name of a path such as ``kwargs['z']``, or the path where it has none."""
    return path.rpartition("['")[2].removesuffix("']") if path.endswith("']") else path


def _equal(first: Any, second: Any) -> bool:
    """Whether two leaves are equal; leaves that cannot be compared must be one object."""
    try:
        return first is second or bool(first == second)
    except (RuntimeError, TypeError, ValueError):
        return False


def _length(tensor: torch.Tensor) -> int:
    return tensor.shape[0] if tensor.dim() else 1


def _rows(value: Any, part: int, parts: int) -> Any:
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    size = value.shape[0] // parts
    rows = value.narrow(0, part * size, size)
    # Some matrix products round by where their operands begin: a copy is aligned in every layout.
    return rows.clone() if rows.device.type == "cpu" else rows


@torch.no_grad()
def _store(row: torch.Tensor, given: torch.Tensor, part: int, parts: int) -> None:
    """Copies a micro-batch's rows to their place in the program's tensor."""
    if any(
        not stride and size > 1 for stride, size in zip(given.stride(), given.shape, strict=True)
    ):
        return  # an expanded tensor has no place for each row
    size = given.shape[0] // parts
    with torch.inference_mode(given.is_inference()):
        given.narrow(0, part * size, size).copy_(row.detach())


def _difference(first: Any, second: Any) -> str:
    """How a leaf differs from that of the first call, in the published words."""
    if not (_is_tensor(first) and _is_tensor(second)):
        kinds = [f"{torch.Tensor}" if _is_tensor(leaf) else repr(leaf) for leaf in (first, second)]
        return "expected {} but got {}".format(*kinds)
    pairs = zip(first, second, strict=True)
    return ", ".join(f"expected {one} but got {other}" for one, other in pairs if one != other)


def _is_tensor(leaf: Any) -> bool:
    """Whether the description of a leaf, shape and type, is that of a tensor."""
    return isinstance(leaf, tuple) and bool(leaf) and isinstance(leaf[0], torch.Size)
