"""What torch 1 accepted, for programs of that time with the SDK's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType


def serve(torch: ModuleType) -> None:
    """Completes torch; safe to call again.

    ``torch.utils.data.Sampler`` took the data, and did nothing with them: samplers of programs call
    ``super().__init__(data_source)``. Now it has no constructor of its own.

    Args:
        torch: The module ``torch``.
    """
    sampler = torch.utils.data.Sampler
    if "__init__" in vars(sampler):
        return

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - becomes the method
        following = super(sampler, self).__init__
        is_last = getattr(following, "__objclass__", None) is object
        if is_last and len(args) + len(kwargs) == 1 and kwargs.keys() <= {"data_source"}:
            following()
        else:
            following(*args, **kwargs)

    sampler.__init__ = __init__
