"""``torch.ops.poptorch.*``: operators that programs call by their registered names.

They are compositions of torch's own operations, so they have gradients and run on any device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from popdist_torch.errors import OptionValueError
from popdist_torch.ops import ctc, hints
from popdist_torch.ops.hints import identity_loss
from popdist_torch.ops.recomputation import recomputationCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable

_CASTS = {
    "FLOAT": torch.float32,
    "FLOAT32": torch.float32,
    "FLOAT16": torch.float16,
    "HALF": torch.float16,
    "INT": torch.int32,
    "INT32": torch.int32,
    "LONG": torch.int64,
    "INT64": torch.int64,
    "BOOL": torch.bool,
}
_REDUCTIONS = ("sum", "mean", "none")


def _cast(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    if dtype.upper() not in _CASTS:
        raise OptionValueError(
            "PD300",
            "internal_cast does not support this type",
            value=dtype,
            accepted=", ".join(_CASTS),
        )
    return tensor.to(_CASTS[dtype.upper()])


def _nothing(*_args: Any) -> None:
    """Marks a place in the model for an IPU's compiler."""


def _same(tensor: torch.Tensor, *_args: Any) -> torch.Tensor:
    return hints.nop(tensor)


OPERATORS: dict[str, Callable[..., Any]] = {
    "push_name_scope(str name) -> ()": _nothing,
    "pop_name_scope() -> ()": _nothing,
    "begin_ipu_block(int stage_id, int phase_id, int ipu_id) -> ()": _nothing,
    "end_ipu_block() -> ()": _nothing,
    "begin_multi_conv() -> ()": _nothing,
    "set_attribute(str attribute, str key, str value) -> ()": _nothing,
    "clear_attribute(str attribute, str key) -> ()": _nothing,
    "internal_cast(Tensor self, str dtype) -> Tensor": _cast,
    "nop(Tensor self) -> Tensor": _same,
    "recomputation_checkpoint(Tensor self) -> Tensor": lambda x: _same(recomputationCheckpoint(x)),
    "set_available_memory(Tensor self, float proportion) -> Tensor": _same,
    "set_matmul_serialization(Tensor self, str mode, int factor, bool keep) -> Tensor": _same,
    "set_overlap_for_input(Tensor self, str mode) -> Tensor": _same,
    "set_overlap_for_output(Tensor self, str mode) -> Tensor": _same,
    "identity_loss(Tensor self, int reduction) -> Tensor": lambda x, reduction: identity_loss(
        x, _REDUCTIONS[reduction]
    ),
    "ipu_print_tensor(Tensor self, str title='') -> Tensor": hints.ipu_print_tensor,
    "ctc_beam_search_decoder(Tensor probs, Tensor lengths, int blank, int width, int paths)"
    " -> (Tensor, Tensor, Tensor)": ctc.ctc_beam_search_decoder,
}
"""Every registered operator: its schema, and what it computes."""


def register() -> Any:
    """Registers the operators.

    Returns:
        What keeps them registered; None where Graphcore's own library has done it.
    """
    if hasattr(torch.ops.poptorch, "push_name_scope"):
        return None
    library = cast("Any", torch.library.Library)("poptorch", "DEF")  # torch gives it no types
    for schema, function in OPERATORS.items():
        name = library.define(schema)
        has_tensors = "Tensor" in schema
        kind = "CompositeImplicitAutograd" if has_tensors else "CompositeExplicitAutograd"
        library.impl(name, function, kind)
    return library


LIBRARY = register()
