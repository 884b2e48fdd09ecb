"""``DistributedOptimizer``: exchanges gradients while backward passes run. Step 6 of Horovod's six.

Unlike Horovod, it does not construct the optimizer again: the optimizer keeps its ``step``, its
state, its hooks and its schedulers. The exchange ends with the backward pass (see `passes`); a hook
before ``step`` exchanges the gradients that no complete pass did.
"""

from __future__ import annotations

import copy
import copyreg
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.errors import PlainLoopError
from popdist_torch.horovod.passes import Passes
from popdist_torch.horovod.world import connected
from popdist_torch.unexchanged import watch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Distributed:
    """What `DistributedOptimizer` adds to an optimizer."""

    _popdist_passes: Passes | None
    _popdist_waits: bool
    _popdist_settings: dict[str, Any]

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.optim.Optimizer:
        """A copy over the copied parameters; all processes must make it."""
        copied = _plain(self, memo)
        memo[id(self)] = copied
        passes = self._popdist_passes
        names = {} if passes is None else passes.names()
        pairs = zip(_parameters(self), _parameters(copied), strict=True)
        named = [(names[id(before)], now) for before, now in pairs] if names else None
        return DistributedOptimizer(copied, named, **self._popdist_settings)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Makes files hold the optimizer that was given, which exchanges nothing."""
        return copyreg._reconstructor, (_kind(self), object, None), self.__getstate__()  # type: ignore[attr-defined]  # noqa: SLF001 - needs no popdist to be read

    def synchronize(self) -> None:
        """Makes gradients those of all processes, where the last backward pass did not.

        Needed only where a step ends early: with fewer backward passes than
        ``backward_passes_per_step``, in `no_sync`, or where some process had no backward pass. All
        processes must call it then, before anything that reads gradients.
        """
        if self._popdist_passes is not None:
            self._popdist_passes.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Lets ``step`` take gradients as they are, after `synchronize`.

        Yields:
            Nothing.
        """
        self._popdist_waits = False
        try:
            yield
        finally:
            self._popdist_waits = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Lets backward passes inside add to local gradients only.

        The first pass outside exchanges the sum, as with torch's ``DistributedDataParallel``.

        Yields:
            Nothing.
        """
        if self._popdist_passes is None:
            yield
            return
        with self._popdist_passes.held():
            yield

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters, whose gradients are exchanged from now on.

        Args:
            param_group: As in torch; the same on every process.
        """
        super().add_param_group(param_group)  # type: ignore[misc]  # the optimizer's own
        if self._popdist_passes is not None:
            groups = self.param_groups  # type: ignore[attr-defined]
            number, parameters = len(groups) - 1, groups[-1]["params"]
            self._popdist_passes.adopt(
                {_numbered(index, number): parameter for index, parameter in enumerate(parameters)}
            )

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets how many backward passes are added up before gradients are exchanged.

        Args:
            passes: The number.
        """
        if self._popdist_passes is not None:
            self._popdist_passes.per_step = passes

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Resets the gradients.

        Args:
            set_to_none: As in torch.

        Raises:
            PlainLoopError: Gradients are being exchanged; they would be written afterwards.
        """
        if self._popdist_passes is not None:
            self._popdist_passes.reset()
        super().zero_grad(set_to_none)  # type: ignore[misc]  # the optimizer's own


def _kind(optimizer: Any) -> Any:
    """The class of a distributed optimizer before it was distributed."""
    return type(optimizer).__mro__[2]


