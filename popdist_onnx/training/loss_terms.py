"""Reads how the terms of a loss depend on statistics of a batch, and which can be rewritten.

A term that stays the same when every sample comes twice has one meaning for parts of a batch: what
it is for the whole batch. Each statistic has a degree, the power of the batch's size with which it
grows: 1 for a sum, 0 for a mean. The degree of a term has to be 0.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from popdist_onnx.graph.values import lengths
from popdist_onnx.training.loss_reading import (
    CONDITIONS,
    VIEWS,
    Reader,
    before,
    constant_of,
    is_loss,
    producer,
    reduction,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import onnx_ir as ir

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
        term: The term.
        statistics: Its statistics, each with whether its number for the whole batch is needed.
        path: The tensors between the term and its statistics.
    """

    term: ir.Value
    statistics: dict[ir.Value, bool]
    path: set[ir.Value]


class Terms(NamedTuple):
    """The terms of a loss that are not means over samples.

    Attributes:
        plans: Those that are rewritten.
        sums: A warning of sums over samples.
    """

    plans: list[TermPlan]
    sums: str | None


def read_terms(reader: Reader, loss: ir.Value, parts: int) -> Terms:
    """Reads the terms of a loss; those that are not clear are measured, as all are."""
    plans: dict[ir.Value, TermPlan] = {}
    has_sums = False
    for term, is_divided in terms(reader, loss):
        uses = _Uses(reader)
        try:
            degree = _Degrees(reader).of(term)
            uses.note(term, linear=True)
        except UnclearError:
            continue
        valued = any(uses.statistics.values())
        if degree == 0 and valued:
            plans[term] = TermPlan(term, uses.statistics, uses.path)
        has_sums |= degree == 1 and not valued and not is_divided
    return Terms(list(plans.values()), _SUM % parts if has_sums else None)


def terms(
    reader: Reader, value: ir.Value | None, *, is_divided: bool = False
) -> Iterator[tuple[ir.Value, bool]]:
    """The tensors that a loss adds up, each with whether the number of samples may divide it."""
    node = producer(value)
    if value is None or node is None or not reader.depends_on_data(value):
        return
    has_constant = not all(map(reader.depends_on_data, node.inputs))
    adds = node.op_type in _ADDING or (
        node.op_type in _SUMMED and reader.is_statistic(node.inputs[0])
    )
    if reader.reduces(node):
        yield value, is_divided
    elif adds or node.op_type in VIEWS or (node.op_type == "Mul" and has_constant):
        for one in node.inputs:
            yield from terms(reader, one, is_divided=is_divided)
    elif node.op_type == "Div" and not reader.depends_on_data(node.inputs[1]):
        by_size = reader.may_be_size(node.inputs[1])
        yield from terms(reader, node.inputs[0], is_divided=is_divided or by_size)
    else:
        yield value, is_divided


