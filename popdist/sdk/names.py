"""Which module of ours stands for which module of the SDK: the one declaration of it."""

from __future__ import annotations

ALIASES: dict[str, str] = {
    "popart": "popdist_onnx",
    "horovod.popart": "popdist_onnx.horovod",
    "poptorch": "popdist_torch",
    "tensorflow.python.ipu": "popdist_tf.ipu",
}
"""The SDK's modules and ours. Sub-modules follow: ``poptorch.optim`` is ``popdist_torch.optim``."""

LISTS: dict[str, str] = {
    "popart": "popart",
    "horovod.popart": "horovod_popart",
    "poptorch": "poptorch",
    "tensorflow.python.ipu": "tensorflow_ipu",
}
"""The file of `popdist.sdk.surface` that lists what a module of the SDK publishes."""


def ours(name: str) -> str | None:
    """The module of ours that a module name of the SDK stands for.

    Args:
        name: Any absolute module name.

    Returns:
        Our module's name, or None where the name is none of the SDK's.
    """
    for sdk, mine in ALIASES.items():
        if name == sdk or name.startswith(f"{sdk}."):
            return mine + name[len(sdk) :]
    return None


def published(module: str, name: str = "") -> tuple[str, str] | None:
    """Where the SDK publishes what one of our modules, or the SDK's, holds.

    Args:
        module: A module, by our name or by the SDK's.
        name: A dotted name in it.

    Returns:
        The SDK's module (a key of `ALIASES`) and the dotted name below it, or None for a module
        that stands for none of the SDK's.
    """
    full = f"{module}.{name}" if name else module
    # The longest first: `popdist_onnx.horovod` is no sub-module of `popart`.
    for sdk, mine in sorted(ALIASES.items(), key=lambda pair: -len(pair[1])):
        for root in (mine, sdk):
            if full == root or full.startswith(f"{root}."):
                return sdk, full[len(root) + 1 :]
    return None
