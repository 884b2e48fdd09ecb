"""Execution strategies: how an IPU system lays blocks of a model out over chips and time.

On a host a model runs as it is written, whatever the strategy. Strategies can be built, read and
printed, and have the rules of the original, so that programs that make them run unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_torch.errors import OptionError
from popdist_torch.options.enums import AutoStage, Liveness
from popdist_torch.options.option_methods import flag, member, whole_number
from popdist_torch.options.storage import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Self

__all__ = [
    "AutoStage",
    "ExecutionStrategy",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "SerialPhasedExecution",
    "ShardedExecution",
    "Stage",
]


def _is_number(name: object) -> bool:
    return isinstance(name, int) and not isinstance(name, bool)


class Stage:
    """Blocks that run together on one IPU.

    Args:
        *block_ids: Names of the blocks.

    Raises:
        OptionError: No block, or one without a name.
    """

    def __init__(self, *block_ids: str | int) -> None:
        names = [str(name) if _is_number(name) else name for name in block_ids]
        if not names or not all(isinstance(name, str) and name for name in names):
            raise OptionError(
                "PD300", "a Stage takes names of blocks", value=block_ids, accepted="'block', ..."
            )
        self._blocks: list[str] = [str(name) for name in names]
        self._ipu: int | None = None

    @property
    def blocks(self) -> list[str]:
        """Names of the blocks."""
        return list(self._blocks)

    def ipu(self, ipu: int) -> Self:
        """Sets the IPU of the stage.

        Args:
            ipu: Its index within the replica.

        Returns:
            This stage.
        """
        self._ipu = whole_number("ipu", ipu, least=0)
        return self

    def __repr__(self) -> str:
        where = "" if self._ipu is None else f".ipu({self._ipu})"
        return f"Stage({', '.join(map(repr, self._blocks))}){where}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stage) and repr(self) == repr(other)

    __hash__ = None  # type: ignore[assignment]  # `ipu` changes it


class Phase:
    """Stages that run at the same time.

    Args:
        *stages: Stages, names of blocks (a stage each), or lists of names.
    """

    def __init__(self, *stages: Stage | str | Iterable[str]) -> None:
        given = stages[0] if len(stages) == 1 and isinstance(stages[0], list) else stages
        self._stages = [_stage(part) for part in given]

    @property
    def stages(self) -> list[Stage]:
        """The stages."""
        return list(self._stages)

    def stage(self, index: int) -> Stage:
        """One of the stages.

        Args:
            index: Its place.

        Returns:
            The stage.
        """
        return self._stages[index]

    def ipus(self, *ipus: int) -> Self:
        """Sets the IPU of every stage.

        Args:
            *ipus: As many as there are stages.

        Returns:
            This phase.

        Raises:
            OptionError: Another number of them.
        """
        if len(ipus) != len(self._stages):
            raise OptionError(
                "PD300",
                "a Phase needs one IPU for each of its stages",
                value=ipus,
                accepted=f"{len(self._stages)} of them",
            )
        for stage, ipu in zip(self._stages, ipus, strict=True):
            stage.ipu(ipu)
        return self

    def __repr__(self) -> str:
        return f"Phase({', '.join(map(repr, self._stages))})"


class ExecutionStrategy:
    """Base of all strategies."""

    _parts: Sequence[object] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(shown, self._parts))})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # strategies can be changed


class PipelinedExecution(ExecutionStrategy):
    """One stage after another, each on an IPU of its own, on different micro-batches.

    Args:
        *args: Stages, names of blocks (a stage each) or lists of names; or one ``AutoStage``, by
            default ``SameAsIpu``.

    Raises:
        OptionError: A block is in two stages.
    """

    def __init__(self, *args: AutoStage | Stage | str | Iterable[str]) -> None:
        if not args:
            args = (AutoStage.SameAsIpu,)
        if isinstance(args[0], AutoStage):
            self._parts: list[AutoStage] | list[Stage] = [member("a strategy", args[0], AutoStage)]
            return
        self._parts = [_stage(part) for part in args]  # type: ignore[arg-type]
        _unique(self._parts)

    def stage(self, block_id: str) -> Stage:
        """The stage that a block belongs to.

        Args:
            block_id: Name of the block.

        Returns:
            The stage.

        Raises:
            OptionError: No stage has such a block.
        """
        return _stage_of(block_id, self._parts)


class ShardedExecution(PipelinedExecution):
    """One stage after another, each on an IPU of its own, one micro-batch at a time."""


class _PhasedExecution(ExecutionStrategy):
    """Phases that follow each other, with weights brought in from memory beside the chip.

    Args:
        *phases: Phases, or what makes one; by default those that blocks say themselves.
    """

    def __init__(self, *phases: AutoStage | Phase | Stage | str | list[Stage | str]) -> None:
        self._separate_backward_phase = False
        if phases and isinstance(phases[0], AutoStage):
            self._parts = [phases[0]]
            return
        made = [_phase(part) for part in phases]
        _unique([stage for phase in made for stage in phase.stages])
        self._parts = made

    def stage(self, block_id: str) -> Stage:
        """The stage that a block belongs to.

        Args:
            block_id: Name of the block.

        Returns:
            The stage.

        Raises:
            OptionError: No stage has such a block.
        """
        phases = [part for part in self._parts if isinstance(part, Phase)]
        return _stage_of(block_id, [stage for phase in phases for stage in phase.stages])

    def phase(self, phase: int) -> Phase:
        """One of the phases.

        Args:
            phase: Its place.

        Returns:
            The phase.
        """
        found = self._parts[phase]
        if not isinstance(found, Phase):
            raise OptionError("PD300", "the strategy lists no phases", value=phase)
        return found

    def useSeparateBackwardPhase(self, use: bool = True) -> Self:
        """Stores whether the backward pass starts in a phase of its own.

        Args:
            use: Whether it does.

        Returns:
            This strategy.
        """
        self._separate_backward_phase = flag("useSeparateBackwardPhase", use)
        return self


class ParallelPhasedExecution(_PhasedExecution):
    """Phases alternate between two sets of IPUs."""


class SerialPhasedExecution(_PhasedExecution):
    """Phases follow each other on one set of IPUs."""

    def setTensorsLiveness(self, liveness: Liveness) -> Self:
        """Stores how long tensors stay on the chip.

        Args:
            liveness: How long.

        Returns:
            This strategy.
        """
        self._liveness = member("setTensorsLiveness", liveness, Liveness)
        return self


def _stage_of(block_id: str, parts: Iterable[object]) -> Stage:
    for stage in parts:
        if isinstance(stage, Stage) and block_id in stage.blocks:
            return stage
    raise OptionError("PD300", "no stage has such a block", value=block_id)


def _stage(part: Stage | str | Iterable[str]) -> Stage:
    if isinstance(part, Stage):
        return part
    return Stage(part) if isinstance(part, str | int) else Stage(*part)


def _phase(part: object) -> Phase:
    if isinstance(part, Phase):
        return part
    return Phase(*part) if isinstance(part, list | tuple) else Phase(part)  # type: ignore[arg-type]


def _unique(stages: Sequence[object]) -> None:
    blocks = [block for stage in stages if isinstance(stage, Stage) for block in stage.blocks]
    twice = sorted({block for block in blocks if blocks.count(block) > 1})
    if twice:
        raise OptionError("PD300", "a block is in two stages of the strategy", value=twice)
