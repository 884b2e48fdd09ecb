"""Runs a program's optimizer on the executor's copy of the weights."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.errors import OptimizerError
from popdist_torch.optim.scaled import Scaled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NOT_SHARED = frozenset({"param_groups", "state", "step"})
"""Attributes of an optimizer that its twin has of its own; schedulers replace ``step``."""

FACTOR = "loss_scale_update_factor"
"""Where an optimizer keeps what automatic loss scaling multiplies its loss scaling with."""


class DeviceOptimizer:
    """A twin of the program's optimizer that updates the executor's parameters.

    The program's object stays the place where hyper-parameters are read and state is looked at:
    ``state_dict()`` on it brings the twin's state, ``load_state_dict()`` is taken over by the next
    `reread`.

    Args:
        host: The program's optimizer.
        pairs: Every parameter of the program's module with the executor's copy.
        divisor: What the sum of all gradients is divided by, beside the loss scaling.

    Raises:
        OptimizerError: The optimizer updates something that is no parameter of the model, or needs
            to call the model itself.
    """

    def __init__(
        self,
        host: torch.optim.Optimizer,
        pairs: Sequence[tuple[torch.nn.Parameter, torch.nn.Parameter]],
        divisor: int = 1,
    ) -> None:
        if isinstance(host, torch.optim.LBFGS):
            raise OptimizerError(
                "PD306", "LBFGS calls the model several times per update", value="LBFGS"
            )
        self._host = host
        self._divisor = divisor
        self._twin_of = dict(pairs)
        self._newer = False
        self._host_changed = False
        self._twin = self._make_twin()
        self._take_state()
        self._hooks = [
            host.register_state_dict_pre_hook(lambda _optimizer: self.state_to_host()),
            host.register_load_state_dict_post_hook(self._note_loaded),
        ]

    @property
    def host(self) -> torch.optim.Optimizer:
        """The program's optimizer."""
        return self._host

    @property
    def loss_scaling(self) -> float:
        """Factor of the loss in backward passes, as last read from the program's optimizer."""
        return float(getattr(self._twin, "loss_scaling", 1.0)) * self.loss_scale_factor

    @property
    def loss_scale_factor(self) -> float:
        """The part of it that automatic loss scaling sets."""
        return float(getattr(self._host, FACTOR, 1.0))

    @loss_scale_factor.setter
    def loss_scale_factor(self, factor: float) -> None:
        # On the program's object it is saved and loaded with everything else.
        setattr(self._host, FACTOR, factor)
        setattr(self._twin, FACTOR, factor)

    def trained(self) -> list[torch.nn.Parameter]:
        """The executor's parameters that the optimizer updates.

        Returns:
            Those that require gradients, in the order of the model.
        """
        own = {id(p) for group in self._twin.param_groups for p in group["params"]}
        return [p for p in self._twin_of.values() if id(p) in own and p.requires_grad]

    def update(self) -> None:
        """Updates the weights from their gradients."""
        self._twin.step()
        # Schedulers ask the program's object whether it has stepped.
        self._host._opt_called = True  # type: ignore[attr-defined]  # noqa: SLF001
        self._newer = True

    def reread(self) -> None:
        """Takes hyper-parameters, and state loaded meanwhile, from the program's object.

        Raises:
            OptimizerError: An attribute has changed that the program marked as constant.
        """
        self._require_constants()
        twin, state = self._make_twin(), self._twin.state
        twin.state = state
        self._twin = twin
        if self._host_changed:
            self._take_state()

    def state_to_host(self) -> None:
        """Copies the state into the program's object where it is older."""
        if self._newer:
            self._newer = False
            for host, device in self._twin_of.items():
                if device in self._twin.state:
                    self._host.state[host] = _copied(self._twin.state[device], host)

    def release(self) -> None:
        """Leaves the program's object alone from here on, with the newest state."""
        self.state_to_host()
        for hook in self._hooks:
            hook.remove()

    def _make_twin(self) -> torch.optim.Optimizer:
        twin: torch.optim.Optimizer = object.__new__(type(self._host))
        twin.__dict__.update({k: v for k, v in self._host.__dict__.items() if k not in _NOT_SHARED})
        twin.param_groups = [
            {**group, "params": self._twins(group["params"])} for group in self._host.param_groups
        ]
        twin.state = defaultdict(dict)
        if isinstance(twin, Scaled):
            twin.gradient_divisor = self._divisor
        return twin

    def _require_constants(self) -> None:
        if not isinstance(self._host, Scaled):
            return
        for name in self._host.variable_attrs.marked:
            before, now = _values(self._twin, name), _values(self._host, name)
            if before != now:
                raise OptimizerError(
                    "PD306",
                    f"{name} was marked as constant, and has changed",
                    value=now,
                    accepted=str(before),
                    hint=f"call optimizer.variable_attrs.markAsVariable({name!r}) first",
                )

    def _twins(self, parameters: Iterable[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
        strangers = [p for p in parameters if p not in self._twin_of]
        if strangers:
            raise OptimizerError(
                "PD306",
                "the optimizer updates tensors that are no parameters of the model",
                value=[list(p.shape) for p in strangers],
                hint="build the optimizer from model.parameters() of the model that is wrapped",
            )
        return [self._twin_of[p] for p in parameters]

    def _take_state(self) -> None:
        self._host_changed = self._newer = False
        for host, device in self._twin_of.items():
            if host in self._host.state:
                self._twin.state[device] = _copied(self._host.state[host], device)

    def _note_loaded(self, _optimizer: torch.optim.Optimizer) -> None:
        self._host_changed = True
        self._newer = False


def _values(optimizer: torch.optim.Optimizer, name: str) -> list[Any]:
    if name in optimizer.defaults:
        return [group[name] for group in optimizer.param_groups]
    return [getattr(optimizer, name)]


def _copied(state: dict[str, Any], target: torch.Tensor) -> dict[str, Any]:
    """Copies one parameter's state; what is shaped like it goes where it lives."""

    def copied(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return (
            value.detach()
            .clone()
            .to(target.device if value.shape == target.shape else value.device)
        )

    return {key: copied(value) for key, value in state.items()}
