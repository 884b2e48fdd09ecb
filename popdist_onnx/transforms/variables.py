"""Which initializers of a graph are weights."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from popdist_onnx.graph.compat import FLOATING
from popdist_onnx.graph.names import RESERVED

if TYPE_CHECKING:
    from collections.abc import Collection

    import onnx_ir as ir

# Where an operator takes a setting or a running statistic, not something that is learnt.
_SETTINGS: dict[str, Collection[int]] = {
    "BatchNormalization": (3, 4),
    "Clip": (1, 2),
    "Dropout": (1, 2),
    "OneHot": (1, 2),
    "Pad": (2,),
    "Pow": (1,),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
}

# Exporters lift numbers of the program to initializers, under names that they make up.
_MADE_UP = re.compile(
    r"(?:.*/)?(?:val_\d+|onnx::\w+_\d+|_?(?:scalar|const|constant)\w*)(?:_output_\d+)?$",
    re.IGNORECASE,
)


def variables(graph: ir.Graph, frozen: Collection[str] = ()) -> list[ir.Value]:
    """The initializers that training changes.

    1. They hold floating-point numbers.
    2. They are no setting or running statistic of an operator (limits of `Clip`, mean and variance
       of `BatchNormalization`, a single exponent, ...) wherever they are read.
    3. They are not a single number under a name that an exporter made up: that is a constant of
       the program.
    4. They are no state of a pass (a reserved name), and not frozen.

    Args:
        graph: The main graph.
        frozen: Names that stay as they are.

    Returns:
        The weights in the graph's order.
    """
    return [
        value
        for name, value in graph.initializers.items()
        if value.dtype in FLOATING
        and name not in frozen
        and not name.startswith(RESERVED)
        and not _is_setting(value)
        and not _is_number(value)
    ]


def _is_setting(value: ir.Value) -> bool:
    uses = list(value.uses())
    return bool(uses) and all(
        index in _SETTINGS.get(node.op_type, ())
        # Exponents by channel are learnt, as in generalised-mean pooling.
        and (node.op_type != "Pow" or _is_single(value))
        for node, index in uses
    )


def _is_number(value: ir.Value) -> bool:
    return _is_single(value) and _MADE_UP.match(str(value.name)) is not None


def _is_single(value: ir.Value) -> bool:
    return value.shape is not None and all(dim == 1 for dim in value.shape)