def _plain(optimizer: Any, memo: dict[int, Any]) -> Any:
    """A copy of a distributed optimizer that exchanges nothing."""
    kind = _kind(optimizer)
    copied = kind.__new__(kind)
    copied.__setstate__(copy.deepcopy(optimizer.__getstate__(), memo))
    return copied


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = None,
    backward_passes_per_step: int = 1,
    op: Any = None,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: Any = None,
    *,
    check_parameters: bool = True,
) -> torch.optim.Optimizer:
    """Makes an optimizer's steps use the gradients of all processes.

    Gradients are sent in slices, as soon as a backward pass has completed them, and are
    those of all processes when ``backward()`` returns: clip them, unscale them or log their norms
    as in one process. Those of ``backward_passes_per_step`` passes are added up, not averaged, as
    in Horovod, and are sent once; without it each pass exchanges. bfloat16 is sent as float32.

    LBFGS and optimizers that are not torch's own, which may decide by the loss that their closure
    returns, are given the average over all processes.

    Args:
        optimizer: Any optimizer of torch; it is changed in place.
        named_parameters: ``model.named_parameters()``, for messages.
        compression: ``Compression.none`` or ``Compression.fp16`` of Horovod.
        backward_passes_per_step: Backward passes per step.
        op: Horovod's ``Average`` (the default) or ``Sum``.
        gradient_predivide_factor: With ``Average``, divides gradients before they are added up and
            multiplies the sum with it.
        num_groups: Accepted; flat buffers need no groups.
        groups: As above.
        sparse_as_dense: Whether sparse gradients may be sent as dense ones; they are an error
            otherwise. ``SparseAdam`` still gets sparse ones, of all rows that any process had.
        process_set: None or the set of all processes.
        check_parameters: Whether processes are compared: before the first exchange the optimizer
            and the parameters' names, shapes, types and values; later the optimizer's settings,
            the number of updates, and weights that a program has changed between updates.

    Returns:
        The optimizer that was given, with ``synchronize``, ``skip_synchronize``, ``no_sync`` and
        ``set_backward_passes_per_step``.

    Raises:
        PlainLoopError: Something is asked for that would train wrongly, or is not offered.
    """
    del num_groups, groups
    _require_supported(op, process_set, backward_passes_per_step)
    wire = _wire(compression)
    _require_initialised(optimizer)
    kind = type(optimizer)
    if not issubclass(kind, Distributed):
        optimizer.__class__ = type(
            kind.__name__, (Distributed, kind), {"__module__": kind.__module__}
        )
    else:
        raise PlainLoopError("PD308", "the optimizer is distributed already", value=kind.__name__)
    horovod = connected()
    passes = None
    if horovod is not None:
        average = op is None or op == horovod.Average
        size = int(horovod.size())
        # A sum is the average of gradients that are multiplied as they come.
        # Gradients are multiplied before they are sent, in the pass that copies them; those that
        # are sent in half precision afterwards, because small ones would become zero.
        factors = (1.0 / size, 1.0)
        if average and (gradient_predivide_factor != 1 or wire is not None):
            factors = (1 / gradient_predivide_factor, gradient_predivide_factor / size)
        passes = Passes(
            optimizer,
            named(optimizer, named_parameters),
            horovod,
            per_step=backward_passes_per_step,
            factors=factors,
            copies=1 if average else size,
            wire=wire,
            dense=sparse_as_dense,
            check=check_parameters,
            label=f"popdist gradients of {kind.__name__}",
        )
        watch(int(horovod.rank()))
    settings = {
        "compression": compression,
        "backward_passes_per_step": backward_passes_per_step,
        "op": op,
        "gradient_predivide_factor": gradient_predivide_factor,
        "sparse_as_dense": sparse_as_dense,
        "process_set": process_set,
        "check_parameters": check_parameters,
    }
    optimizer.__dict__.update(
        _popdist_passes=passes, _popdist_waits=True, _popdist_settings=settings
    )
    optimizer.register_step_pre_hook(_before_step)
    if passes is not None:
        optimizer.register_step_post_hook(lambda *_: passes.stepped())
    return optimizer


