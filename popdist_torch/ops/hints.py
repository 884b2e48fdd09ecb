"""Hints for an IPU's compiler, code that runs on the CPU, and the marker of losses.

On a host the hints check their arguments and return the tensor.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import handle_torch_function, has_torch_function_unary
from torch.utils import _pytree as pytree

from popdist_torch.errors import OptionValueError
from popdist_torch.options.enums import MatMulSerializationMode, OverlapMode
from popdist_torch.options.option_methods import member, stored_only

if TYPE_CHECKING:
    from collections.abc import Callable


def nop(tensor: torch.Tensor) -> torch.Tensor:
    """Does nothing.

    Args:
        tensor: Any tensor.

    Returns:
        The tensor, as another object.
    """
    return tensor.view_as(tensor)


def set_available_memory(tensor: torch.Tensor, available_memory_proportion: float) -> torch.Tensor:
    """Stores how much memory the operation behind a tensor may use.

    Args:
        tensor: Its result.
        available_memory_proportion: A fraction from 0 to 1.

    Returns:
        The tensor.

    Raises:
        OptionValueError: No such fraction.
    """
    if not 0 <= available_memory_proportion <= 1:
        raise OptionValueError(
            "PD300",
            "set_available_memory takes a fraction",
            value=available_memory_proportion,
            accepted="0 to 1",
        )
    stored_only("set_available_memory")
    return tensor


def set_overlap_for_input(input_tensors: Any, mode: OverlapMode) -> Any:
    """Stores how the transfer of inputs overlaps with computation.

    Args:
        input_tensors: Any nesting of tensors.
        mode: How.

    Returns:
        The same.
    """
    member("set_overlap_for_input", mode, OverlapMode)
    stored_only("set_overlap_for_input")
    return input_tensors


def set_overlap_for_output(output_tensors: Any, mode: OverlapMode) -> Any:
    """Stores how the transfer of outputs overlaps with computation.

    Args:
        output_tensors: Any nesting of tensors.
        mode: How.

    Returns:
        The same.
    """
    member("set_overlap_for_output", mode, OverlapMode)
    stored_only("set_overlap_for_output")
    return output_tensors


def serializedMatMul(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    mode: MatMulSerializationMode,
    factor: int = 0,
    keep_precision: bool = False,
) -> torch.Tensor:
    """A matrix product, which an IPU computes piece by piece.

    Args:
        lhs: The left factor, ``[..., rows, inner]``, as for ``torch.matmul``.
        rhs: The right factor, ``[..., inner, columns]``, of the same dtype.
        mode: The dimension that is divided: rows (``InputChannels``), ``inner`` (``ReducingDim``),
            columns (``OutputChannels``), or none (``Disabled``).
        factor: The number of pieces; it divides that dimension.
        keep_precision: No effect on a host.

    Returns:
        The product, ``[..., rows, columns]``, as of ``torch.matmul``.

    Raises:
        OptionValueError: The dimension cannot be cut like that.
    """
    del keep_precision
    kind = member("serializedMatMul", mode, MatMulSerializationMode)
    size = {
        MatMulSerializationMode.InputChannels: lhs.shape[-2] if lhs.dim() > 1 else 1,
        MatMulSerializationMode.ReducingDim: rhs.shape[-2] if rhs.dim() > 1 else rhs.shape[0],
        MatMulSerializationMode.OutputChannels: rhs.shape[-1],
    }.get(kind)
    if size is not None and (factor < 1 or size % factor):
        raise OptionValueError(
            "PD300",
            f"serializedMatMul cannot cut {size} {kind.value} into equal pieces",
            value=factor,
            accepted=f"a divisor of {size}",
        )
    return torch.matmul(lhs, rhs)


def ipu_print_tensor(
    tensor: torch.Tensor,
    title: str = "",
    print_gradient: bool = True,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 75,
    digits: int = 4,
    float_format: str = "auto",
    separator: str = ", ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> torch.Tensor:
    """Prints a tensor to standard error, and its gradient when that is known.

    Args:
        tensor: The tensor.
        title: A name that is printed before the values.
        print_gradient: Whether the gradient is printed as well.
        summarise_threshold: The number of elements above which only edges are printed.
        edge_items: The number of elements printed at each edge of a dimension.
        max_line_width: The number of characters in a line.
        digits: The number of digits after the point.
        float_format: Accepted, as the next three: numbers are laid out as torch does.
        separator: As above.
        open_bracket: As above.
        close_bracket: As above.

    Returns:
        A tensor that prints; use this one from here on, as on an IPU.
    """
    del float_format, separator, open_bracket, close_bracket

    def show(value: torch.Tensor, name: str) -> None:
        before = torch._tensor_str.PRINT_OPTS  # noqa: SLF001 - torch offers no way to read them
        kept = {k: getattr(before, k) for k in ("threshold", "edgeitems", "linewidth", "precision")}
        torch.set_printoptions(  # type: ignore[no-untyped-call]
            threshold=summarise_threshold,
            edgeitems=edge_items,
            linewidth=max_line_width,
            precision=digits,
        )
        try:
            sys.stderr.write(f"{name}: {value.detach()}\n")
        finally:
            torch.set_printoptions(**kept)  # type: ignore[no-untyped-call]

    name = title or "tensor"
    show(tensor, name)
    shown = nop(tensor)
    if print_gradient and shown.requires_grad:
        shown.register_hook(  # type: ignore[no-untyped-call]
            lambda gradient: show(gradient, f"gradient of {name}")
        )
    return shown


# Code that a model runs on the CPU.


class CPU:
    """Calls a function with its tensors on the CPU, from wherever the model runs.

    Gradients flow through it. Results go back to the device of the first tensor.

    Args:
        layer_to_call: The function or module.
        ID: Name of the operation.
    """

    def __init__(self, layer_to_call: Callable[..., Any], ID: str = "") -> None:
        self._layer = layer_to_call
        self._name = ID

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        """Calls the function.

        Args:
            *inputs: Its arguments.
            **kwargs: As above.

        Returns:
            What it returned.
        """
        tensors = [
            leaf for leaf in pytree.tree_leaves((inputs, kwargs)) if isinstance(leaf, torch.Tensor)
        ]
        home = tensors[0].device if tensors else torch.device("cpu")
        args, named = pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, (inputs, kwargs))
        result = self._layer(*args, **named)
        return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(home), result)


# Marks a value as the loss.


_REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": torch.clone,
    "mean": torch.mean,
    "sum": torch.sum,
}


def identity_loss(x: torch.Tensor, reduction: str) -> torch.Tensor:
    """Marks a value as the loss that training minimises.

    Args:
        x: A floating-point tensor of any shape.
        reduction: ``"none"`` keeps the shape, ``"mean"`` and ``"sum"`` reduce over all elements.

    Returns:
        The marked value, of the dtype of ``x``; a scalar for ``"mean"`` and ``"sum"``. Training
        differentiates the sum of its elements.

    Raises:
        OptionValueError: ``reduction`` is none of the three.
    """
    # Lets a mode that watches torch functions see this one call, as it sees those of torch.
    if has_torch_function_unary(x):
        return handle_torch_function(identity_loss, (x,), x, reduction)
    if reduction not in _REDUCTIONS:
        raise OptionValueError(
            "PD303",
            "identity_loss does not support this reduction",
            value=reduction,
            accepted="'none', 'mean' or 'sum'",
        )
    marked: torch.Tensor = _REDUCTIONS[reduction](x)
    return marked
