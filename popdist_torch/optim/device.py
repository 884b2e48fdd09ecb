"""Runs a program's optimizer on the values that an executor trains."""

from __future__ import annotations

import zlib
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.errors import OptimizerError
from popdist_torch.gradient_exchange import give_rows
from popdist_torch.optim.published_state import HALF
from popdist_torch.optim.scaled import Scaled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

FACTOR = "loss_scale_update_factor"
"""Where an optimizer keeps what automatic loss scaling multiplies its loss scaling with."""

_BITS = 0xFFFFFF


class DeviceOptimizer:
    """The program's optimizer, while an executor makes its steps.

    Hyper-parameters and state are the object's own, so a change of either holds from the next
    update on. What ``state_dict()`` returns is a copy: it stays as it is while training continues.

    Args:
        optimizer: The program's optimizer.
        divisor: What the sum of all gradients is divided by, beside the loss scaling.

    Raises:
        OptimizerError: The optimizer needs to call the model itself, or exchanges gradients itself.

    Attributes:
        optimizer: The program's optimizer.
        loaded: Whether a state was loaded since an executor last asked; it resets the flag.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, divisor: float = 1) -> None:
        _require_supported(optimizer)
        self.optimizer = optimizer
        self.loaded = isinstance(optimizer, Scaled) and optimizer.adopt_state()
        self._divisor = divisor
        self._constants = self._marked()
        self._moved = False
        self._widened: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
        self._hooks = [
            optimizer.register_state_dict_post_hook(_copied),
            optimizer.register_load_state_dict_post_hook(self._note_loaded),
        ]

    @property
    def loss_scaling(self) -> float:
        """Factor of the loss in backward passes."""
        return float(getattr(self.optimizer, "loss_scaling", 1.0)) * self.loss_scale_factor

    @property
    def loss_scale_factor(self) -> float:
        """The factor of automatic loss scaling, a part of `loss_scaling`."""
        return float(getattr(self.optimizer, FACTOR, 1.0))

    @loss_scale_factor.setter
    def loss_scale_factor(self, factor: float) -> None:
        # On the program's object it is saved and loaded with everything else.
        setattr(self.optimizer, FACTOR, factor)

    def parameters(self) -> list[torch.nn.Parameter]:
        """Everything that the optimizer updates."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def settings(self) -> int:
        """A digest of the hyper-parameters, in 24 bits."""
        stated: list[Any] = [type(self.optimizer).__name__, self.loss_scaling]
        for group in self.optimizer.param_groups:
            stated += [
                len(group["params"]),
                *map(_number, _hyper_parameters(group, self.optimizer)),
            ]
        return zlib.crc32(repr(stated).encode()) & _BITS

    def state(self) -> int:
        """A digest of the state, in 24 bits."""
        digest = 0
        for parameter in self.parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                digest = zlib.crc32(key.encode(), digest)
                if isinstance(value, torch.Tensor):
                    digest = digest_of(value, digest)
        return digest & _BITS

    def require_constants(self) -> None:
        """Checks that no setting has changed that the program marked as constant.

        Raises:
            OptimizerError: A setting has changed.
        """
        before, self._constants = self._constants, self._marked()
        for name, now in self._constants.items():
            if before.get(name, now) != now:
                raise OptimizerError(
                    "PD306",
                    f"{name} was marked as constant, and has changed",
                    value=now,
                    accepted=str(before[name]),
                    hint=f"call optimizer.variable_attrs.markAsVariable({name!r}) first",
                )

    def in_use(self) -> AbstractContextManager[None]:
        """Sets ``gradient_divisor`` on the optimizer, for the code inside."""
        self._move_state()
        optimizer = self.optimizer
        return self._dividing(optimizer) if isinstance(optimizer, Scaled) else nullcontext()

    @contextmanager
    def _dividing(self, optimizer: Scaled) -> Iterator[None]:
        before, optimizer.gradient_divisor = optimizer.gradient_divisor, self._divisor
        try:
            yield
        finally:
            optimizer.gradient_divisor = before

    def updating(self) -> AbstractContextManager[None]:
        """Wraps an update; weights have their own precision again at its end."""
        return self._narrowing() if isinstance(self.optimizer, Scaled) else nullcontext()

    @contextmanager
    def _narrowing(self) -> Iterator[None]:
        try:
            yield
        finally:
            widened, self._widened = self._widened, []
            for parameter, own in widened:
                gradient, parameter.grad = parameter.grad, None
                own.copy_(parameter.data)
                parameter.data = own
                if gradient is not None:
                    parameter.grad = gradient.to(own.dtype)

    def widen(self) -> None:
        """Makes half-precision weights and gradients single precision until the update's end.

        Only for the optimizers of PopTorch, whose moments are in single precision by default: in
        half precision, small gradients vanish when the loss scaling is divided out, and their
        squares vanish in any case.
        """
        if not isinstance(self.optimizer, Scaled):
            return
        for parameter in self.parameters():
            if parameter.dtype in HALF:
                gradient, parameter.grad = parameter.grad, None
                self._widened.append((parameter, parameter.data))
                parameter.data = parameter.data.float()
                if gradient is not None:
                    parameter.grad = gradient.float()

    def update(self) -> None:
        """Updates the weights from their gradients."""
        give_rows(self.optimizer, self.parameters())
        self.optimizer.step()

    def release(self) -> None:
        """Removes the hooks from the program's optimizer."""
        for hook in self._hooks:
            hook.remove()

    def _marked(self) -> dict[str, Any]:
        if not isinstance(self.optimizer, Scaled):
            return {}
        names = self.optimizer.variable_attrs.marked
        return {name: _values(self.optimizer, name) for name in names}

    def _move_state(self) -> None:
        """Moves loaded state to the device of the parameters."""
        if self._moved:
            return
        self._moved = True
        for group in self.optimizer.param_groups:
            counted = bool(group.get("fused") or group.get("capturable"))  # on the device too
            for parameter in group["params"]:
                state = self.optimizer.state.get(parameter, {})
                for key, value in state.items():
                    if isinstance(value, torch.Tensor) and (
                        value.shape == parameter.shape or (counted and key == "step")
                    ):
                        state[key] = value.to(parameter.device)

    def _note_loaded(self, _optimizer: torch.optim.Optimizer) -> None:
        self.loaded = True
        self._moved = False


