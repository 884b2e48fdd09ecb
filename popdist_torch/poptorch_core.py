"""PopTorch's compiled module, of which programs use the error types and one question."""

from popdist_torch.errors import Error, RecoverableError, UnrecoverableError
from popdist_torch.executor.weights import a_model_runs as isCompilingWithDispatcher  # noqa: N812

__all__ = ["Error", "RecoverableError", "UnrecoverableError", "isCompilingWithDispatcher"]
