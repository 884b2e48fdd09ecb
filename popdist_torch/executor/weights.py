"""The program's values of a module's tensors, the device's values, and their exchange.

An executor runs the program's own module, not a copy, so everything that ``forward`` reaches runs
and trains. Only the memory of parameters and buffers is exchanged. Between calls they hold the
program's values; during a call they hold the device's. A program's change between calls reaches the
device on request only, as PopTorch documents.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from popdist.popdist_core import getDeviceId
from popdist_torch.errors import Error
from popdist_torch.executor.compiled import compiled_as_asked, eagerly, is_compiled
from popdist_torch.executor.groups import Grouping, Versions, grouping_of
from popdist_torch.executor.host_access import plain_class
from popdist_torch.executor.replicas import HOST, ReplicaBuffers
from popdist_torch.memory import addresses
from popdist_torch.options import ConnectionType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from popdist_torch.executor.compiled import LossPlace
    from popdist_torch.options import Options
    from popdist_torch.options.placement import Placement

logger = logging.getLogger("popdist.torch")

_OWN_USES = 2
"""References to a storage that nothing but a parameter has: its own, and that of who asks."""


class Weights:
    """Parameters with two values each: one in the parameter, one apart.

    Args:
        device: The device of the executor's values.
        in_place: Whether the executor's values stay in the memory that the program gave its
            parameters, where that is on the device. Views of that memory then follow training. The
            program's values move to new memory. Otherwise the executor's values are the copies.

    Attributes:
        parameters: The parameters.
        names: The name of each.
    """

    def __init__(self, device: torch.device, *, in_place: bool) -> None:
        self.parameters: list[nn.Parameter] = []
        self.names: list[str] = []
        self._names_by_identity: dict[int, str] = {}
        self._device = device
        self._in_place = in_place
        self._away: list[torch.Tensor] = []
        self._gradients: list[torch.Tensor | None] = []
        self._classes: list[type] = []
        self._aliased: list[int] = []
        self._groupings: dict[int, Grouping] = {}
        self._seen: list[tuple[int, int]] = []  # version and address of the program's values
        self._warned = False
        self._on_device = False

    def add(self, name: str, parameter: nn.Parameter) -> None:
        """Adds one parameter, with the program's values in use.

        Raises:
            Error: It has no values yet.
        """
        _require_values(name, parameter)
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - past the host's notice
            if parameter.device != self._device and _has_aliases(parameter):
                self._aliased.append(len(self.parameters))
            present = parameter.data
            away = present.to(self._device)
            if (grouping := grouping_of(parameter)) is not None:
                self._groupings[len(self.parameters)] = grouping
                away = grouping.versions(name, away)
            if away is present and self._in_place:
                parameter.data = present.clone()
            elif away is present:
                away = present.clone()
            self._seen.append(_state(parameter))
        self.parameters.append(parameter)
        self.names.append(name)
        self._names_by_identity[id(parameter)] = name
        self._away.append(away)
        self._gradients.append(None)
        self._classes.append(type(parameter))

    def adopt(self, part: nn.Module) -> None:
        """Adds a module's own parameters that are on another device, with the device's in use."""
        for name, parameter in part.named_parameters(recurse=False):
            if self.has(parameter) or parameter.device == self._device:
                continue
            self._gradients.append(parameter.grad)
            parameter.grad = None
            self._away.append(parameter.data)
            parameter.data = parameter.data.to(self._device)
            self.parameters.append(parameter)
            self.names.append(f"{name} of a {type(part).__name__} that is no part of the model")
            self._names_by_identity[id(parameter)] = self.names[-1]
            self._classes.append(type(parameter))
            self._seen.append(_state(parameter))

    @torch.no_grad()
    def renew_aliases(self) -> set[int]:
        """Copies newest values, which are in use, to memory that the program refers to elsewhere.

        Returns:
            The addresses of that memory.
        """
        for index in self._aliased:
            self._away[index].copy_(self.parameters[index].data)
        return {self._away[index].untyped_storage().data_ptr() for index in self._aliased}

    def exchange(self) -> None:
        """Exchanges the program's values and gradients with the device's."""
        self._on_device = not self._on_device
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - past the host's notice
            if self._on_device and not self._warned:
                self._warn_of_changes()
            for index, parameter in enumerate(self.parameters):
                values, gradient = parameter.data, parameter.grad
                if gradient is not None:
                    parameter.grad = None  # torch checks that it suits the values
                parameter.data = self._away[index]
                if self._gradients[index] is not None:
                    parameter.grad = self._gradients[index]
                self._away[index], self._gradients[index] = values, gradient
                if self._on_device:
                    self._classes[index] = type(parameter)
                    kind = plain_class(self._classes[index])
                else:
                    kind = self._classes[index]
                if type(parameter) is not kind:
                    parameter.__class__ = kind
            if not self._on_device and not self._warned:
                self._note()

    def _note(self) -> None:
        """Notes the state of the program's values, which are in use."""
        self._seen = [*map(_state, self.parameters)]

    def _warn_of_changes(self) -> None:
        """Says once that the program has changed values which the device does not get."""
        changed = [
            name
            for name, parameter, seen in zip(self.names, self.parameters, self._seen, strict=True)
            if _state(parameter) != seen
        ]
        if changed:
            self._warned = True
            logger.warning(
                "%s",
                Error(
                    "PD329",
                    "the program has changed weights since the last call, and the model does not "
                    "use the new values, as in PopTorch",
                    value=", ".join(changed[:3]) + (", ..." if len(changed) > 3 else ""),  # noqa: PLR2004 - enough to find them
                    hint="call copyWeightsToDevice() of the wrapped model after such changes",
                ),
            )

    def has(self, parameter: nn.Parameter) -> bool:
        """Whether it is one of the parameters."""
        return id(parameter) in self._names_by_identity

    def name_of(self, parameter: nn.Parameter) -> str:
        """The name of a parameter."""
        return self._names_by_identity[id(parameter)]

    def device_values(self) -> list[torch.Tensor]:
        """The device's value of each parameter."""
        if self._on_device:
            return [parameter.data for parameter in self.parameters]
        return self._away

    def device_gradients(self) -> list[torch.Tensor | None]:
        """The gradients of the last update; None for parameters without one."""
        if self._on_device:
            return [parameter.grad for parameter in self.parameters]
        return self._gradients

    @torch.no_grad()
    def to_host(self) -> None:
        """Copies the device's values over the program's."""
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - past the host's notice
            for index, (parameter, values) in enumerate(
                zip(self.parameters, self._away, strict=True)
            ):
                grouping = self._groupings.get(index)
                parameter.copy_(values if grouping is None else grouping.for_each(values))
            self._note()

    @torch.no_grad()
    def from_host(self) -> None:
        """Copies the program's values over the device's."""
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - past the host's notice
            for index, (parameter, values) in enumerate(
                zip(self.parameters, self._away, strict=True)
            ):
                grouping = self._groupings.get(index)
                name = self.names[index]
                values.copy_(parameter if grouping is None else grouping.versions(name, parameter))
            self._note()

    def give_back(self) -> None:
        """Puts the program's values back into the parameters' original memory."""
        if not self._in_place:
            return
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - past the host's notice
            for parameter, own in zip(self.parameters, self._away, strict=True):
                present = parameter.data
                if (own.device, own.dtype, own.shape) == (
                    present.device,
                    present.dtype,
                    present.shape,
                ):
                    own.copy_(present)
                    parameter.data = own


