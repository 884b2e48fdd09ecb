"""PopTorch's private module of executors, of which libraries use the class."""

from popdist_torch.executor.executor import Executor as PoplarExecutor

__all__ = ["PoplarExecutor"]
