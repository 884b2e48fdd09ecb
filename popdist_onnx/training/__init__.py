"""`train` and `Trainer`: training from a model and data, without sessions."""

from popdist_onnx.training.callbacks import Callback, Checkpoint, EarlyStopping, History
from popdist_onnx.training.global_mean import global_mean
from popdist_onnx.training.torch_modules import from_torch, to_torch
from popdist_onnx.training.trainer import Trainer, train

__all__ = [
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "History",
    "Trainer",
    "from_torch",
    "global_mean",
    "to_torch",
    "train",
]
