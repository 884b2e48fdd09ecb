"""Reads how the terms of a loss depend on statistics of a batch, and which can be rewritten.

A term that stays the same when every sample comes twice has one meaning for parts of a batch: what
it is for the whole batch. Each statistic has a degree, the power of the batch's size with which it
grows: 1 for a sum, 0 for a mean. The degree of a term has to be 0.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from popdist_onnx.training.loss_reading import (
    CONDITIONS,
    VIEWS,
    Reader,
    is_loss,
    reduction,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx

SUMS = ("ReduceSum", "ReduceL1", "ReduceSumSquare")
_SELECTIONS = ("Expand", "Gather", "GatherND", "Pad", "Slice", "Split", "Tile", "Transpose")
_ADDING = ("Add", "Sub", "Sum", "Mean", "Neg", "Concat")
_LIMITING = ("Max", "Min", "Clip", "Abs", "Relu")
_CURVES = (
    *("Ceil", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "LeakyRelu", "Log", "Mish"),
    *("Mod", "Round", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign", "Tanh"),
)
_SUMMED = ("ReduceSum", "ReduceMean")
_POWERS = {"Reciprocal": Fraction(-1), "Sqrt": Fraction(1, 2)}
_RANDOM = ("Bernoulli", "Multinomial", "Random", "Dropout")
_SAMPLE_WISE = (
    *(*VIEWS, *_SELECTIONS, *_ADDING, *_LIMITING, *_CURVES, *_SUMMED, *_POWERS, *CONDITIONS),
    *("Mul", "Div", "Pow", "Where"),
)
"""The operators through which statistics inside of samples are followed; layers end the search."""

_SUM = (
    "the loss is a sum over samples. Of the %d parts of a global batch (replicas x accumulation) "
    "the mean of the gradients is taken, which is smaller by that factor than in one process: use "
    "a mean"
)


class UnclearError(Exception):
    """A term cannot be computed from parts of a batch."""


class TermPlan(NamedTuple):
    """How a term is to be rewritten.

    Attributes:
        name: The term.
        statistics: Its statistics, each with whether its number for the whole batch is needed.
        path: The tensors between the term and its statistics.
    """

    name: str
    statistics: dict[str, bool]
    path: set[str]


class Terms(NamedTuple):
    """The terms of a loss that are not means over samples.

    Attributes:
        plans: Those that are rewritten.
        sums: A warning of sums over samples.
    """

    plans: list[TermPlan]
    sums: str | None


def read_terms(reader: Reader, loss: str, parts: int) -> Terms:
    """Reads the terms of a loss; those that are not clear are measured, as all are."""
    plans: dict[str, TermPlan] = {}
    has_sums = False
    for name, is_divided in terms(reader, loss):
        uses = _Uses(reader)
        try:
            degree = _Degrees(reader).of(name)
            uses.note(name, linear=True)
        except UnclearError:
            continue
        valued = any(uses.statistics.values())
        if degree == 0 and valued:
            plans[name] = TermPlan(name, uses.statistics, uses.path)
        has_sums |= degree == 1 and not valued and not is_divided
    return Terms(list(plans.values()), _SUM % parts if has_sums else None)


def terms(reader: Reader, name: str, *, is_divided: bool = False) -> Iterator[tuple[str, bool]]:
    """The tensors that a loss adds up, each with whether the number of samples may divide it."""
    node = reader.makers.get(name)
    if node is None or not reader.depends_on_data(name):
        return
    constant = [one for one in node.input if not reader.depends_on_data(one)]
    adds = node.op_type in _ADDING or (
        node.op_type in _SUMMED and reader.is_statistic(node.input[0])
    )
    if reader.reduces(node):
        yield name, is_divided
    elif adds or node.op_type in VIEWS or (node.op_type == "Mul" and constant):
        for one in node.input:
            yield from terms(reader, one, is_divided=is_divided)
    elif node.op_type == "Div" and node.input[1] in constant:
        by_size = reader.may_be_size(node.input[1])
        yield from terms(reader, node.input[0], is_divided=is_divided or by_size)
    else:
        yield name, is_divided


class _Degrees:
    """The power of the batch's size with which a tensor grows."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._known: dict[str, Fraction] = {}

    def of(self, name: str) -> Fraction:
        """The degree; 0 where nothing is reduced."""
        node = self._reader.makers.get(name)
        if node is None or not self._reader.depends_on_data(name):
            return Fraction(0)
        if name not in self._known:
            self._known[name] = self._of_node(node, name)
        return self._known[name]

    def _of_node(self, node: onnx.NodeProto, name: str) -> Fraction:
        kind = node.op_type
        if self._reader.reduces(node):
            return self._of_reduction(node)
        if self._reader.may_reduce(node):
            raise UnclearError
        if kind in (*VIEWS, *_SELECTIONS, *_SUMMED, *_ADDING, *_LIMITING, "Where"):
            return self._of_same(node.input[1:] if kind == "Where" else node.input)
        if kind in ("Mul", "Div"):
            sign = 1 if kind == "Mul" else -1
            return self.of(node.input[0]) + sign * self.of(node.input[1])
        if (power := self._power(node)) is not None:
            return self.of(node.input[0]) * power
        follows = kind in _SAMPLE_WISE or self._reader.is_statistic(name)
        if kind not in CONDITIONS and follows and any(map(self.of, node.input)):
            raise UnclearError
        return Fraction(0)

    def _power(self, node: onnx.NodeProto) -> Fraction | None:
        """The exponent of a power that is known."""
        if node.op_type != "Pow":
            return _POWERS.get(node.op_type)
        power = self._reader.constant(node.input[1])
        return Fraction(float(power.item())) if power is not None and power.size == 1 else None

    def _of_reduction(self, node: onnx.NodeProto) -> Fraction:
        if is_loss(node):
            return Fraction(reduction(node) == "sum")
        inside = self.of(node.input[0])
        if node.op_type == "ReduceMean":
            return inside
        if node.op_type in SUMS:
            return inside * (2 if node.op_type == "ReduceSumSquare" else 1) + 1
        raise UnclearError

    def _of_same(self, names: Iterator[str]) -> Fraction:
        found = {self.of(one) for one in names if self._reader.depends_on_data(one)}
        if len(found) > 1:
            raise UnclearError
        return found.pop() if found else Fraction(0)


