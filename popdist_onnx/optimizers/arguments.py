"""What the constructors of optimizers are given, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.errors import ArgumentError
from popdist_onnx.optimizers.clip_norm import ClipNormMode, ClipNormSettings
from popdist_onnx.optimizers.errors import OptimizerSettingError
from popdist_onnx.types.dtypes import DataType

if TYPE_CHECKING:
    from collections.abc import Sequence
    from enum import Enum

_FLOAT_TYPES = (DataType.UNDEFINED, DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16)


def state_type(name: str, given: DataType | str) -> DataType:
    """Reads the element type that a state is kept in.

    Args:
        name: The argument's name, for the message.
        given: The type; UNDEFINED means the weight's.

    Returns:
        The type.

    Raises:
        OptimizerSettingError: States cannot be kept in it.
    """
    accepted = ", ".join(t.name for t in _FLOAT_TYPES)
    try:
        read = DataType.of(given)
    except ArgumentError as error:
        raise OptimizerSettingError(
            "PD540", f"{name} is no element type", value=given, accepted=accepted
        ) from error
    if read not in _FLOAT_TYPES:
        raise OptimizerSettingError(
            "PD540", f"{name} is a floating-point type", value=read.name, accepted=accepted
        )
    return read


def check_member(name: str, given: object, enumeration: type[Enum]) -> None:
    """Refuses an argument that is no member of its enumeration.

    Args:
        name: The argument.
        given: Its value.
        enumeration: The enumeration.

    Raises:
        OptimizerSettingError: It is none.
    """
    if not isinstance(given, enumeration):
        raise OptimizerSettingError(
            "PD540",
            f"{name} is a member of {enumeration.__name__}",
            value=given,
            accepted=", ".join(f"{enumeration.__name__}.{m.name}" for m in enumeration),
        )


def checked_clips(clips: Sequence[ClipNormSettings]) -> tuple[ClipNormSettings, ...]:
    """Refuses groups of clipping that are none, or share a weight.

    Args:
        clips: The groups.

    Returns:
        The same.

    Raises:
        OptimizerSettingError: One is no group, or a weight is in two.
    """
    clips = tuple(clips)
    for clip in clips:
        if not isinstance(clip, ClipNormSettings):
            raise OptimizerSettingError(
                "PD540",
                "clip_norm_settings is a list of ClipNormSettings",
                value=clip,
                hint="write [ClipNormSettings.clipAllWeights(1.0)]",
            )
    everything = any(clip.mode is ClipNormMode.ClipAllWeights for clip in clips)
    named = [weight for clip in clips for weight in clip.weightIds]
    twice = sorted({weight for weight in named if named.count(weight) > 1})
    if twice or (everything and len(clips) > 1):
        raise OptimizerSettingError(
            "PD540",
            "a weight is in more than one clipping group",
            value=twice or clips,
            accepted="each weight in one group at most",
        )
    return clips
