"""The backward passes of a plain loop, and the exchange of their gradients."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from popdist.checks.trained import Trained
from popdist_torch import agreement, local_buffers, synchronised_norms
from popdist_torch.data.equal_rows import EqualRows, digest_of, divided_selections
from popdist_torch.embeddings import LAYERS, require_no_shortening
from popdist_torch.errors import PlainLoopError
from popdist_torch.executor.compiled import keep_from_dynamo
from popdist_torch.global_batch_hooks import enlarge
from popdist_torch.gradient_exchange import InstanceSum, give_rows
from popdist_torch.parameter_hooks import of_popdist, require_possible
from popdist_torch.rounds import ROUNDS, Call

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Seen = dict[int, tuple[int, int]]  # identity and version of gradients, by parameter

_PARTED = (
    "make the same changes on every process: of weights, learning rates, loaded states and frozen "
    "layers; random numbers for weights or gradients need the same seed everywhere"
)

_CLOSURE = Call("a closure of an optimizer")


class Passes:
    """Sends gradients on their way while a backward pass runs, and ends the exchange with the pass.

    When ``backward()`` returns, gradients are those of all processes, so that whatever a loop does
    before ``step()`` (clipping, unscaling, logging norms) sees the same numbers everywhere. A
    further pass before the step exchanges again. That is right, because averaging does not
    change equal gradients: gradients are averaged here also for sums (see ``copies``).

    Some numbers are sent with each round. They show that processes are at another update, have
    other learning rates, have changed weights alone, or train other parameters. All processes get
    the same sums, so all take the same decision.

    Args:
        optimizer: The optimizer whose gradients they are.
        named: Its parameters, those too that are frozen.
        horovod: The module ``horovod.torch``, initialised.
        per_step: Backward passes before gradients are exchanged.
        factors: What gradients are multiplied with before and after they are added up.
        copies: What new gradients are multiplied with at once: the number of processes for sums.
        wire: The type in which gradients are sent; None for their own.
        dense: Whether sparse gradients may become dense.
        check: Whether processes are compared.
        label: Prefix for the names of exchanged tensors; equal on all processes.

    Attributes:
        number: The place among all optimizers of this process, in the order of their creation.
        per_step: Backward passes before gradients are exchanged.
        sum: The exchange; None before the first.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named: Mapping[str, torch.Tensor],
        horovod: Any,
        *,
        per_step: int,
        factors: tuple[float, float],
        copies: int,
        wire: torch.dtype | None,
        dense: bool,
        check: bool,
        label: str,
    ) -> None:
        self.number = ROUNDS.add(self)
        self.per_step = per_step
        self.sum: InstanceSum | None = None
        self._optimizer = optimizer
        self._horovod = horovod
        self._size = int(horovod.size())
        self._factors = factors
        self._copies = copies
        self._wire = wire
        self._dense = dense
        self._check = check
        self._label = f"{label} {self.number}"  # rounds may overlap, so their names must differ
        self._names: list[str] = []
        self._parameters: list[torch.Tensor] = []
        self._known: set[int] = set()  # identities of the parameters, which stay alive here
        self._slots: dict[int, int] = {}  # place in the exchange, by index of the parameter
        self._passes = 0  # since the last exchange
        self._steps = 0
        self._task = -1  # the backward pass that has reached a parameter last
        self._fresh = False  # gradients came since the last exchange
        self._flying = False  # some of them have left
        self._exchanged = False  # since the last step
        self._outside = False  # this round ends outside of a backward pass
        self._stale = False  # a parameter is trained that the exchange does not know
        self._unseen = False  # its gradient came before it was watched
        self._held = False
        self._shares = False  # another optimizer exchanges some of the same gradients
        self._local: Seen = {}  # gradients that are not exchanged yet
        self._mixed: Seen = {}  # gradients of a round that some process joined late
        self._versions: list[int] = []  # of the weights, after the last step
        self._changes = 0  # rounds before which some process changed weights
        self._apart = False  # buffers differ between processes
        self._loaded = False  # a state of the optimizer, since the last round
        self._compared = 0  # updates after which weights were compared last
        self._used: set[int] = set()  # identities of the gradients of the last step
        self._end = Trained(type(optimizer).__name__, self._values) if check else None
        optimizer.register_load_state_dict_post_hook(self._state_loaded)
        self.adopt(dict([*named.items()][::-1]))
        require_possible(self.weights(), loop=True)
        if copies == 1:
            enlarge(self._size)

    def adopt(self, named: Mapping[str, torch.Tensor]) -> None:
        """Watches parameters, in the order of their gradients; frozen ones may be trained later."""
        for name, parameter in named.items():
            _require_usable(name, parameter)
            index = len(self._parameters)
            self._names.append(name)
            self._parameters.append(parameter)
            self._known.add(id(parameter))
            if not (parameter.is_floating_point() or parameter.is_complex()):
                continue
            shared = self._shared(name, parameter)
            frozen = not parameter.requires_grad
            parameter.requires_grad_()  # hooks are refused without, and stay when it is taken back
            if self._copies != 1 and not shared:
                parameter.register_hook(self._multiplied)  # type: ignore[no-untyped-call]
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._arrived, index)
            )
            parameter.requires_grad_(not frozen)

    def _shared(self, name: str, parameter: torch.Tensor) -> bool:
        """Whether another distributed optimizer has the parameter too.

        Raises:
            PlainLoopError: One of them averages, and the other sums.
        """
        others: list[Passes] = [
            hook.func.__self__  # type: ignore[attr-defined]  # a bound method
            for hook in (parameter._post_accumulate_grad_hooks or {}).values()  # noqa: SLF001 - no public name
            if of_popdist(hook) and isinstance(hook, partial)
        ]
        if any(other._copies != self._copies for other in others):  # noqa: SLF001 - of this class
            raise PlainLoopError(
                "PD308",
                "two optimizers share a parameter, and one averages gradients where the other sums",
                value=name,
                hint="give both the same op",
            )
        # Exchanges change gradients in place, so that of one must have ended before the next reads.
        for passes in (*others, self) if others else ():
            passes._shares = True  # noqa: SLF001 - of this class
        return bool(others)

    def adopt_new(self) -> None:
        """Watches parameters that the program put into the optimizer's groups by itself."""
        known = self._known
        groups = self._optimizer.param_groups
        if all(id(parameter) in known for group in groups for parameter in group["params"]):
            return
        self.adopt(
            {
                f"parameter {index} of group {number}": parameter
                for number, group in enumerate(groups)
                for index, parameter in enumerate(group["params"])
                if id(parameter) not in known
            }
        )
        # Their gradients did not say that they came; the others go round once more.
        self._stale = self._unseen = True

    def names(self) -> dict[int, str]:
        """The names of the parameters by their identities."""
        return {id(parameter): name for name, parameter in self.weights()}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lets backward passes add to local gradients only."""
        before, self._held = self._held, True
        try:
            yield
        finally:
            self._held = before

    def synchronize(self) -> None:
        """Makes the gradients of all parameters those of all processes.

        Nothing happens where that was done since the last step, and no backward pass has run after.

        Raises:
            AgreementError: Processes differ in what they train; raised on all of them.
            BackendError: Another process ended or failed meanwhile.
        """
        # Processes decide alike here: one whose passes reached no parameter still takes part.
        self.adopt_new()
        if self._fresh or self._unseen or not self._exchanged:
            ROUNDS.exchange([self], self._horovod, outside=True)

    def before_step(self) -> None:
        """Synchronizes, if gradients are as backward passes left them.

        Raises:
            AgreementError: As for `synchronize`.
            BackendError: As for `synchronize`.
            PlainLoopError: They were changed before they were exchanged.
        """
        self.adopt_new()
        require_possible(self.weights(), loop=True)
        self.require_unchanged()
        self.synchronize()

    def require_unchanged(self) -> None:
        """Refuses gradients that were changed before they were exchanged.

        Raises:
            PlainLoopError: Some were.
        """
        waiting = self._fresh or not self._exchanged
        changed = self._changed(self._local if waiting else self._mixed)
        if self._unseen or (waiting and not self._fresh):
            changed = self._changed_by_hand()
        if changed:
            raise PlainLoopError(
                "PD320",
                "gradients were changed before all processes had exchanged them, so weights would "
                "differ between processes",
                value=f"{changed[0]} and {len(changed) - 1} more"
                if len(changed) > 1
                else changed[0],
                accepted="clipping and scaling after the last backward pass of a step",
                hint="call optimizer.synchronize() on every process before gradients are changed; "
                "this step had fewer backward passes than backward_passes_per_step, ended in "
                "no_sync(), used checkpoint(use_reentrant=True), or some process had none; or the "
                "program has set gradients itself",
            )

    def average(self, loss: Any) -> Any:
        """The loss of all processes as a tensor, reduced (average or sum) as gradients are.

        Raises:
            AgreementError: Other processes are not in a closure.
        """
        mine = torch.as_tensor(loss).detach().double().reshape(1).cpu() * self._copies
        ROUNDS.meet(_CLOSURE, self._horovod)
        total = self._horovod.allreduce(
            mine, op=self._horovod.Average, name=f"{self._label}: loss of a closure"
        )
        return total[0]

    def stepped(self) -> None:
        """Notes that the gradients were used for an update."""
        self._exchanged = False
        self._steps += 1
        self._mixed = {}
        self._versions = [parameter._version for parameter in self._parameters]  # noqa: SLF001 - no public name
        self._used = {id(parameter.grad) for parameter in self._parameters}

    def has_changed(self) -> bool:
        """Whether the program has changed weights since the last update."""
        return any(
            parameter._version != version  # noqa: SLF001 - no public name
            for parameter, version in zip(self._parameters, self._versions, strict=False)
        )

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights by name."""
        return zip(self._names, self._parameters, strict=True)

    def _values(self) -> Iterator[tuple[str, Any]]:
        """The weights that this optimizer has updated, as numpy arrays."""
        return ((name, agreement.array_of(p)) for name, p in self.weights() if self._steps)

    def reset(self) -> None:
        """Forgets passes whose gradients the program throws away.

        Raises:
            PlainLoopError: Some of them are on their way.
        """
        if self._flying:
            raise PlainLoopError(
                "PD308",
                "zero_grad() was called after backward() and before step() or synchronize()",
                hint="call zero_grad() before backward(), or after step()",
            )
        self._passes = 0
        self._local = {}

    def _state_loaded(self, _optimizer: torch.optim.Optimizer) -> None:
        self._loaded = True

    def _changed_by_hand(self) -> list[str]:
        """Names of parameters whose gradients the program has set, and then changed."""
        return [
            name
            for name, parameter in zip(self._names, self._parameters, strict=True)
            if (gradient := parameter.grad) is not None
            and gradient._version > 0  # noqa: SLF001 - no public name
            and id(gradient) not in self._used
            and bool(gradient.any())
        ]

    def _multiplied(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * self._copies

    def _arrived(self, index: int, parameter: torch.Tensor) -> None:
        """Marks a gradient as complete, after the backward pass has added it up."""
        task = torch._C._current_graph_task_id()  # noqa: SLF001 - no public name
        if task != self._task:
            self._task = task
            ROUNDS.arrived(task, self, self._horovod)
        self._fresh = True
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse and not self._dense:
            raise PlainLoopError(
                "PD308",
                f"{self._names[index]} has a sparse gradient",
                accepted="dense gradients",
                hint="sparse_as_dense=True sends them as dense ones; SparseAdam still gets rows",
            )
        if gradient is not None and gradient.requires_grad:
            raise PlainLoopError(
                "PD332",
                f"the gradient of {self._names[index]} has a graph, which the exchange cannot keep",
                value="backward(create_graph=True)",
                hint="compute such gradients with torch.autograd.grad(loss, parameters, "
                "create_graph=True), and call backward() for the sum of all terms",
            )
        if self.sum is None or self._held:
            return
        slot = self._slots.get(index)
        if slot is None:
            self._stale = True
        elif self._passes + 1 >= self.per_step and not self._shares:
            self._flying = True
            self.sum.collect(slot)

    def passed(self, *, nested: bool) -> bool:
        """Notes that a backward pass with gradients ended; whether they are to be exchanged now."""
        if not (nested or self._held):
            self._passes += 1
        if nested or self._held or self._passes < self.per_step:
            self._local = self._gradients()
            return False
        return True

    def send(self, *, outside: bool) -> None:
        """Sends all gradients that have not been sent, and waits for none."""
        self._outside = outside
        if self.sum is not None and not self._shares:
            self.sum.send()

    def exchange(self) -> None:
        """Makes gradients those of all processes, as `Rounds` has agreed with them."""
        if self.sum is not None:
            self._round()
        else:
            self._stale = True
        # The sums say whether any process had another parameter; gradients that are equal already
        # go round once more.
        if self._stale or self._said(3):
            self._begin()
            self._round()
        if self._check:
            self._compare()
        give_rows(self._optimizer, self._parameters)
        late = self._said(4)
        self._mixed = self._gradients() if 0 < late < self._size and not self._outside else {}
        self._passes = 0
        self._fresh = self._unseen = False
        self._exchanged = True
        self._local = {}

    def _round(self) -> None:
        assert self.sum is not None  # noqa: S101 - the callers see to it
        self.sum.finish()
        after = self._factors[1]
        members = (self._parameters[index].grad for index in self._slots)
        present = [gradient for gradient in members if gradient is not None]
        if after != 1 and present:
            torch._foreach_mul_(present, after)  # one call for all of them
        self.sum.begin()
        self._flying = False

    def _begin(self) -> None:
        trained = [index for index, p in enumerate(self._parameters) if p.requires_grad]
        parameters = [self._parameters[index] for index in trained]
        names = [self._names[index] for index in trained]
        if self._check:
            stated = self._facts() | agreement.parameter_facts(zip(names, parameters, strict=True))
            stated |= {
                "order of parameters": ", ".join(names),
                "name of the exchange": self._label,
                "backward_passes_per_step": str(self.per_step),
                "factors": str((*self._factors, self._copies)),
            }
            if self.sum is None:
                stated |= divided_selections()
                modules = _modules_with(parameters)
                require_no_shortening(modules)
            agreement.require(stated, self._horovod)
            if self.sum is None:
                synchronised_norms.require_local(modules)
                remedy = "pass sampler=popdist_torch.horovod.DistributedSampler(...) to the loader"
                EqualRows(self._horovod, remedy).look_at_gradients(
                    digest_of(parameter.grad for parameter in parameters)
                )
        self._slots = {index: slot for slot, index in enumerate(trained)}
        self._versions = [parameter._version for parameter in self._parameters]  # noqa: SLF001 - no public name
        self.sum = InstanceSum(
            parameters,
            names,
            self._horovod,
            self._label,
            wire=self._wire,
            factor=self._factors[0],
            notes=self._notes,
        )
        self.sum.begin()
        self._stale = False

    def _notes(self) -> list[int]:
        """The numbers sent with a round; small, because integers are exact up to 2**24 only."""
        numbers = [
            tuple(value for value in group.values() if type(value) in (int, float, bool, tuple))
            for group in self._optimizer.param_groups
        ]
        trained = tuple(parameter.requires_grad for parameter in self._parameters)
        digest = hash((self._steps, trained, *numbers)) & 0xFF
        said = (self.has_changed(), self._stale, self._outside, self._loaded)
        return [digest, digest**2, *map(int, said)]

    def _said(self, note: int) -> int:
        return self.sum.noted[note] if self.sum is not None and self.sum.noted else 0

    def _compare(self) -> None:
        """Compares details, where the sums say that processes may differ."""
        stated: dict[str, str] = {}
        if self._size * self._said(1) != self._said(0) ** 2:  # the digests' variance is not 0
            stated |= self._facts()
        changed, loaded = self._said(2), self._said(5)
        # A program that changes weights before every step would wait long for digests.
        self._changes += bool(changed)
        often = self._changes & (self._changes - 1)
        due = agreement.due(self._steps) and self._compared != self._steps
        if loaded or (changed and not often) or due:
            self._compared = self._steps
            stated |= agreement.parameter_facts(self.weights())
        if loaded:
            stated |= agreement.state_facts(self.weights(), self._optimizer)
            self._loaded = False
        if stated:
            agreement.require(stated, self._horovod, _PARTED)
        if due and not self._apart:
            self._apart = local_buffers.differ(self._parameters, self._horovod)

    def _facts(self) -> dict[str, str]:
        trained = {f"{name} is trained": str(p.requires_grad) for name, p in self.weights()}
        return {
            **trained,
            "updates so far": str(self._steps),
            **agreement.optimizer_facts(self._optimizer),
        }

    def _gradients(self) -> Seen:
        return {
            index: (id(parameter.grad), parameter.grad._version)  # noqa: SLF001 - no public name
            for index, parameter in enumerate(self._parameters)
            if parameter.grad is not None
        }

    def _changed(self, seen: Seen) -> list[str]:
        if not seen:
            return []
        now = self._gradients()
        return [self._names[i] for i, was in seen.items() if i in now and now[i] != was]


def _require_usable(name: str, parameter: torch.Tensor) -> None:
    """Refuses parameters that have no values, and those that another library has divided.

    Raises:
        PlainLoopError: The parameter cannot be exchanged.
    """
    if is_lazy(parameter) or parameter.is_meta:
        raise PlainLoopError(
            "PD310",
            f"{name} has no {'shape' if is_lazy(parameter) else 'values'} yet",
            value=type(parameter).__name__,
            hint="call the model once with a batch (lazy layers), or give it values with "
            "to_empty() (meta device), before its optimizer is distributed",
        )
    # torch.distributed is imported where such parameters exist only.
    if hasattr(parameter, "full_tensor") and hasattr(parameter, "device_mesh"):
        raise PlainLoopError(
            "PD328",
            f"{name} is divided over processes, and torch.distributed exchanges its gradient",
            value=type(parameter).__name__,
            accepted="parameters that every process has as a whole",
            hint="use the plain optimizer with FSDP or tensor parallelism, or do not shard the "
            "model",
        )


def _modules_with(parameters: Sequence[torch.Tensor]) -> list[nn.Module]:
    """Layers to be checked with some of the parameters; nothing else refers to them from here."""
    own = {id(parameter) for parameter in parameters}
    # Not isinstance: that asks weak proxies for the class of an object that may be gone.
    found = [o for o in gc.get_objects() if issubclass(type(o), (nn.SyncBatchNorm, *LAYERS))]
    return [layer for layer in found if not own.isdisjoint(map(id, layer.parameters()))]


# A compiled training step shows Dynamo the exchange's hooks.
keep_from_dynamo(Passes._arrived, Passes.before_step, Passes.synchronize)  # noqa: SLF001 - of this module
keep_from_dynamo(ROUNDS._passed)  # noqa: SLF001 - what `Passes._arrived` queues
