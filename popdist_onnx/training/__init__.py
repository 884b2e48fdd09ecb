"""Training in a few lines, for those who have a model and data and want no sessions."""

from popdist_onnx.training.trainer import Trainer, train

__all__ = ["Trainer", "train"]
