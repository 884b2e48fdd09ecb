"""PopTorch's private functions that public libraries use."""

from popdist_torch.executor.host_access import rewrap as rewrapModelIfNecessary  # noqa: N812
from popdist_torch.executor.host_access import unwrap as unwrapModelIfNecessary  # noqa: N812
from popdist_torch.executor.weights import a_model_runs as isDispatchTracing  # noqa: N812

__all__ = ["isDispatchTracing", "rewrapModelIfNecessary", "unwrapModelIfNecessary"]
