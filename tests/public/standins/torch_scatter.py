"""The sum of torch-scatter, whose compiled part is not on PyPI for this PyTorch."""

import torch


def scatter_sum(src, index, dim=-1, out=None, dim_size=None):
    """Adds the parts of ``src`` that have the same index."""
    if out is None:
        shape = list(src.shape)
        shape[dim] = int(index.max()) + 1 if dim_size is None else dim_size
        out = torch.zeros(shape, dtype=src.dtype)
    return out.index_add(dim, index, src)