class _Degrees:
    """The power of the batch's size with which a tensor grows."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._known: dict[ir.Value, Fraction] = {}

    def of(self, value: ir.Value | None) -> Fraction:
        """The degree; 0 where nothing is reduced."""
        node = producer(value)
        if value is None or node is None or not self._reader.depends_on_data(value):
            return Fraction(0)
        if value not in self._known:
            self._known[value] = self._of_node(node, value)
        return self._known[value]

    def _of_node(self, node: ir.Node, value: ir.Value) -> Fraction:
        kind = node.op_type
        if self._reader.reduces(node):
            return self._of_reduction(node)
        if self._reader.may_reduce(node):
            raise UnclearError
        if kind in (*VIEWS, *_SELECTIONS, *_SUMMED, *_ADDING, *_LIMITING, "Where"):
            return self._of_same(node.inputs[1:] if kind == "Where" else node.inputs)
        if kind in ("Mul", "Div"):
            sign = 1 if kind == "Mul" else -1
            return self.of(node.inputs[0]) + sign * self.of(node.inputs[1])
        if (power := _power(node)) is not None:
            return self.of(node.inputs[0]) * power
        follows = kind in _SAMPLE_WISE or self._reader.is_statistic(value)
        if kind not in CONDITIONS and follows and any(map(self.of, node.inputs)):
            raise UnclearError
        return Fraction(0)

    def _of_reduction(self, node: ir.Node) -> Fraction:
        if is_loss(node):
            return Fraction(reduction(node) == "sum")
        inside = self.of(node.inputs[0])
        if node.op_type == "ReduceMean":
            return inside
        if node.op_type in SUMS:
            return inside * (2 if node.op_type == "ReduceSumSquare" else 1) + 1
        raise UnclearError

    def _of_same(self, values: Sequence[ir.Value | None]) -> Fraction:
        found = {self.of(one) for one in values if self._reader.depends_on_data(one)}
        if len(found) > 1:
            raise UnclearError
        return found.pop() if found else Fraction(0)


def _power(node: ir.Node) -> Fraction | None:
    """The exponent of a power that is known."""
    if node.op_type != "Pow":
        return _POWERS.get(node.op_type)
    power = constant_of(node.inputs[1])
    return Fraction(float(power.item())) if power is not None and power.size == 1 else None


class _Uses:
    """The statistics of a term, and which of them are not simply added up.

    Attributes:
        statistics: Each with whether its number for the whole batch is needed.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._seen: set[tuple[ir.Value, bool]] = set()
        self.statistics: dict[ir.Value, bool] = {}

    @property
    def path(self) -> set[ir.Value]:
        """What was followed."""
        return {value for value, _ in self._seen}

    def note(self, value: ir.Value | None, *, linear: bool) -> None:
        """Follows a tensor backwards."""
        node = producer(value)
        if value is None or node is None or not self._reader.depends_on_data(value):
            return
        if (value, linear) in self._seen:
            return
        self._seen.add((value, linear))
        if self._reader.reduces(node):
            self._note_statistic(node, value, linear=linear)
        elif not self._reader.is_statistic(value):
            # Inside of samples a statistic is multiplied with what differs between parts.
            if node.op_type in _SAMPLE_WISE:
                for one in node.inputs:
                    self.note(one, linear=False)
        else:
            for one, stays in self._operands(node, linear=linear):
                self.note(one, linear=stays)

    def _note_statistic(self, node: ir.Node, value: ir.Value, *, linear: bool) -> None:
        self.statistics[value] = self.statistics.get(value, False) or not linear
        inside = _Uses(self._reader)
        if not is_loss(node):
            self.note(node.inputs[0], linear=False)
            inside.note(node.inputs[0], linear=False)
        if linear:
            return
        if inside.statistics or lengths(value) is None:
            raise UnclearError
        for one in before(value)[0]:
            if any(word in one.op_type for word in _RANDOM):
                raise UnclearError

    def _operands(self, node: ir.Node, *, linear: bool) -> Iterator[tuple[ir.Value | None, bool]]:
        """The operands of a function of statistics, and whether it is linear in each."""
        kind = node.op_type
        if kind in (*VIEWS, *_SELECTIONS, *_ADDING, *_SUMMED):
            yield from ((one, linear) for one in node.inputs)
        elif kind == "Mul":
            first, second = node.inputs
            yield first, linear and self._is_fixed(second)
            yield second, linear and self._is_fixed(first)
        elif kind == "Div":
            yield node.inputs[0], linear and self._is_fixed(node.inputs[1])
            yield node.inputs[1], False
        elif kind == "Where":
            yield node.inputs[0], False
            for one in node.inputs[1:]:
                yield one, linear and self._is_fixed(node.inputs[0])
        else:
            yield from ((one, False) for one in node.inputs)

    def _is_fixed(self, value: ir.Value | None) -> bool:
        """Whether all statistics before a tensor become inputs through which nothing trains."""
        inside = _Uses(self._reader)
        inside.note(value, linear=False)
        return not any(map(self._reader.is_trained, inside.statistics))


def is_sum(node: ir.Node) -> bool:
    """Whether a statistic grows with the number of samples."""
    if is_loss(node):
        return reduction(node) == "sum"
    return node.op_type in SUMS
