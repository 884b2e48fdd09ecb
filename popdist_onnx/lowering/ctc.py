"""Connectionist temporal classification: the loss, its gradient for autodiff, and a decoder.

Graves et al. 2006, sections 4.1 and 4.2, with logarithms throughout. The extended labels of one
sample are its targets with blanks before, between and after: ``L = 2S + 1`` states. ``alpha[t, l]``
is the log probability of all paths that are in state l after step t, ``beta[t, l]`` that of all
paths that begin in state l at step t and end well; both contain the emission of step t.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir

from popdist_onnx.graph import shape_ops
from popdist_onnx.graph.tensor import Tape
from popdist_onnx.lowering.registry import DOMAIN, Operation, lowering
from popdist_onnx.types.tensor_info import DataType

if TYPE_CHECKING:
    from collections.abc import Callable

    from popdist_onnx.graph.tensor import Tensor

_NEVER = -1e30
"""Log probability of what cannot happen: infinities would cancel to NaN."""

_IMPOSSIBLE = 1e29
"""Losses beyond this mean that no path fits."""


class Problem(NamedTuple):
    """The inputs of both recursions.

    Attributes:
        emissions: Log probability of each state's label, ``[T, N, L]``.
        labels: Label of each state, ``[N, L]``, int64.
        skips: Whether a state may be entered from the one before the last, ``[N, L]``.
        ends: Whether paths may end in a state, ``[N, L]``.
        last_step: Index of each sample's last step, ``[N, 1]``, int64.
        target_lengths: ``[N]``, int64.
    """

    emissions: Tensor
    labels: Tensor
    skips: Tensor
    ends: Tensor
    last_step: Tensor
    target_lengths: Tensor


@lowering("Ctc")
def ctc(op: Operation) -> Tensor:
    """``-ln p(targets)`` of each sample; a mean divides by target length, then by samples."""
    tape = op.tape
    problem = read(op)
    losses = -_log_sum(_alphas(op, problem)[0], problem)
    possible = losses < _IMPOSSIBLE
    otherwise = 0.0 if op.number("zeroInfinity", 0) else math.inf
    losses = tape.Where(possible, losses, tape.scalar(otherwise, losses.dtype))
    name = op.text("outDataType", "UNDEFINED")
    dtype = op.inputs[0].dtype if name == "UNDEFINED" else ir.DataType(DataType[name].onnx)
    match op.text("reduction", "Mean"):
        case "Mean":
            lengths = tape.Max(tape.Cast(problem.target_lengths, to=losses.dtype), 1)
            losses = tape.ReduceMean(losses / lengths, keepdims=0)
        case "Sum":
            losses = tape.ReduceSum(losses, keepdims=0)
    return tape.Cast(losses, to=dtype)


def ctc_gradient(op: Operation, upstream: Tensor) -> Tensor:
    """``-sum over states of exp(alpha + beta - e - ln p)``: gradient ``[T, N, C]`` of inputs."""
    tape = op.tape
    problem = read(op)
    last, alphas = _alphas(op, problem)
    betas = _betas(op, problem)
    total = _log_sum(last, problem)
    shape = tape.Unsqueeze(tape.Unsqueeze(total, [1]), [0])
    occupied = tape.Exp(alphas + betas - problem.emissions - shape)
    steps = op.inputs[0].shape[0]
    step = tape.constant(np.arange(steps, dtype=np.int64).reshape(-1, 1, 1))
    lasts = tape.Unsqueeze(problem.last_step, [0])
    possible = tape.And(tape.Not(step > lasts), shape > -_IMPOSSIBLE)
    occupied = tape.Where(possible, occupied, tape.scalar(0, occupied.dtype))
    weight = tape.Cast(upstream, to=occupied.dtype)
    if op.text("reduction", "Mean") == "Mean":
        lengths = tape.Max(tape.Cast(problem.target_lengths, to=occupied.dtype), 1)
        samples = tape.Cast(tape.Size(problem.target_lengths), to=occupied.dtype)
        weight = weight / (lengths * samples)
    if weight.dims:
        weight = tape.Unsqueeze(tape.Unsqueeze(weight, [1]), [0])
    flow = -(occupied * weight)
    log_probs = op.inputs[0]
    index = tape.Expand(tape.Unsqueeze(problem.labels, [0]), list(flow.shape))
    empty = shape_ops.zeros(tape.Cast(log_probs, to=flow.dtype))
    gathered = tape.ScatterElements(empty, index, flow, axis=2, reduction="add")
    return tape.Cast(gathered, to=log_probs.dtype)


def read(op: Operation) -> Problem:
    """Prepares the inputs of the recursions.

    Raises:
        ValueRangeError: The inputs' shapes do not fit each other.
    """
    tape = op.tape
    log_probs, targets, input_lengths, target_lengths = op.inputs
    _require_shapes(op, log_probs, targets, input_lengths, target_lengths)
    if log_probs.dtype != ir.DataType.DOUBLE:
        log_probs = tape.Cast(log_probs, to=ir.DataType.FLOAT)
    steps, batch, _classes = log_probs.shape
    length = targets.shape[1]
    blank = op.number("blank", 0)
    targets, input_lengths, target_lengths = (
        tape.Cast(one, to=ir.DataType.INT64) for one in (targets, input_lengths, target_lengths)
    )
    # Elements beyond a sample's targets may have any value.
    position = tape.constant(np.arange(length, dtype=np.int64).reshape(1, -1))
    ends_at = tape.Unsqueeze(target_lengths, [1])
    targets = tape.Where(position < ends_at, targets, tape.scalar(blank))
    blanks = tape.constant(np.full((batch, length, 1), blank, np.int64))
    pairs = tape.Concat(blanks, tape.Unsqueeze(targets, [2]), axis=2)
    last = tape.constant(np.full((batch, 1), blank, np.int64))
    labels = tape.Concat(tape.Reshape(pairs, [batch, 2 * length]), last, axis=1)
    states = 2 * length + 1
    index = tape.Expand(tape.Unsqueeze(labels, [0]), [steps, batch, states])
    emissions = tape.GatherElements(log_probs, index, axis=2)
    earlier = tape.Pad(labels, [0, 2, 0, -2], tape.scalar(blank))
    differs = tape.Not(tape.Equal(labels, earlier))
    skips = tape.And(differs, tape.Not(tape.Equal(labels, blank)))
    state = tape.constant(np.arange(states, dtype=np.int64).reshape(1, -1))
    final = tape.scalar(2) * ends_at
    # After the last label, or after the blank behind it.
    ends = tape.Or(tape.Equal(state, final), tape.Equal(state + tape.scalar(1), final))
    last_step = tape.Unsqueeze(input_lengths, [1]) - tape.scalar(1)
    return Problem(emissions, labels, skips, ends, last_step, target_lengths)


def _require_shapes(op: Operation, *inputs: Tensor) -> None:
    dims = [one.dims for one in inputs]
    log_probs, targets, input_lengths, target_lengths = dims
    if (
        log_probs is None
        or targets is None
        or (len(log_probs), len(targets)) != (3, 2)
        or not input_lengths == target_lengths == (log_probs[1],)
        or targets[0] != log_probs[1]
        or not all(isinstance(dim, int) for dim in (*log_probs, *targets))
    ):
        raise op.misfit(
            "takes log probabilities, targets and both lengths of fitting, known shapes",
            value=dims,
            accepted="[T, N, C], [N, S], [N] and [N]",
        )


def _alphas(op: Operation, problem: Problem) -> tuple[Tensor, Tensor]:
    """The state after each sample's last step, ``[N, L]``, and after each step, ``[T, N, L]``."""

    def step(body: Tape, alpha: Tensor, emission: Tensor, now: Tensor) -> Tensor:
        never = body.scalar(_NEVER, alpha.dtype)
        before = body.Pad(alpha, [0, 1, 0, -1], never)
        skipped = body.Where(problem.skips.value, body.Pad(alpha, [0, 2, 0, -2], never), never)
        moved = emission + _log_add(body, alpha, before, skipped)
        # Paths begin in states 0 and 1.
        begun = body.Where(_first_states(body, problem), emission, never)
        moved = body.Where(body.Equal(now, body.scalar(0)), begun, moved)
        return body.Where(body.Greater(now, problem.last_step.value), alpha, moved)

    return _scan(op, problem, step, backward=False)


