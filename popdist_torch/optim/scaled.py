"""The base of PopTorch's optimizers: loss scaling, clipping, accumulator types, own steps."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from popdist_torch.errors import OptimizerError
from popdist_torch.optim import published_state
from popdist_torch.optim.published_state import FACTOR, HALF
from popdist_torch.options.option_methods import stored_only

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from typing_extensions import Self, TypedDict

    class Extras(TypedDict, total=False):
        """What every optimizer takes; see `Scaled`."""

        loss_scaling: float | None
        accum_type: torch.dtype | None

    class MomentExtras(Extras, total=False):
        """What optimizers with two moments take."""

        first_order_momentum_accum_type: torch.dtype | None
        second_order_momentum_accum_type: torch.dtype | None

    class ClippingExtras(MomentExtras, total=False):
        """What those take that clip."""

        max_grad_norm: float | None

    from collections.abc import Callable


# Constant and variable settings of an optimizer.


class VariableAttributes:
    """``optimizer.variable_attrs``.

    By the published rule attributes are variable where the program gave them to the constructor,
    and constant otherwise. A host can change them all; what it refuses to change are attributes
    that the program itself marked as constant.

    Args:
        constant: Whether each attribute is constant.
    """

    def __init__(self, constant: dict[str, bool]) -> None:
        self._constant = constant
        self._marked: set[str] = set()

    @property
    def marked(self) -> frozenset[str]:
        """What the program marked as constant."""
        return frozenset(self._marked)

    def isConstant(self, attr: str) -> bool:
        """Whether an attribute is constant.

        Args:
            attr: Its name.

        Returns:
            True if so.

        Raises:
            OptimizerError: There is no such attribute.
        """
        return self._constant[self._known(attr)]

    def markAsConstant(self, attr: str) -> None:
        """Makes an attribute constant: changing it later is an error.

        Args:
            attr: Its name.

        Raises:
            OptimizerError: There is no such attribute.
        """
        self._constant[self._known(attr)] = True
        self._marked.add(attr)

    def markAsVariable(self, attr: str) -> None:
        """Makes an attribute variable.

        Args:
            attr: Its name.

        Raises:
            OptimizerError: There is no such attribute.
        """
        self._constant[self._known(attr)] = False
        self._marked.discard(attr)

    def _known(self, attr: str) -> str:
        if attr not in self._constant:
            raise OptimizerError(
                "PD306",
                "the optimizer has no such attribute",
                value=attr,
                accepted=", ".join(sorted(self._constant)),
            )
        return attr


MOMENT_TYPES = (
    "accum_type",
    "first_order_momentum_accum_type",
    "second_order_momentum_accum_type",
)
"""The types of accumulators that optimizers with two moments take."""

ADAM_STATE = {"exp_avg": ("Accl1", 1.0), "exp_avg_sq": ("Accl2", 1.0), "step": ("Step", 1.0)}
"""`Scaled.moments` of optimizers with Adam's moments."""

_TYPES = (torch.float16, torch.float32)