def named(
    optimizer: torch.optim.Optimizer, given: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[str, torch.Tensor]:
    """All parameters by name, in the order of the optimizer's groups; frozen ones need no name.

    Raises:
        PlainLoopError: Names are missing, or given twice.
    """
    every = [
        (_numbered(index, number), parameter)
        for number, group in enumerate(optimizer.param_groups)
        for index, parameter in enumerate(group["params"])
    ]
    if given is None:
        return dict(every)
    pairs = _pairs(given)
    names = [name for name, _ in pairs]
    twice = (
        sorted({name for name in names if names.count(name) > 1})
        if len(set(names)) < len(names)
        else []
    )
    by_identity = {id(parameter): name for name, parameter in pairs}
    missing = [
        spelled
        for spelled, parameter in every
        if parameter.requires_grad and id(parameter) not in by_identity
    ]
    if twice or missing:
        raise PlainLoopError(
            "PD308",
            "named_parameters must name every parameter of the optimizer once",
            value=f"named twice: {twice}" if twice else f"not named: {missing}",
            accepted="model.named_parameters() of the model that the optimizer was built from",
        )
    return {by_identity.get(id(parameter), spelled): parameter for spelled, parameter in every}


def _pairs(given: Any) -> list[tuple[str, torch.Tensor]]:
    """Names with parameters, as a list."""
    wrong = [given] if isinstance(given, torch.nn.Module) else []
    pairs = [] if wrong else list(given)
    wrong += [p for p in pairs if not (isinstance(p, tuple) and isinstance(p[0], str))]
    if wrong:
        raise PlainLoopError(
            "PD308",
            "named_parameters takes names with parameters",
            value=type(wrong[0]).__name__,
            accepted="model.named_parameters() of the model that the optimizer was built from",
        )
    return pairs


def _numbered(index: int, group: int) -> str:
    return f"parameter {index} of group {group}"


def _before_step(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Ensures that the update uses global gradients; with a closure, after its passes."""
    passes: Passes | None = optimizer._popdist_passes  # noqa: SLF001 - set above
    if passes is None or not optimizer._popdist_waits:  # noqa: SLF001 - set above
        return None
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        passes.before_step()
        return None

    def exchanged() -> Any:
        loss = closure()
        passes.before_step()
        return passes.average(loss) if loss is not None and _may_decide(optimizer) else loss

    if "closure" in kwargs:
        return args, {**kwargs, "closure": exchanged}
    return (args[0], exchanged, *args[2:]), kwargs


def _may_decide(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer may decide by the loss; of torch's own, only LBFGS does."""
    known = type(optimizer).__module__.startswith(("torch.optim", "popdist_torch.optim"))
    return not known or isinstance(optimizer, torch.optim.LBFGS)


def _wire(compression: Any) -> torch.dtype | None:
    name = getattr(compression, "__name__", "NoneCompressor")
    if compression is not None and name not in ("NoneCompressor", "FP16Compressor"):
        raise PlainLoopError(
            "PD308",
            "gradients cannot be compressed like this",
            value=name,
            accepted="Compression.none or Compression.fp16",
        )
    return torch.float16 if name == "FP16Compressor" else None


def _require_initialised(optimizer: Any) -> None:
    if not hasattr(optimizer, "param_groups"):
        raise PlainLoopError(
            "PD308",
            "this is not an optimizer",
            value=type(optimizer).__name__,
            accepted="an optimizer of torch.optim",
            hint="DistributedOptimizer(optimizer, model.named_parameters())",
        )
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise PlainLoopError(
            "PD308",
            "the optimizer cannot be distributed, because it has no hooks of torch.optim.Optimizer",
            value=type(optimizer).__name__,
            accepted="optimizers whose __init__ calls torch.optim.Optimizer.__init__",
            hint="distribute the optimizer inside it, before it is wrapped",
        )


def _require_supported(op: Any, process_set: Any, passes: int) -> None:
    connected()  # started
    everyone = process_set is None or getattr(process_set, "process_set_id", None) == 0
    known = op is None
    if not known and find_spec("horovod") is not None:
        horovod = import_module("horovod.torch")
        known = op in (horovod.Average, horovod.Sum)
    for wrong, what, value, accepted in (
        (not known, "gradients cannot be reduced like this", op, "Average or Sum"),
        (not everyone, "only all processes can train together", process_set, "process_set=None"),
        (passes < 1, "a step needs a backward pass", passes, "backward_passes_per_step >= 1"),
    ):
        if wrong:
            raise PlainLoopError(
                "PD308",
                what,
                value=value,
                accepted=accepted,
                hint="horovod.torch.DistributedOptimizer beside this one offers what this does not"
                if value in (op, process_set) and value is not None
                else None,
            )
