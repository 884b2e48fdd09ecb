"""The functions of torch-scatter, whose compiled part is not on PyPI for this PyTorch."""

import functools

import torch

_NAMES = {"sum": "sum", "add": "sum", "mul": "prod", "mean": "mean", "min": "amin", "max": "amax"}


def scatter(src, index, dim=-1, out=None, dim_size=None, reduce="sum"):
    """Reduces the parts of ``src`` with the same index; the rest is zero, or one for products."""
    dim %= src.dim()
    if index.dim() == 1:
        index = index.view((1,) * dim + (-1,))
    index = index.view(index.shape + (1,) * (src.dim() - index.dim())).expand_as(src)
    if out is None:
        shape = list(src.shape)
        shape[dim] = int(index.max()) + 1 if dim_size is None else dim_size
        out = torch.full(shape, int(reduce == "mul"), dtype=src.dtype)
        return out.scatter_reduce(dim, index, src, _NAMES[reduce], include_self=False)
    return out.scatter_reduce_(dim, index, src, _NAMES[reduce])


scatter_sum = functools.partial(scatter, reduce="sum")
scatter_add = scatter_sum
