"""Preprocessing layers of Keras that each instance has adapted to data of its own.

``adapt`` computes the mean and variance of a `Normalization`, or the vocabulary of a lookup, from
what it is given, in this process alone. Where each instance gives its own part of the data, equal
weights get different inputs from equal samples: each instance trains another function.

Layers of a model that is fitted must have the same state on all instances. Layers that a program
uses elsewhere, in `tf.data` for example, cannot be seen; so a difference of what ``adapt`` has
computed is a warning. A program may compute it on one instance and share it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow.compat.v2 as tf

from popdist import agreement
from popdist.agreement import ABSENT
from popdist_tf.checks import LAYERS, warn
from popdist_tf.collectives.agreement import compared
from popdist_tf.errors import AgreementError
from popdist_tf.patches import surround

if TYPE_CHECKING:
    from popdist_tf.collectives.host import HostCollectives

_STATES = "_popdist_adapted"
_OF_MODEL = "layer of the model"
_KINDS = ("Discretization", "IntegerLookup", "Normalization", "StringLookup", "TextVectorization")
_HINT = (
    "adapt the layer to the same samples on all instances, or compute its state once and share it: "
    "Normalization(mean=..., variance=...), set_vocabulary(...), or the layer's file"
)


def note_adapted() -> None:
    """Makes Keras' preprocessing layers note what they adapt to; safe to call again."""
    if not hasattr(tf.keras.layers.Layer, _STATES):
        setattr(tf.keras.layers.Layer, _STATES, [])  # for each call of a layer's `adapt`
    for kind in _kinds():
        surround(kind, "adapt", "states", _adapt)


def _adapt(known: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
    result = known(layer, *args, **kwargs)
    getattr(layer, _STATES).append(_state_of(layer))
    return result


def _kinds() -> tuple[Any, ...]:
    return tuple(getattr(tf.keras.layers, name) for name in _KINDS)


def _state_of(layer: Any) -> str:
    """A text that differs where layers do: the kind, and a digest of what the layer has computed.

    Args:
        layer: A preprocessing layer, adapted or not.
    """
    parts = [getattr(layer, name, None) for name in ("mean", "variance", "bin_boundaries")]
    parts += [getattr(one, "idf_weights", None) for one in (layer, _lookup_of(layer))]
    known = [np.asarray(one).astype(np.float64).tobytes() for one in parts if one is not None]
    if hasattr(layer, "get_vocabulary"):
        known.append(repr(list(map(str, layer.get_vocabulary()))).encode())
    return f"{type(layer).__name__} {agreement.digest(b'|'.join(known))}"


def _lookup_of(layer: Any) -> Any:
    return getattr(layer, "_lookup_layer", None)


def compare_layers(collectives: HostCollectives, model: Any = None) -> None:
    """Compares what preprocessing layers have computed; every instance must call it.

    Args:
        collectives: The job's collectives.
        model: The model that is about to be trained; None where it is not known.

    Raises:
        AgreementError: Layers of the model differ; raised on all instances.
    """
    if collectives.horovod is None:
        return
    # Layers of layers are among them.
    held = [] if model is None else model._flatten_layers()
    states = [_state_of(one) for one in held if isinstance(one, _kinds())]
    noted: list[str] = getattr(tf.keras.layers.Layer, _STATES, [])
    facts = {f"{_OF_MODEL} {number}": state for number, state in enumerate(states)}
    facts |= {f"adapt {number}": state for number, state in enumerate(noted)}
    noted.clear()
    found = compared(collectives, "preprocessing layers", facts)
    of_model = [row for row in found if row.name.startswith(_OF_MODEL)]
    if of_model:
        raise AgreementError(
            "PD007",
            "the instances hold different preprocessing layers: they would train on other inputs",
            value="; ".join(map(str, of_model)),
            accepted="layers with the same mean and variance, vocabulary or boundaries",
            hint=_HINT,
        )
    # A program may call `adapt` on some instances alone, and share what it has computed.
    is_apart = found and not any(ABSENT in row.values for row in found)
    if is_apart and collectives.rank == 0:
        warn(
            LAYERS,
            "each instance has adapted a preprocessing layer to data of its own, so equal "
            f"samples become other inputs on each ({found[0].says}). Please {_HINT}.",
            "Where the results are shared",
        )