def _state(parameter: torch.Tensor) -> tuple[int, int]:
    """What changes where the program writes to a parameter, or gives it other memory."""
    return parameter._version, parameter.data_ptr()  # noqa: SLF001 - no public name


def _has_aliases(parameter: nn.Parameter) -> bool:
    """Whether the program has further tensors in a parameter's memory, such as a flat one."""
    uses = torch._C._storage_Use_Count(parameter.untyped_storage()._cdata)  # noqa: SLF001 - no public name
    return bool(uses > _OWN_USES)


def _require_values(name: str, parameter: nn.Parameter) -> None:
    tensor: torch.Tensor = parameter
    if is_lazy(tensor):
        raise Error(
            "PD310",
            f"parameter {name} has no shape yet",
            value=type(parameter).__name__,
            hint="call the module once with a batch of the shapes that it will see, then wrap it",
        )
    if parameter.is_meta:
        raise Error(
            "PD310",
            f"parameter {name} is on the meta device, so it has no values",
            value=tuple(parameter.shape),
            hint="call model.to_empty(device='cpu') and initialise it, then build the optimizer "
            "from the parameters that the model has then",
        )


_MODULES_OWN = frozenset(nn.Module().__dict__)


class PlainTensors:
    """Tensors that are attributes of modules, but no parameters and no buffers.

    PopTorch makes them constants of the compiled model: changes in ``forward`` are lost when it
    ends. Tensors in lists, tuples and dictionaries count as well; tensors that require gradients do
    not.

    Args:
        device: Where the model runs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: list[tuple[nn.Module, str, Any, list[tuple[torch.Tensor, torch.Tensor]]]] = []
        self._versions: list[list[int]] = []
        self._moved: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._told: set[tuple[int, str]] = set()

    def add(self, part: nn.Module) -> None:
        """Adds the plain tensors of one more module."""
        for key, value in part.__dict__.items():
            if key in _MODULES_OWN or not isinstance(value, torch.Tensor | list | tuple | dict):
                continue
            leaves = [
                (leaf, leaf.detach().clone())
                for leaf in pytree.tree_leaves(value)
                if isinstance(leaf, torch.Tensor)
                and not leaf.requires_grad
                and not leaf.is_meta
                and not isinstance(leaf, nn.Parameter)
            ]
            if leaves:
                self._kept.append((part, key, value, leaves))
                self._versions.append([leaf._version for leaf, _ in leaves])  # noqa: SLF001

    def __bool__(self) -> bool:
        return bool(self._kept)

    def tensors(self) -> Iterator[torch.Tensor]:
        """All plain tensors."""
        for _, _, _, leaves in self._kept:
            yield from (leaf for leaf, _ in leaves)

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Moves them to the device while the model runs there."""
        away = [leaf for leaf in self.tensors() if leaf.device != self._device]
        self._moved = [(leaf, leaf.data) for leaf in away]
        for leaf in away:
            leaf.data = leaf.data.to(self._device)
        try:
            yield
        finally:
            for leaf, value in self._moved:
                leaf.data = value
            self._moved = []

    @torch.no_grad()
    def renew(self, storages: set[int]) -> None:
        """Copies those that are views of some memory of the program to the device again."""
        for leaf, value in self._moved:
            if not storages.isdisjoint(addresses(value)):
                leaf.data.copy_(value)

    @torch.no_grad()
    def restore(self) -> None:
        """Undoes what one run of the model changed."""
        for (part, key, value, leaves), versions in zip(self._kept, self._versions, strict=True):
            present = part.__dict__.get(key)
            changed = False
            for index, (leaf, first) in enumerate(leaves):
                if leaf._version == versions[index]:  # noqa: SLF001 - counts changes in place
                    continue
                changed = True
                if leaf.requires_grad:
                    leaf.detach_()
                leaf.copy_(first)
                versions[index] = leaf._version  # noqa: SLF001
            if present is not value:
                # Layers that compute an attribute anew in each run, such as old weight norms,
                # mean it to be part of the graph.
                changed = changed or not getattr(present, "requires_grad", False)
                part.__dict__[key] = value
            if changed:
                self._tell(part, key)

    def _tell(self, part: nn.Module, key: str) -> None:
        if (id(part), key) not in self._told:
            self._told.add((id(part), key))
            logger.warning(
                "forward changes the tensor %s.%s, which is a constant of the model, as in "
                "PopTorch: each run starts from its first value. register_buffer(%r, ...) keeps "
                "changes",
                type(part).__name__,
                key,
                key,
            )


