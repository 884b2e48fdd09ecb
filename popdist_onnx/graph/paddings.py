"""Writes the padding of convolutions and pooling out where ONNX Runtime's kernels pad otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from popdist_onnx.graph.conform import form

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from popdist_onnx.graph.tensor import Tape, Tensor


@form("AveragePool", "LpPool", "MaxPool")
def pool(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """Explicit padding of pooling, where the kernels' own windows differ from the text's."""
    return _short_windows(tape, node) or _late_windows(tape, node)


def _short_windows(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """No padding with auto_pad where windows are shorter than their steps, as of convolutions.

    The kernel takes padding below zero there, which cuts off both ends of the input.
    """
    x, y = tape.wrap(node.inputs[0]), tape.wrap(node.outputs[0])  # type: ignore[arg-type]
    settings = {name: one.value for name, one in node.attributes.items()}
    auto = settings.get("auto_pad", "NOTSET")
    if not (auto.startswith("SAME") and x.static and y.static):
        return None
    missing = _missing(settings, settings["kernel_shape"], x, y)
    if all(one >= 0 for one in missing):
        return None
    settings |= {"auto_pad": "NOTSET", "pads": _halves(missing, auto)}
    return list(tape.many(node.op_type, len(node.outputs), x, **settings))


@form("Conv")
def convolution(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """Padding that the kernel refuses: below zero, or automatic where windows are dilated."""
    pads = list(node.attributes.get_ints("pads", ()))
    if all(pad >= 0 for pad in pads):
        return _dilated(tape, node)
    settings = {name: one.value for name, one in node.attributes.items()}
    count = len(pads) // 2
    x = tape.Pad(node.inputs[0], [0, 0, *pads[:count], 0, 0, *pads[count:]])
    settings["pads"] = [0] * len(pads)
    return [tape.many("Conv", 1, x, *node.inputs[1:], **settings)[0]]


def _dilated(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """Counted padding in place of auto_pad where windows are dilated, which the kernel refuses."""
    x, w, y = (tape.wrap(one) for one in (*node.inputs[:2], node.outputs[0]))  # type: ignore[arg-type]
    settings = {name: one.value for name, one in node.attributes.items()}
    auto = settings.get("auto_pad", "NOTSET")
    if not (auto.startswith("SAME") and x.static and w.static and y.static):
        return None
    if all(one == 1 for one in settings.get("dilations", [1])):
        return None
    missing = _missing(settings, w.shape[2:], x, y)
    settings |= {"auto_pad": "NOTSET", "pads": _halves(missing, auto)}
    return [tape.many("Conv", 1, *node.inputs, **settings)[0]]


def _missing(settings: dict[str, Any], sizes: Sequence[int], x: Tensor, y: Tensor) -> list[int]:
    """How much longer than the input all windows are together, by axis; below zero if shorter."""
    count = x.rank - 2
    strides, dilations = (settings.get(name, [1] * count) for name in ("strides", "dilations"))
    return [
        (made - 1) * stride + (size - 1) * dilation + 1 - length
        for made, stride, size, dilation, length in zip(
            y.shape[2:], strides, sizes, dilations, x.shape[2:], strict=True
        )
    ]


def _halves(missing: Sequence[int], auto: str) -> list[int]:
    """Padding at both ends; of an odd number the larger half is the later one in SAME_UPPER."""
    less = [max(one, 0) // 2 for one in missing]
    more = [max(one, 0) - half for one, half in zip(missing, less, strict=True)]
    return [*less, *more] if auto == "SAME_UPPER" else [*more, *less]


def _late_windows(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """Rounds down where rounding up makes a window in the padding at the end.

    The kernels leave such a window out, but ONNX Runtime's own inference of shapes counts it.
    """
    x, y = tape.wrap(node.inputs[0]), tape.wrap(node.outputs[0])  # type: ignore[arg-type]
    if not (node.attributes.get_int("ceil_mode", 0) and x.static and y.static):
        return None
    settings = {name: one.value for name, one in node.attributes.items()}
    count = x.rank - 2
    strides, dilations = (settings.get(name, [1] * count) for name in ("strides", "dilations"))
    pads = settings.get("pads", [0] * 2 * count)
    # How far the last window reaches beyond the padding; negative where one was left out.
    reach = [
        (made - 1) * stride + (size - 1) * dilation + 1 - length - before - after
        for made, stride, size, dilation, length, before, after in zip(
            y.shape[2:],
            strides,
            settings["kernel_shape"],
            dilations,
            x.shape[2:],
            pads[:count],
            pads[count:],
            strict=True,
        )
    ]
    if all(extra >= 0 for extra in reach):
        return None
    beyond = [max(extra, 0) for extra in reach]
    if settings.get("count_include_pad") and any(beyond):
        # Only what lies within the padding counts.
        x = tape.Pad(x, [0, 0, *pads[:count], 0, 0, *pads[count:]])
        settings["count_include_pad"], pads = 0, [0] * 2 * count
    after = [pad + extra for pad, extra in zip(pads[count:], beyond, strict=True)]
    settings |= {"ceil_mode": 0, "pads": [*pads[:count], *after]}
    return list(tape.many(node.op_type, len(node.outputs), x, **settings))


@form("ConvTranspose")
def conv_transpose(tape: Tape, node: ir.Node) -> Sequence[Tensor] | None:
    """Explicit padding; a slice and zeros where the kernel refuses the lengths that are asked for.

    Of an odd padding ONNX's text puts the larger half before an axis, with SAME_UPPER after it.
    """
    x, w = (tape.wrap(value) for value in node.inputs[:2] if value is not None)
    settings = {name: one.value for name, one in node.attributes.items()}
    auto, wanted = settings.get("auto_pad", "NOTSET"), settings.get("output_shape")
    if not (x.static and w.static):
        return None
    counts = x.shape[2:]
    ones, none = [1] * len(counts), [0] * len(counts)
    strides, extra = settings.get("strides", ones), settings.get("output_padding", none)
    whole = [
        stride * (count - 1) + (size - 1) * dilation + 1
        for stride, count, size, dilation in zip(
            strides, counts, w.shape[2:], settings.get("dilations", ones), strict=True
        )
    ]
    pads = list(settings.get("pads", [*none, *none])) if auto == "NOTSET" else [*none, *none]
    if wanted is not None or auto.startswith("SAME"):
        sizes = [one * stride for one, stride in zip(counts, strides, strict=True)]
        lengths = list(sizes if wanted is None else wanted)[-len(counts) :]
        totals = [n + more - length for n, more, length in zip(whole, extra, lengths, strict=True)]
        # What is asked for beyond the last window is zeros at the end.
        small = [max(total, 0) // 2 for total in totals]
        large = [max(total, 0) - half for total, half in zip(totals, small, strict=True)]
        extra = [more + max(-total, 0) for more, total in zip(extra, totals, strict=True)]
        pads = small + large if auto == "SAME_UPPER" else large + small
    settings = {
        name: value
        for name, value in settings.items()
        if name not in {"auto_pad", "output_shape", "pads", "output_padding"}
    }
    if all(more < stride for more, stride in zip(extra, strides, strict=True)):
        if wanted is None and not auto.startswith("SAME"):
            return None
        rest = {"pads": pads, "output_padding": extra}
        return [tape.ConvTranspose(*node.inputs, **settings, **rest)]
    made = tape.Pad(tape.ConvTranspose(x, w, **settings), [*[0] * (2 + len(counts) + 2), *extra])
    axes = list(range(2, x.rank))
    ends = [n + more for n, more in zip(whole, extra, strict=True)]
    after = [end - pad for end, pad in zip(ends, pads[len(counts) :], strict=True)]
    made = tape.Slice(made, pads[: len(counts)], after, axes)
    if len(node.inputs) > 2 and node.inputs[2] is not None:  # noqa: PLR2004 - a bias
        made = made + tape.Reshape(tape.wrap(node.inputs[2]), [1, -1, *ones])
    return [made]