def _betas(op: Operation, problem: Problem) -> Tensor:
    """The log probability of good ends from each step on, ``[T, N, L]``."""

    def step(body: Tape, beta: Tensor, emission: Tensor, now: Tensor) -> Tensor:
        never = body.scalar(_NEVER, beta.dtype)
        after = body.Pad(beta, [0, -1, 0, 1], never)
        # The skip rule belongs to the state that is entered.
        enterable = body.Where(problem.skips.value, beta, never)
        skipped = body.Pad(enterable, [0, -2, 0, 2], never)
        moved = emission + _log_add(body, beta, after, skipped)
        ended = body.Where(problem.ends.value, emission, never)
        at_end = body.Equal(now, problem.last_step.value)
        return body.Where(at_end, ended, moved)

    return _scan(op, problem, step, backward=True)[1]


def _scan(
    op: Operation,
    problem: Problem,
    step: Callable[[Tape, Tensor, Tensor, Tensor], Tensor],
    *,
    backward: bool,
) -> tuple[Tensor, Tensor]:
    tape = op.tape
    dtype = problem.emissions.dtype
    steps, batch, states = problem.emissions.shape
    graph = ir.Graph([], [], nodes=[], name=tape.fresh("recursion"))
    body = Tape(graph, opset=tape.opset, scope=f"{tape.fresh('step')}/")
    state = body.input(f"{body.scope}state", dtype, [batch, states])
    emission = body.input(f"{body.scope}emission", dtype, [batch, states])
    now = body.input(f"{body.scope}now", ir.DataType.INT64, [])
    following = step(body, state, emission, now)
    graph.outputs.extend([following.value, body.Identity(following).value])
    begin = tape.constant(np.full((batch, states), _NEVER, dtype.numpy()))
    clock = tape.constant(np.arange(steps, dtype=np.int64))
    direction = int(backward)
    last, every = tape.many(
        "Scan",
        2,
        begin,
        problem.emissions,
        clock,
        body=graph,
        num_scan_inputs=2,
        scan_input_directions=[direction, direction],
        scan_output_directions=[direction],
    )
    for tensor, shape in ((last, [batch, states]), (every, [steps, batch, states])):
        tensor.value.type = ir.TensorType(dtype)
        tensor.value.shape = ir.Shape(shape)
    return last, every