class DeviceModel:
    """The program's module, with values of its own while an executor runs it.

    The module keeps the training flags that it had when it was wrapped, whatever the program sets
    later: they are set while it runs.

    Args:
        module: The program's module.
        training_flags: The flag of each of its parts.
        device: Where it runs.
        here: The local replicas among those of the job; each has buffers of its own.
        trains: Whether the executor changes the weights.
        settings: The settings of ``torch.compile`` that the options ask for; None for none.

    Attributes:
        module: The program's module.
        run: What is called to run it.
        compiled: Whether a part of it is compiled, by the program or by its options.
        loss_place: Where a compiled model returns its loss; None before its first loss.
        weights: Its parameters, and others that are trained with them.
        buffers: The buffers of every replica.
        plain: Its plain tensors.
        versions: The parameters that differ between groups of replicas.
    """

    def __init__(
        self,
        module: nn.Module,
        training_flags: Mapping[nn.Module, bool],
        device: torch.device,
        here: Placement,
        *,
        trains: bool,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.module = module
        self.run = compiled_as_asked(module, settings)
        self.compiled = settings is not None or is_compiled(module)
        self.loss_place: LossPlace | None = None
        self._flags = dict(training_flags)
        self.weights = Weights(device, in_place=trains)
        for name, parameter in module.named_parameters():
            self.weights.add(name, parameter)
        self.versions = Versions(
            zip(self.weights.names, self.weights.parameters, strict=True), here
        )
        self.buffers = ReplicaBuffers(module, here.local_replicas, device, in_place=trains)
        self.buffers.use(HOST)
        self.plain = PlainTensors(device)
        for part in module.modules():
            self.plain.add(part)
        self._ran = False
        self._storages: tuple[int, frozenset[int]] | None = None

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Gives the module the device's values inside; `ReplicaBuffers.use` those of a replica."""
        changed = [part for part, flag in self._flags.items() if part.training != flag]
        for part in changed:
            part.training = not part.training
        self.weights.exchange()
        if not self._ran:
            self.buffers.watch()
        adoption = nullcontext() if self._ran else self._adopting()
        mode = eagerly() if self.compiled and not self._ran else nullcontext()
        token = _in_use.set(self)
        try:
            if self._ran and not self.plain:
                yield  # small models notice each context
            else:
                with self.plain.on_device(), adoption, mode:
                    yield
            self._ran = True
        finally:
            _in_use.reset(token)
            self.buffers.use(HOST)
            self.weights.exchange()
            for part in changed:
                part.training = not part.training

    def to_host(self) -> None:
        """Copies parameters, and the first replica's buffers, into the program's module."""
        self.weights.to_host()
        self.buffers.copy(0, HOST)

    def from_host(self) -> None:
        """Copies the program's parameters and buffers to the device, buffers for every replica."""
        self.weights.from_host()
        for replica in range(self.buffers.replicas):
            self.buffers.copy(HOST, replica)

    def buffers_from_host(self, names: Sequence[str]) -> None:
        """Copies the named buffers of the program to the device, for every replica.

        Raises:
            Error: The module has no such buffer.
        """
        chosen = self.buffers_named(names)
        for replica in range(self.buffers.replicas):
            self.buffers.copy(HOST, replica, chosen)

    def buffers_named(self, names: Sequence[str]) -> dict[nn.Module, set[str]]:
        """The names of some buffers in their modules.

        Raises:
            Error: The module has no such buffer.
        """
        found = {
            f"{path}.{name}".lstrip("."): (part, name)
            for path, part in self.module.named_modules()
            for name in part._buffers  # noqa: SLF001
        }
        if unknown := [name for name in names if name not in found]:
            raise Error(
                "PD392",
                "the model has no such buffer",
                value=", ".join(unknown),
                accepted=", ".join(found) or "none: the model has no buffers",
                hint="options.updatableNamedBuffers takes names of model.named_buffers()",
            )
        chosen: dict[nn.Module, set[str]] = {}
        for part, name in (found[name] for name in names):
            chosen.setdefault(part, set()).add(name)
        return chosen

    def tensors(self, replica: int = 0) -> dict[str, torch.Tensor]:
        """The device's parameters and buffers as a local replica has them, by name."""
        weights = zip(
            self.weights.names, self.weights.parameters, self.weights.device_values(), strict=True
        )
        found = {
            name: self.versions.version(parameter, values, replica)
            for name, parameter, values in weights
        }
        buffers = self.buffers.values(replica)
        for path, part in self.module.named_modules():
            for name, value in buffers.get(part, {}).items():
                if value is not None:
                    found[f"{path}.{name}".lstrip(".")] = value
        return found

    def gradients(self) -> dict[str, torch.Tensor]:
        """The gradients of the last update by the names of their parameters."""
        named = zip(self.weights.names, self.weights.device_gradients(), strict=True)
        return {name: gradient for name, gradient in named if gradient is not None}

    def tensors_of_the_program(self) -> list[torch.Tensor]:
        """The tensor objects whose values the program sees between calls."""
        return [*self.weights.parameters, *self.buffers.objects()]

    def renew_aliases(self) -> None:
        """Copies updated weights to memory of the program that forward may read them from."""
        storages = self.weights.renew_aliases()
        if storages:
            self.plain.renew(storages)

    def give_back(self) -> None:
        """Puts the program's values back into the tensors' original memory."""
        self.weights.give_back()
        self.buffers.give_back()

    def storages(self) -> frozenset[int]:
        """Addresses of the memory that steps change in place, one per tensor."""
        if self._storages is not None and self._storages[0] == len(self.weights.names):
            return self._storages[1]
        tensors = [*self.weights.device_values(), *self.buffers.tensors(), *self.plain.tensors()]
        found = frozenset(address for tensor in tensors for address in addresses(tensor))
        # The first call may find more modules.
        self._storages = (len(self.weights.names), found) if self._ran else None
        return found

    @contextmanager
    def _adopting(self) -> Iterator[None]:
        """Finds modules that run without being parts of the module, and treats them as parts.

        ``forward`` may reach them by a captured name, or in a list. Their parameters train where
        the optimizer has them; here their buffers and plain tensors become each replica's own.
        """

        def adopt(part: nn.Module, _arguments: Any) -> None:
            # A wrapped model that forward calls manages its own tensors.
            if _in_use.get() is self and not self.buffers.knows(part):
                self.buffers.add(part)
                self.plain.add(part)
                self.weights.adopt(part)

        hook = nn.modules.module.register_module_forward_pre_hook(adopt)
        try:
            yield
        finally:
            hook.remove()


_in_use: ContextVar[DeviceModel | None] = ContextVar("the model in use", default=None)


def a_model_runs() -> bool:
    """Whether a call of a wrapped model is running, with its updates."""
    return _in_use.get() is not None


def choose(options: Options) -> torch.device:
    """Chooses the device of a model, which all local replicas share in turn.

    It is the GPU that ``useIpuId`` or the launcher assigns to this instance, if the machine has
    GPUs and the job is neither offline nor on the "IPU model". Otherwise it is the CPU.
    """
    simulated = options.exists("use_model") and options.use_model
    offline = options.connection_type == ConnectionType.Never
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count or simulated or offline:
        return torch.device("cpu")
    wanted = options.ipu_id if options.exists("ipu_id") else getDeviceId()
    if wanted >= count:
        logger.info("device %d does not exist; sharing device %d", wanted, wanted % count)
    return torch.device("cuda", wanted % count)
