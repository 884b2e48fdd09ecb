"""Watches the frameworks of training that a program imports.

In a job of several instances, the updates of the framework's optimizers are noted. Where a program
is compared with itself alone, the recording of the framework starts.
"""

from __future__ import annotations

import sys
from typing import Any

from popdist.checks.plain_torch import note_step
from popdist.checks.trained import END, LIGHTNING, is_several
from popdist.popdist_core import topology

_NOTHING = "".format
"""Takes any arguments, and does nothing."""


def imported(framework: str, module: Any) -> None:
    """Called in a program of poprun that has imported a framework of training.

    Args:
        framework: ``"torch"``, ``"keras"`` or ``"tensorflow"``.
        module: The framework's module.
    """
    if topology().compare_folder is not None:
        _record(framework)
    if not is_several():
        return
    if framework == "torch":
        _note_steps()
    if framework == "keras":
        _note_updates(module)


def _record(framework: str) -> None:
    """Starts the recording of what a framework trains."""
    from importlib import import_module

    home = {"torch": "popdist_torch.recording", "tensorflow": "popdist_tf.recording"}.get(framework)
    if home is not None:
        import_module(home).start()


def _note_steps() -> None:
    """Notes the steps of torch's optimizers."""
    optimizers: Any = sys.modules["torch.optim.optimizer"]
    if not hasattr(optimizers, "register_optimizer_step_post_hook"):  # torch 1
        return
    is_connected = False

    def note(optimizer: Any, *_: Any) -> None:
        nonlocal is_connected
        framework = "lightning" if LIGHTNING & sys.modules.keys() else "torch"
        is_connected = is_connected or END.note_training(framework)
        if is_connected and "popdist_torch" in sys.modules:
            # It cannot be removed while torch iterates over all hooks.
            hook.hooks_dict_ref()[hook.id] = _NOTHING
        elif is_connected:
            note_step(optimizer)

    hook = optimizers.register_optimizer_step_post_hook(note)


def _note_updates(keras: Any) -> None:
    """Notes the updates of Keras' optimizers, up to the first one that is connected."""
    homes = (keras.optimizers, getattr(keras.optimizers, "legacy", None))  # of Keras 2.10
    for kind in filter(None, (getattr(home, "Optimizer", None) for home in homes)):
        method = "apply" if hasattr(kind, "apply") else "apply_gradients"
        owner = next((one for one in kind.__mro__ if method in vars(one)), None)
        if owner is not None:
            _note_calls(owner, method)


def _note_calls(owner: Any, method: str) -> None:
    update = getattr(owner, method)

    def noted(*args: Any, **kwargs: Any) -> Any:
        if END.note_training("keras") and getattr(owner, method) is noted:
            setattr(owner, method, update)
        return update(*args, **kwargs)

    setattr(owner, method, noted)
