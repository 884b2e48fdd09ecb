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

# SGD with Separate accumulator and momentum, the Adam family, and the adaptive optimizers.

reservedDefaultScaledLearningRate2Prefix = _default("scaledLearningRate2")
reservedSpecificScaledLearningRate2Prefix = _specific("scaledLearningRate2")
reservedDefaultDampeningScaleFactor2Prefix = _default("dampeningScaleFactor2")
reservedSpecificDampeningScaleFactor2Prefix = _specific("dampeningScaleFactor2")
reservedDefaultScaledMomentum2Prefix = _default("scaledMomentum2")
reservedSpecificScaledMomentum2Prefix = _specific("scaledMomentum2")
reservedDefaultLearningRatePrefix = _default("learningRate")
reservedSpecificLearningRatePrefix = _specific("learningRate")
reservedDefaultWeightDecayPrefix = _default("weightDecay")
reservedSpecificWeightDecayPrefix = _specific("weightDecay")
reservedDefaultMaxWeightNormPrefix = _default("maxWeightNorm")
reservedSpecificMaxWeightNormPrefix = _specific("maxWeightNorm")
reservedDefaultAdamBeta1Prefix = _default("adamBeta1")
reservedSpecificAdamBeta1Prefix = _specific("adamBeta1")
reservedDefaultAdamBeta2Prefix = _default("adamBeta2")
reservedSpecificAdamBeta2Prefix = _specific("adamBeta2")
reservedDefaultAdamEpsPrefix = _default("adamEps")
reservedSpecificAdamEpsPrefix = _specific("adamEps")
reservedDefaultAdamGradientScalingPrefix = _default("adamGradientScaling")
reservedSpecificAdamGradientScalingPrefix = _specific("adamGradientScaling")
reservedDefaultAdaptiveAlphaPrefix = _default("adaptiveAlpha")
reservedSpecificAdaptiveAlphaPrefix = _specific("adaptiveAlpha")
reservedDefaultAdaptiveEpsPrefix = _default("adaptiveEps")
reservedSpecificAdaptiveEpsPrefix = _specific("adaptiveEps")
reservedDefaultAdaptiveGradientScalingPrefix = _default("adaptiveGradientScaling")
reservedSpecificAdaptiveGradientScalingPrefix = _specific("adaptiveGradientScaling")
reservedDefaultAdaptiveMomentumPrefix = _default("adaptiveMomentum")
reservedSpecificAdaptiveMomentumPrefix = _specific("adaptiveMomentum")
reservedLossScalingPrefix = _returns("lossScaling_")

# Tensors that only a compiler of IPU programs makes: no tensor here has such a name.

reservedAcclToReducePrefix = _returns("AcclIntoReduce___")
reservedAcclToUpdatePrefix = _returns("AcclIntoUpdate___")
reservedAcclFinalOutPrefix = _returns("AcclOut___")
reservedRandomSeedPrefix = _returns("randomSeed___")
reservedRestoredPrefix = _returns("Restored___")
reservedStashedPrefix = _returns("Stashed___")

__all__ = sorted(name for name in globals() if name.endswith("Prefix"))  # noqa: PLE0605 - no second list