class Scaled(torch.optim.Optimizer):
    """Extra settings of an optimizer, kept as its attributes.

    A change of one reaches the device with the next ``setOptimizer``.

    Attributes:
        loss_scaling: Factor of the loss in backward passes; gradients are divided by it before
            they are used.
        loss_scale_update_factor: What automatic loss scaling multiplies it with.
        max_grad_norm: Largest norm of all gradients together; None does not clip.
        gradient_divisor: What an executor has divided the sum of all gradients by, beside the loss
            scaling; None where no executor runs the optimizer.
        variable_attrs: Which attributes may change once the model is compiled.
        acting: Names of settings beyond torch's that act.
        only_stored: Names of settings that only an IPU uses.
        moments: What `accumulators` returns where no setting of a group changes it.
        unnamed_state: A loaded state in PopART's names, until the weights get their names.
    """

    acting: ClassVar[tuple[str, ...]] = ("loss_scaling",)

    only_stored: ClassVar[tuple[str, ...]] = ()
    moments: ClassVar[Mapping[str, tuple[str, float]]] = {}
    loss_scaling: float
    loss_scale_update_factor: float = 1.0
    max_grad_norm: float | None = None
    gradient_divisor: float | None = None
    variable_attrs: VariableAttributes
    unnamed_state: dict[str, torch.Tensor] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Makes None stand for the default of each published argument, as in PopTorch."""
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith(f"{__package__}.") and "__init__" in vars(cls):
            cls.__init__ = _with_defaults(cls.__init__)  # type: ignore[method-assign]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Notes which arguments the program gives: their attributes are variable."""
        made = super().__new__(cls)
        given = inspect.signature(cls.__init__).bind_partial(made, *args, **kwargs).arguments
        given |= given.pop("extras", {})
        names = {name for name, value in given.items() if value is not None} - {"self", "params"}
        made.__dict__["_given"] = frozenset(names)
        return made

    def _set_extras(
        self,
        loss_scaling: float | None = None,
        max_grad_norm: float | None = None,
        **stored: Any,
    ) -> None:
        """Checks and keeps the extra settings.

        Args:
            loss_scaling: See the class; None for 1.
            max_grad_norm: See the class.
            **stored: What only an IPU uses; stored under these names.

        Raises:
            OptimizerError: A setting is not positive, or no type of accumulators.
            TypeError: There is no such setting.
        """
        given_here = {*stored, *(("max_grad_norm",) if max_grad_norm is not None else ())}
        unknown = sorted(given_here - {*self.acting, *self.only_stored})
        if unknown:
            raise TypeError(f"{type(self).__name__}() has no argument {unknown[0]!r}")
        scaling = 1.0 if loss_scaling is None else loss_scaling
        self.loss_scaling = positive("loss_scaling", scaling)
        if max_grad_norm is not None:
            self.max_grad_norm = positive("max_grad_norm", max_grad_norm)
        for name in self.only_stored:
            value = stored.get(name)
            if name.endswith("_type") and value is not None and value not in _TYPES:
                raise OptimizerError(
                    "PD306",
                    f"{name} is a type of accumulators",
                    value=value,
                    accepted="torch.float16 or torch.float32",
                )
            if value is not None:
                stored_only(f"{type(self).__name__}({name}=...)")
            setattr(self, name, value)
        names = {*self.acting, *self.only_stored, *self.defaults}
        given: frozenset[str] = self.__dict__.pop("_given")
        self.variable_attrs = VariableAttributes({name: name not in given for name in names})

    def __getstate__(self) -> dict[str, Any]:
        # Torch's own leaves out what its classes do not know, so that copies would lack it. What
        # hides a method belongs to a scheduler, which wraps `step` of this object alone.
        own = {
            key: value
            for key, value in self.__dict__.items()
            if not key.startswith("_") and not callable(getattr(type(self), key, None))
        }
        return {**own, **super().__getstate__()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.pop("_given", None)
        super().__setstate__(state)

    def accumulators(self, group: dict[str, Any]) -> dict[str, tuple[str, float]]:
        """PopART's prefix of each tensor that torch keeps for a weight of a group, and its factor.

        Args:
            group: The group.

        Returns:
            Torch's keys with the prefix, and how many times larger PopART's values are.
        """
        del group
        return dict(self.moments)

    def first_value(self, key: str, shape: torch.Size) -> torch.Tensor:
        """What a tensor of the state is before the first update.

        Args:
            key: Torch's key.
            shape: The shape of the weight.

        Returns:
            Zeros, by default.
        """
        return torch.tensor(0.0) if key == "step" else torch.zeros(shape)

    def state_dict(self) -> dict[str, Any]:
        """Torch's state, and the same under the names that PopTorch's programs know.

        Returns:
            Torch's keys; ``ipu_state`` with every tensor by PopART's prefix and the name of its
            weight (outside of a wrapped model, the index), and ``ipu_param`` with the settings.
            Both are None before the first update, or until a model is compiled.
        """
        of_torch = super().state_dict()
        flat = published_state.states(self, of_torch["state"])
        has_state = bool(flat) or published_state.is_named(self)
        return {
            **of_torch,
            "ipu_state": flat if has_state else None,
            "ipu_param": published_state.settings(self) if has_state else None,
        }

    def adopt_state(self) -> bool:
        """Uses a loaded state in PopART's names; returns whether there was any."""
        given, self.unnamed_state = self.unnamed_state, None
        published_state.adopt(self, given or {})
        return bool(given)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state; that of half-precision weights keeps its own precision.

        Args:
            state_dict: What `state_dict` returned, here or on an IPU. Moments of an IPU are used
                from when a model that has the weights is compiled.
        """
        super().load_state_dict(state_dict)
        parameters = [p for group in self.param_groups for p in group["params"]]
        for index, values in state_dict["state"].items():
            weight = parameters[index]
            for name, value in values.items() if weight.dtype in HALF else ():
                if isinstance(value, torch.Tensor) and value.shape == weight.shape:
                    self.state[weight][name] = value.detach().clone().to(weight.device)
        given = state_dict.get("ipu_state") or {}
        if FACTOR in given:
            self.loss_scale_update_factor = float(given[FACTOR])
        if not state_dict["state"]:
            self.unnamed_state = dict(given)
            if published_state.is_named(self):
                self.adopt_state()


def _with_defaults(init: Callable[..., None]) -> Callable[..., None]:
    """A constructor that takes None for the default of any argument that has one."""
    signature = inspect.signature(init)
    defaults = {name: parameter.default for name, parameter in signature.parameters.items()}

    @functools.wraps(init)
    def made(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs)
        for name, value in given.arguments.items():
            if value is None and defaults[name] is not inspect.Parameter.empty:
                given.arguments[name] = defaults[name]
        init(*given.args, **given.kwargs)

    return made


def norm(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """The norm of all elements of some tensors: a scalar, on their device."""
    parts = torch._foreach_norm(list(tensors))  # noqa: SLF001 - one call for all of them
    size: torch.Tensor = torch.linalg.vector_norm(torch.stack(list(parts)))
    return size


def clip_factor(limit: float, tensors: Sequence[torch.Tensor], scale: float = 1.0) -> torch.Tensor:
    """PopART's ``limit / max(limit, norm)``, with the norm of ``scale`` times the tensors."""
    size = norm(tensors) * scale
    return limit / size.clamp(min=limit)


def positive(name: str, value: Any) -> float:
    """The value of a setting, which must be positive.

    Raises:
        OptimizerError: It is not.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise OptimizerError("PD306", f"{name} must be positive", value=value)
    return float(value)


# Optimizers whose update is implemented here, instead of by torch.


class OwnStep(Scaled):
    """A step that updates each weight by `_update`."""

    # Complete on its own: torch runs step hooks once more in a step that calls its parent's.
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Updates the parameters from their gradients.

        Args:
            closure: Evaluates the model first.

        Returns:
            What ``closure`` returned.
        """
        with torch.enable_grad():
            loss = None if closure is None else closure()
        self._update_all()
        return loss

    def _update_all(self) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, weight.grad, group)

    def _update(self, weight: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError
