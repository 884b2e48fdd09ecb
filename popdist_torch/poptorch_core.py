"""PopTorch's compiled module, of which programs use the error types."""

from popdist_torch.errors import Error, RecoverableError, UnrecoverableError

__all__ = ["Error", "RecoverableError", "UnrecoverableError"]