def digest_of(tensor: torch.Tensor, start: int = 0) -> int:
    """A 32-bit digest of a tensor's values; ``start`` is the digest of earlier tensors."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().data, start) if flat.numel() else start


def _require_supported(optimizer: torch.optim.Optimizer) -> None:
    if isinstance(optimizer, torch.optim.LBFGS):
        raise OptimizerError(
            "PD306",
            "LBFGS calls the model several times per update, which trainingModel does not support",
            value="LBFGS",
            hint="use another optimizer, or a plain loop with popdist_torch.horovod",
        )
    if hasattr(optimizer, "skip_synchronize"):
        raise OptimizerError(
            "PD306",
            "a DistributedOptimizer exchanges gradients itself, and so does trainingModel",
            value=type(optimizer).__name__,
            hint="give trainingModel the optimizer that DistributedOptimizer was made from",
        )


_HOW = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""Settings that say how an update is computed, not what it is."""


def _hyper_parameters(group: dict[str, Any], optimizer: torch.optim.Optimizer) -> list[Any]:
    return [group[name] for name in optimizer.defaults if name in group and name not in _HOW]


def _number(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return value if isinstance(value, int | float | tuple | list | str | None) else ""


def _values(optimizer: torch.optim.Optimizer, name: str) -> list[Any]:
    if name in optimizer.defaults:
        return [group[name] for group in optimizer.param_groups]
    return [getattr(optimizer, name)]


def _copied(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Copies the tensors of a ``state_dict`` to where the program sees its parameters."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def copied(index: Any, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        value = value.detach().clone()
        known = isinstance(index, int) and index < len(parameters)
        suits = known and value.shape == parameters[index].shape
        return value.to(parameters[index].device) if suits else value

    state = {
        index: {key: copied(index, value) for key, value in values.items()}
        if isinstance(values, dict)
        else values
        for index, values in state_dict["state"].items()
    }
    return {**state_dict, "state": state}
