"""Functions that models call: annotations, control flow, hints, losses and decoding."""

from __future__ import annotations

from popdist_torch.ops.annotations import (
    Attribute,
    BeginBlock,
    Block,
    BlockFunction,
    MultiConv,
    NameScope,
    module_repr,
    removeBlocks,
)
from popdist_torch.ops.control_flow import cond, dynamic_slice, dynamic_update, for_loop
from popdist_torch.ops.ctc import ctc_beam_search_decoder
from popdist_torch.ops.custom import custom_op, host_op
from popdist_torch.ops.hints import (
    CPU,
    identity_loss,
    ipu_print_tensor,
    nop,
    serializedMatMul,
    set_available_memory,
    set_overlap_for_input,
    set_overlap_for_output,
)
from popdist_torch.ops.library import LIBRARY as _LIBRARY
from popdist_torch.ops.recomputation import recomputationCheckpoint
from popdist_torch.ops.running import isRunningOnIpu

__all__ = [
    "CPU",
    "_LIBRARY",
    "Attribute",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "MultiConv",
    "NameScope",
    "cond",
    "ctc_beam_search_decoder",
    "custom_op",
    "dynamic_slice",
    "dynamic_update",
    "for_loop",
    "host_op",
    "identity_loss",
    "ipu_print_tensor",
    "isRunningOnIpu",
    "module_repr",
    "nop",
    "recomputationCheckpoint",
    "removeBlocks",
    "serializedMatMul",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
]
