"""Weights of which groups of replicas train versions of their own: ``replicaGrouping``.

Such a parameter has one more dimension, the first, for the versions of all groups. Every instance
holds all of them. While a replica runs, the parameter is the version of its group, so that the
gradient is that version's alone. The sum over all replicas of the job, which is exchanged anyway,
is then the sum over each group. As in PopTorch, a mean divides it by all replicas of the job.
"""

from __future__ import annotations

from collections import UserDict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from popdist_torch.errors import Error, OptimizerError
from popdist_torch.options.enums import CommGroupType, VariableRetrievalMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import nn

    from popdist_torch.options.placement import Placement


def _group(kind: CommGroupType, replica: int, size: int, groups: int) -> int:
    """The group of a replica, from the size and the number of groups."""
    return replica % groups if kind == CommGroupType.Orthogonal else replica // size


@dataclass(frozen=True)
class Grouping:
    """The groups of replicas that have a version of a parameter each.

    Attributes:
        group_of: The group of each replica of the job.
        each: Whether the program sees a value for each replica rather than for each group.
    """

    group_of: tuple[int, ...]
    each: bool

    @property
    def groups(self) -> int:
        """The number of groups."""
        return max(self.group_of) + 1

    @property
    def first_of(self) -> list[int]:
        """The first replica of each group."""
        return [self.group_of.index(group) for group in range(self.groups)]

    @classmethod
    def of(cls, kind: Any, shards: Any, mode: Any, replicas: int) -> Grouping:
        """The groups that the arguments of ``replicaGrouping`` ask for, in a job of ``replicas``.

        Raises:
            Error: An argument is of another type, or groups of this size do not divide the job.
        """
        if not isinstance(kind, CommGroupType) or not isinstance(mode, VariableRetrievalMode):
            raise Error(
                "PD317",
                "replicaGrouping was called with other arguments",
                value=f"replicaGrouping({kind!r}, {shards!r}, {mode!r})",
                accepted="replicaGrouping(CommGroupType, shards, VariableRetrievalMode)",
            )
        size = {CommGroupType.All: replicas, CommGroupType.NoGrouping: 1}.get(kind, shards)
        if type(size) is not int or size < 1 or replicas % size:
            raise Error(
                "PD317",
                "replicas cannot be divided into such groups",
                value=f"groups of {size} replicas; the job has {replicas}",
                accepted=f"a divisor of {replicas}",
                hint="`shards` is the number of replicas of a group",
            )
        count = replicas // size
        group_of = tuple(_group(kind, replica, size, count) for replica in range(replicas))
        return cls(group_of, mode == VariableRetrievalMode.AllReplicas)

    def require_fit(self, name: str, parameter: torch.Tensor) -> None:
        """Checks that a parameter's first dimension is that of the groups, or of the replicas.

        Raises:
            Error: It is not.
        """
        rows = parameter.shape[0] if parameter.dim() else None
        accepted = {self.groups, len(self.group_of)} if self.each else {self.groups}
        if rows not in accepted:
            raise Error(
                "PD317",
                f"{name} needs one more dimension, the first, for its versions",
                value=f"shape {list(parameter.shape)}",
                accepted=f"{self.groups} versions, one for each group of replicas",
                hint="make the parameter with torch.stack of the first values of all groups; "
                "forward sees one of them, without this dimension",
            )

    def for_each(self, versions: torch.Tensor) -> torch.Tensor:
        """What the program sees: the versions ``[groups, ...]``, or a copy for each replica."""
        return versions[list(self.group_of)] if self.each else versions

    def versions(self, name: str, seen: torch.Tensor) -> torch.Tensor:
        """The versions ``[groups, ...]``, from what the program sees.

        Raises:
            Error: Replicas of one group have different values.
        """
        if seen.shape[0] == self.groups:
            return seen
        versions = seen[self.first_of]
        if not torch.equal(self.for_each(versions), seen):
            raise Error(
                "PD317",
                f"replicas of one group have different values of {name}",
                value=f"groups {list(self.group_of)}",
                hint="set the values of all replicas of a group together",
            )
        return versions


_ARGUMENTS = 3
_groupings: Any = WeakTensorKeyDictionary()
"""What programs declared, by parameter. Parameters hold nothing of it, so that files are plain."""


def grouping_of(parameter: torch.Tensor) -> Grouping | None:
    """The groups that a program declared for a parameter; None where all replicas share it."""
    found: Grouping | None = _groupings.get(parameter)
    return found


def declare(
    parameter: torch.nn.Parameter, kind: Any, shards: Any, mode: Any, replicas: int
) -> None:
    """Gives groups of a job's replicas their own versions of a parameter.

    Raises:
        Error: The groups, or the parameter's shape, are not possible.
    """
    grouping = Grouping.of(kind, shards, mode, replicas)
    if grouping.groups == 1:
        _groupings.pop(parameter, None)
        return
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - past the host's notice
        grouping.require_fit("the parameter", parameter)
        if parameter.shape[0] == grouping.groups:
            parameter.data = grouping.for_each(parameter.data)
    _groupings[parameter] = grouping