class _Uses:
    """The statistics of a term, and which of them are not simply added up.

    Attributes:
        statistics: Each with whether its number for the whole batch is needed.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._seen: set[tuple[str, bool]] = set()
        self.statistics: dict[str, bool] = {}

    @property
    def path(self) -> set[str]:
        """What was followed."""
        return {name for name, _ in self._seen}

    def note(self, name: str, *, linear: bool) -> None:
        """Follows a tensor backwards."""
        node = self._reader.makers.get(name)
        if node is None or not self._reader.depends_on_data(name) or (name, linear) in self._seen:
            return
        self._seen.add((name, linear))
        if self._reader.reduces(node):
            self._note_statistic(node, name, linear=linear)
        elif not self._reader.is_statistic(name):
            # Inside of samples a statistic is multiplied with what differs between parts.
            if node.op_type in _SAMPLE_WISE:
                for one in node.input:
                    self.note(one, linear=False)
        else:
            for one, stays in self._operands(node, linear=linear):
                self.note(one, linear=stays)

    def _note_statistic(self, node: onnx.NodeProto, name: str, *, linear: bool) -> None:
        self.statistics[name] = self.statistics.get(name, False) or not linear
        inside = _Uses(self._reader)
        if not is_loss(node):
            self.note(node.input[0], linear=False)
            inside.note(node.input[0], linear=False)
        if linear:
            return
        if inside.statistics or self._reader.shape(name) is None:
            raise UnclearError
        for one in self._reader.before(name)[0]:
            if any(word in one.op_type for word in _RANDOM):
                raise UnclearError

    def _operands(self, node: onnx.NodeProto, *, linear: bool) -> Iterator[tuple[str, bool]]:
        """The operands of a function of statistics, and whether it is linear in each."""
        kind = node.op_type
        if kind in (*VIEWS, *_SELECTIONS, *_ADDING, *_SUMMED):
            yield from ((one, linear) for one in node.input)
        elif kind == "Mul":
            first, second = node.input
            yield first, linear and self._is_fixed(second)
            yield second, linear and self._is_fixed(first)
        elif kind == "Div":
            yield node.input[0], linear and self._is_fixed(node.input[1])
            yield node.input[1], False
        elif kind == "Where":
            yield node.input[0], False
            for one in node.input[1:]:
                yield one, linear and self._is_fixed(node.input[0])
        else:
            yield from ((one, False) for one in node.input)

    def _is_fixed(self, name: str) -> bool:
        """Whether all statistics before a tensor become inputs through which nothing trains."""
        inside = _Uses(self._reader)
        inside.note(name, linear=False)
        return not any(map(self._reader.is_trained, inside.statistics))


def is_sum(node: onnx.NodeProto) -> bool:
    """Whether a statistic grows with the number of samples."""
    if is_loss(node):
        return reduction(node) == "sum"
    return node.op_type in SUMS
