"""Prefixes are those that the passes give."""

import popdist_onnx
from popdist_onnx import prefixes
from popdist_onnx.graph import names
from popdist_onnx.optimizers import adam, adaptive
from popdist_onnx.optimizers.hyperparameters import Scalar, is_scalar_input
from popdist_onnx.optimizers.sgd import LEARNING_RATE_0, MOMENTUM_SCALARS, WEIGHT_DECAY_0
from popdist_onnx.types.enums import SGDAccumulatorAndMomentum


def test_prefixes_of_tensors():
    assert names.gradient("w") == prefixes.reservedGradientPrefix() + "w" == "Gradient___w"
    assert popdist_onnx.reservedUpdatedVarPrefix() == "UpdatedVar___"
    assert prefixes.hostReduceGradCopyPrefix() == "hostReduceGradCopy___"


def test_every_scalar_of_every_optimizer_has_its_two_prefixes():
    made = [
        *(LEARNING_RATE_0, WEIGHT_DECAY_0),
        *(one for kind in SGDAccumulatorAndMomentum for one in MOMENTUM_SCALARS[kind]),
        *(one for module in (adam, adaptive) for one in vars(module).values()),
    ]
    for scalar in (one for one in made if isinstance(one, Scalar)):
        stem = scalar.prefix[0].upper() + scalar.prefix[1:]
        default = getattr(popdist_onnx, f"reservedDefault{stem}Prefix")()
        assert scalar.tensor_id(None, "FLOAT") == f"{default}FLOAT"
        specific = getattr(popdist_onnx, f"reservedSpecific{stem}Prefix")()
        assert scalar.tensor_id("w", "FLOAT") == f"{specific}w"
    assert is_scalar_input(popdist_onnx.reservedLossScalingPrefix() + "FLOAT")


def test_prefixes_of_scalars():
    combined = MOMENTUM_SCALARS[SGDAccumulatorAndMomentum.Combined]
    for scalar in (LEARNING_RATE_0, WEIGHT_DECAY_0, *combined):
        stem = scalar.prefix[0].upper() + scalar.prefix[1:]
        default = getattr(popdist_onnx, f"reservedDefault{stem}Prefix")()
        assert scalar.tensor_id(None, "FLOAT") == f"{default}FLOAT"
        specific = getattr(popdist_onnx, f"reservedSpecific{stem}Prefix")()
        assert scalar.tensor_id("w", "FLOAT") == f"{specific}w"