class DeclaredGroups(UserDict[str, tuple[Any, Any, Any]]):
    """The published ``per_replica_params``: arguments of ``replicaGrouping``, by parameter.

    A value that a program sets is declared at once, as by ``replicaGrouping``.

    Args:
        module: The module whose parameters are meant.
        replicas: The number of replicas of the job.
        require_open: Called before each declaration; raises an error when it is too late for one.
    """

    def __init__(self, module: nn.Module, replicas: int, require_open: Callable[[], None]) -> None:
        super().__init__()
        self._module = module
        self._replicas = replicas
        self._require_open = require_open

    def declare(self, parameter: nn.Parameter, kind: Any, shards: Any, mode: Any) -> None:
        """Declares the groups of a parameter, with the arguments of ``replicaGrouping``."""
        self._require_open()
        declare(parameter, kind, shards, mode, self._replicas)
        for name, known in self._module.named_parameters():
            if known is parameter:
                self.data[name] = (kind, shards, mode)

    def __setitem__(self, name: str, grouping: tuple[Any, Any, Any]) -> None:
        parameters = dict(self._module.named_parameters())
        if name not in parameters or not isinstance(grouping, tuple) or len(grouping) != _ARGUMENTS:
            raise Error(
                "PD317",
                "per_replica_params needs a parameter's name, and the arguments of replicaGrouping",
                value=f"per_replica_params[{name!r}] = {grouping!r}",
                accepted=f"one of {', '.join(parameters)}; (CommGroupType, shards, "
                "VariableRetrievalMode)",
            )
        self.declare(parameters[name], *grouping)


class Versions:
    """The parameters of a model that have versions, each in the form of one local replica's group.

    Args:
        named: All parameters of the model by name, with the device's values in use.
        here: The local replicas among those of the job.

    Attributes:
        parameters: Those that have versions.

    Raises:
        Error: The job has another number of replicas than the groups were declared for.
    """

    def __init__(self, named: Iterable[tuple[str, torch.nn.Parameter]], here: Placement) -> None:
        self._groups: dict[int, Grouping] = {}
        self.parameters: list[torch.nn.Parameter] = []
        self._first = here.first_replica
        self._whole: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        for name, parameter in named:
            grouping = grouping_of(parameter)
            if grouping is None:
                continue
            if len(grouping.group_of) != here.total_replicas:
                raise Error(
                    "PD317",
                    f"the versions of {name} were declared for another number of replicas",
                    value=f"{len(grouping.group_of)} replicas then, {here.total_replicas} now",
                    hint="run the model with options of as many replicas",
                )
            self.parameters.append(parameter)
            self._groups[id(parameter)] = grouping

    def has(self, parameter: torch.Tensor) -> bool:
        """Whether groups of replicas have versions of a parameter."""
        return id(parameter) in self._groups

    @contextmanager
    def of(self, replica: int) -> Iterator[None]:
        """Makes each parameter the version of a local replica's group inside.

        Its gradient inside is added to that of all versions.
        """
        self.enter(replica)
        try:
            yield
        finally:
            self.leave(replica)

    def enter(self, replica: int) -> None:
        """Makes each parameter the version of a local replica's group; of one at any time."""
        self._whole = [(p.data, p.grad) for p in self.parameters]
        for parameter, (versions, _) in zip(self.parameters, self._whole, strict=True):
            parameter.grad = None
            parameter.data = versions[self._group(parameter, replica)]

    def leave(self, replica: int) -> None:
        """Makes each parameter all versions again, and adds this one's gradient to theirs."""
        for parameter, (versions, total) in zip(self.parameters, self._whole, strict=True):
            group = self._group(parameter, replica)
            gradient, parameter.grad = parameter.grad, None
            own = versions[group]
            if parameter.data_ptr() != own.data_ptr():
                own.copy_(parameter.data)  # forward has assigned its data
            parameter.data = versions
            if gradient is None or total is None:
                whole = self.whole(parameter, gradient, replica)
                parameter.grad = total if gradient is None else whole
            else:
                parameter.grad = total
                total[group] += gradient.detach()

    def version(self, parameter: torch.Tensor, values: torch.Tensor, replica: int) -> torch.Tensor:
        """The version of a local replica's group; the values of any other parameter."""
        return values[self._group(parameter, replica)] if self.has(parameter) else values

    def whole(
        self, parameter: torch.Tensor, gradient: torch.Tensor | None, replica: int
    ) -> torch.Tensor | None:
        """The gradient of all versions, from that of a local replica's; any other unchanged."""
        if gradient is None or not self.has(parameter):
            return gradient
        dense = (gradient.to_dense() if gradient.is_sparse else gradient).detach()
        count = self._groups[id(parameter)].groups
        versions = dense.new_zeros(count, *dense.shape)
        versions[self._group(parameter, replica)] = dense
        return versions

    def facts(self) -> dict[str, str]:
        """The groups of each parameter that has some, for a comparison of all instances."""
        numbered = enumerate(self.parameters)
        return {f"groups of parameter {i}": str(self._groups[id(p)].group_of) for i, p in numbered}

    def _group(self, parameter: torch.Tensor, replica: int) -> int:
        return self._groups[id(parameter)].group_of[self._first + replica]


_ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.ASGD,
    torch.optim.Rprop,
)


def require_elementwise(optimizer: torch.optim.Optimizer) -> None:
    """Refuses optimizers that would mix the versions of different groups.

    Raises:
        OptimizerError: The optimizer's step of an element depends on other elements.
    """
    limit = getattr(optimizer, "max_grad_norm", None)
    if isinstance(optimizer, _ELEMENTWISE) and limit is None:
        return
    raise OptimizerError(
        "PD318",
        "the optimizer would mix the versions that groups of replicas have of a parameter",
        value=type(optimizer).__name__ if limit is None else f"max_grad_norm={limit}",
        accepted=", ".join(kind.__name__ for kind in _ELEMENTWISE) + " without max_grad_norm",
        hint="updates of grouped weights have to be element by element, without norms",
    )
