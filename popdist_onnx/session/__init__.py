"""Sessions with their devices, data and weights."""

from popdist_onnx.session.devices import DeviceInfo, DeviceManager
from popdist_onnx.session.inference import InferenceSession
from popdist_onnx.session.step_io import PyStepIO, PyStepIOCallback
from popdist_onnx.session.training import TrainingSession
from popdist_onnx.session.weights import PyWeightsIO

__all__ = [
    "DeviceInfo",
    "DeviceManager",
    "InferenceSession",
    "PyStepIO",
    "PyStepIOCallback",
    "PyWeightsIO",
    "TrainingSession",
]
