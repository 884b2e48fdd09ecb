"""The published functions that tell how the tensors begin that training adds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.graph import names

if TYPE_CHECKING:
    from collections.abc import Callable


def _returns(prefix: str) -> Callable[[], str]:
    def reserved() -> str:
        return prefix

    reserved.__doc__ = f"The prefix ``{prefix}``."
    return reserved


reservedGradientPrefix = _returns(names.GRADIENT)
reservedUpdatedVarPrefix = _returns(names.UPDATED)
reservedAccumPrefix = _returns(names.ACCUMULATOR)
reservedAcclPrefix = _returns(names.ACCL)
reservedAccl1Prefix = _returns(names.ACCL1)
reservedAccl2Prefix = _returns(names.ACCL2)
reservedAccl3Prefix = _returns(names.ACCL3)
reservedStepPrefix = _returns(names.STEP)
reservedFinalReducedGradPrefix = _returns(names.FINAL_GRADIENT)
hostReduceGradCopyPrefix = _returns(names.HOST_REDUCE_GRAD_COPY)
hostReduceVarCopyPrefix = _returns(names.HOST_REDUCE_VAR_COPY)


def _default(scalar: str) -> Callable[[], str]:
    return _returns(scalar + names.DEFAULT_SCALAR)


def _specific(scalar: str) -> Callable[[], str]:
    return _returns(scalar + names.SPECIFIC_SCALAR)


reservedDefaultScaledLearningRate0Prefix = _default("scaledLearningRate0")
reservedSpecificScaledLearningRate0Prefix = _specific("scaledLearningRate0")
reservedDefaultWeightDecayScaleFactor0Prefix = _default("weightDecayScaleFactor0")
reservedSpecificWeightDecayScaleFactor0Prefix = _specific("weightDecayScaleFactor0")
reservedDefaultScaledLearningRate1Prefix = _default("scaledLearningRate1")
reservedSpecificScaledLearningRate1Prefix = _specific("scaledLearningRate1")
reservedDefaultScaledWeightDecay1Prefix = _default("scaledWeightDecay1")
reservedSpecificScaledWeightDecay1Prefix = _specific("scaledWeightDecay1")
reservedDefaultDampeningScaleFactor1Prefix = _default("dampeningScaleFactor1")
reservedSpecificDampeningScaleFactor1Prefix = _specific("dampeningScaleFactor1")
reservedDefaultScaledMomentum1Prefix = _default("scaledMomentum1")
reservedSpecificScaledMomentum1Prefix = _specific("scaledMomentum1")

__all__ = sorted(name for name in globals() if name.endswith("Prefix"))  # noqa: PLE0605 - no second list