def _first_states(body: Tape, problem: Problem) -> Tensor:
    states = problem.labels.shape[1]
    return body.constant(np.arange(states).reshape(1, -1) < 2)  # noqa: PLR2004 - blank and label


def _log_add(tape: Tape, *terms: Tensor) -> Tensor:
    most = tape.Max(*terms)
    total = tape.Sum(*[tape.Exp(term - most) for term in terms])
    return most + tape.Log(total)


def _log_sum(last: Tensor, problem: Problem) -> Tensor:
    tape = last.tape
    ended = tape.Where(problem.ends, last, tape.scalar(_NEVER, last.dtype))
    most = tape.ReduceMax(ended, [1], keepdims=1)
    total = tape.ReduceSum(tape.Exp(ended - most), [1], keepdims=0)
    return tape.Squeeze(most, [1]) + tape.Log(total)


# The likeliest labels, by prefix beam search.


@lowering("CtcBeamSearchDecoder")
def beam_search(op: Operation) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest labels' log probabilities, lengths and classes, by prefix beam search.

    Hannun et al. 2014, algorithm 1, without a language model. A beam is a prefix with the log
    probability of ending in a blank and that of ending in its last label.
    """
    tape = op.tape
    (log_probs,) = tape.custom(DOMAIN, "Detach", 1, op.inputs[0])
    lengths = tape.Cast(op.inputs[1], to=ir.DataType.INT64)
    if log_probs.rank != 3 or not log_probs.static or lengths.dims != (log_probs.shape[1],):  # noqa: PLR2004 - [T, N, C]
        raise op.misfit(
            "takes log probabilities and lengths of fitting, known shapes",
            value=[log_probs.dims, lengths.dims],
            accepted="[T, N, C] and [N]",
        )
    steps, batch, classes = log_probs.shape
    width, paths = op.number("beam_width", 100), op.number("top_paths", 1)
    blank = op.number("blank", 0)
    if not (0 <= blank < classes and 1 <= paths <= width):
        raise op.misfit(
            "has no such blank, or more paths than beams",
            value={"blank": blank, "beamWidth": width, "topPaths": paths},
            accepted=f"a blank below {classes}, and 1 to beamWidth paths",
        )
    wide = log_probs
    if log_probs.dtype != ir.DataType.DOUBLE:
        wide = tape.Cast(log_probs, to=ir.DataType.FLOAT)
    graph = ir.Graph([], [], nodes=[], name=tape.fresh("search"))
    body = Tape(graph, opset=tape.opset, scope=f"{tape.fresh('step')}/")
    dtype = wide.dtype
    state = [
        body.input(f"{body.scope}in_blank", dtype, [batch, width]),
        body.input(f"{body.scope}in_label", dtype, [batch, width]),
        body.input(f"{body.scope}sizes", ir.DataType.INT64, [batch, width]),
        body.input(f"{body.scope}prefixes", ir.DataType.INT64, [batch, width, steps]),
    ]
    emission = body.input(f"{body.scope}emission", dtype, [batch, classes])
    now = body.input(f"{body.scope}now", ir.DataType.INT64, [])
    grown = _grow(body, state, emission, blank)
    over = body.Unsqueeze(body.Not(body.Less(now, lengths.value)), [1])
    for old, new in zip(state, grown, strict=True):
        ended = body.Unsqueeze(over, [2]) if old.rank > 2 else over  # noqa: PLR2004 - prefixes
        graph.outputs.append(body.Where(ended, old, new).value)
    never = np.full((batch, width), _NEVER, dtype.numpy())
    first = never.copy()
    first[:, 0] = 0
    in_blank, in_label, sizes, prefixes = tape.many(
        "Scan",
        4,
        tape.constant(first),
        tape.constant(never),
        tape.constant(np.zeros((batch, width), np.int64)),
        tape.constant(np.full((batch, width, steps), _NO_LABEL, np.int64)),
        wide,
        tape.constant(np.arange(steps, dtype=np.int64)),
        body=graph,
        num_scan_inputs=2,
    )
    for one, like in zip((in_blank, in_label, sizes, prefixes), state, strict=True):
        one.value.type, one.value.shape = like.value.type, like.value.shape
    best = [tape.Slice(one, [0], [paths], [1]) for one in (in_blank, in_label, sizes, prefixes)]
    total = _log_add(tape, best[0], best[1])
    impossible = total < -_IMPOSSIBLE
    scores = tape.Where(impossible, tape.scalar(-math.inf, dtype), total)
    labels = tape.Where(best[3] < 0, tape.scalar(blank), best[3])
    return (
        tape.Cast(scores, to=log_probs.dtype),
        tape.Cast(best[2], to=ir.DataType.UINT32),
        tape.Cast(labels, to=ir.DataType.UINT32),
    )


_NO_LABEL = -1
"""What stands behind the end of a prefix."""


def _grow(body: Tape, state: list[Tensor], emission: Tensor, blank: int) -> list[Tensor]:
    """The beams after one more step: each stays as it is, or gets one more label."""
    in_blank, in_label, sizes, prefixes = state
    batch, width, steps = prefixes.shape
    classes = emission.shape[1]
    never = body.scalar(_NEVER, emission.dtype)
    position = body.constant(np.arange(steps, dtype=np.int64).reshape(1, 1, -1))
    end = body.Unsqueeze(sizes, [2])
    at_end = body.Equal(position, end - body.scalar(1))
    last = body.ReduceMax(body.Where(at_end, prefixes, body.scalar(_NO_LABEL)), [2], keepdims=0)
    known = body.Max(last, body.scalar(0))
    either = _log_add(body, in_blank, in_label)
    stay_blank = either + body.Slice(emission, [blank], [blank + 1], [1])
    repeated = in_label + body.GatherElements(emission, known, axis=1)
    stay_label = body.Where(body.Equal(sizes, body.scalar(0)), never, repeated)
    # A label like the last one begins anew only behind a blank.
    label = body.constant(np.arange(classes, dtype=np.int64).reshape(1, 1, -1))
    same = body.Equal(label, body.Unsqueeze(last, [2]))
    before = body.Where(same, body.Unsqueeze(in_blank, [2]), body.Unsqueeze(either, [2]))
    longer = body.Unsqueeze(emission, [1]) + before
    longer = body.Where(body.Equal(label, body.scalar(blank)), never, longer)
    # A longer prefix may be a beam already: it gets the probability.
    alive = either > -_IMPOSSIBLE
    parent = body.Where(at_end, body.scalar(_NO_LABEL), prefixes)
    equal = body.Equal(body.Unsqueeze(parent, [2]), body.Unsqueeze(prefixes, [1]))
    equal = body.ReduceMin(body.Cast(equal, to=ir.DataType.INT32), [3], keepdims=0)
    fits = body.Equal(body.Unsqueeze(sizes, [2]), body.Unsqueeze(sizes + body.scalar(1), [1]))
    child = body.And(fits, body.Cast(equal, to=ir.DataType.BOOL))
    child = body.And(child, body.And(body.Unsqueeze(alive, [2]), body.Unsqueeze(alive, [1])))
    index = body.Expand(body.Unsqueeze(known, [2]), [batch, width, width])
    arriving = body.GatherElements(body.Transpose(longer, perm=[0, 2, 1]), index, axis=1)
    arriving = body.ReduceMax(body.Where(child, arriving, never), [2], keepdims=0)
    stay_label = _log_add(body, stay_label, arriving)
    taken = body.Transpose(body.Cast(child, to=ir.DataType.FLOAT), perm=[0, 2, 1])
    taken = taken @ body.Cast(same, to=ir.DataType.FLOAT)
    longer = body.Reshape(body.Where(taken > 0, never, longer), [batch, width * classes])
    # The best of all.
    scores = body.Concat(_log_add(body, stay_blank, stay_label), longer, axis=1)
    _, chosen = body.many("TopK", 2, scores, body.ints(width), axis=1, largest=1, sorted=1)
    stays = chosen < width
    number = body.Max(chosen - body.scalar(width), body.scalar(0))
    origin = body.Where(stays, chosen, number / body.scalar(classes))
    label = body.Mod(number, classes)
    old_size = body.GatherElements(sizes, origin, axis=1)
    wide = body.Expand(body.Unsqueeze(origin, [2]), [batch, width, steps])
    old_prefix = body.GatherElements(prefixes, wide, axis=1)
    begins = body.And(
        body.Equal(position, body.Unsqueeze(old_size, [2])),
        body.Unsqueeze(body.Not(stays), [2]),
    )
    moved = body.Cast(body.Not(stays), to=ir.DataType.INT64)
    return [
        body.Where(stays, body.GatherElements(stay_blank, origin, axis=1), never),
        body.Where(
            stays,
            body.GatherElements(stay_label, origin, axis=1),
            body.GatherElements(longer, number, axis=1),
        ),
        old_size + moved,
        body.Where(begins, body.Unsqueeze(label, [2]), old_prefix),
    ]
