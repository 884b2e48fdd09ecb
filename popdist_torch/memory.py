"""The memory of tensors, sparse ones too, which torch gives no storage of their own."""

from __future__ import annotations

import torch


def dense_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The strided tensors of which a tensor consists: itself, or its indices and its values."""
    if tensor.layout is torch.strided:
        return (tensor,)
    if tensor.layout is torch.sparse_coo:
        return (tensor._indices(), tensor._values())  # noqa: SLF001 - the public ones must coalesce
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    return ()  # such as oneDNN's, whose layout is its own


def addresses(tensor: torch.Tensor) -> set[int]:
    """Where the memory of a tensor begins; a sparse tensor has several places."""
    return {part.untyped_storage().data_ptr() for part in dense_parts(tensor)}


def size(tensor: torch.Tensor) -> int:
    """The bytes of a tensor, and of a sparse one's indices and values."""
    return sum(part.nbytes for part in dense_parts(tensor))
