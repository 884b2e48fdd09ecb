"""Reserved names: every prefix that a pass puts before a tensor's name, spelt once.

Random masks: a pass that needs random numbers adds a graph input ``RandomMask___<n>`` (n from 0 in
graph order) instead of a random operator, because ONNX Runtime fixes an operator's seed when a
session is made. The input's metadata say how the runtime fills it for every micro-batch:

===========================  ================================================================
``popdist.random``           ``bernoulli`` | ``uniform`` | ``normal`` | ``key``
``popdist.random.keep``      bernoulli: probability of a kept element, as a decimal number
``popdist.random.low/high``  uniform: the interval
``popdist.random.mean/scale``  normal: mean and standard deviation
``popdist.random.seed``      the operator's own seed, where it has one
===========================  ================================================================

A ``bernoulli`` mask is a bool tensor, true where the element is kept; the graph scales by ``1 /
keep`` itself. ``uniform`` and ``normal`` tensors have the operator's own type. A ``key`` is a whole
number, from which a branch or the body of a loop computes its random tensors.
"""

from __future__ import annotations

GRADIENT = "Gradient___"
"""Sum of a tensor's edge gradients."""

UPDATED = "UpdatedVar___"
"""Next value of a state tensor; the runtime swaps it with the tensor after each update."""

ACCUMULATOR = "Accum___"
"""Gradient accumulated over micro-batches (Separate momentum, Adam, Adaptive, SGD0)."""

ACCL = "Accl___"
"""Velocity of SGD with Combined accumulator and momentum."""

ACCL1 = "Accl1___"
"""First optimizer state (momentum, first moment)."""

ACCL2 = "Accl2___"
"""Second optimizer state (second moment)."""

ACCL3 = "Accl3___"
"""Third optimizer state (momentum of the adaptive optimizers)."""

STEP = "Step___"
"""Number of updates so far, as float32."""

FINAL_GRADIENT = "FinalReducedGradient___"
"""Accumulated gradient that an update reads."""

HOST_REDUCE_OUT = "HostReduceOut__"
"""What came back from the host for a gradient that was sent there."""

GRADIENT_STORE = "gradientStore__"
"""Stream from device to host of one gradient."""

GRADIENT_LOAD = "gradientLoad__"
"""Stream from host to device of one gradient."""

WEIGHT_LOAD = "weightLoad__"
"""Stream from host to device of one weight."""

HOST_REDUCE_GRAD_COPY = "hostReduceGradCopy___"
"""Node names of the gradient copies."""

HOST_REDUCE_VAR_COPY = "hostReduceVarCopy___"
"""Node names of the weight copies."""

LOSS_SCALE_COUNT = "LossScaleCount___"
"""Large elements of gradients, counted for automatic loss scaling."""

FINAL_LOSS_SCALE = "finalLossScale"
"""The automatic loss scale."""

FINAL_INVERSE_LOSS_SCALE = "finalInverseLossScale_"
"""A number of the optimizer that is divided by the automatic loss scale; its index follows."""

ABORT = "Abort___"
"""Flags by which a graph ends a run."""

RANDOM_MASK = "RandomMask___"
"""Graph inputs that carry random numbers."""

DEFAULT_SCALAR = "___default___"
"""Between an optimizer scalar's name and its type."""

SPECIFIC_SCALAR = "___specific___"
"""Between an optimizer scalar's name and the weight that it belongs to."""

RESERVED = (
    GRADIENT,
    UPDATED,
    ACCUMULATOR,
    ACCL,
    ACCL1,
    ACCL2,
    ACCL3,
    STEP,
    FINAL_GRADIENT,
    HOST_REDUCE_OUT,
    GRADIENT_STORE,
    GRADIENT_LOAD,
    WEIGHT_LOAD,
    HOST_REDUCE_GRAD_COPY,
    HOST_REDUCE_VAR_COPY,
    LOSS_SCALE_COUNT,
    ABORT,
    RANDOM_MASK,
)
"""Prefixes that a model's own inputs and outputs may not have."""

PASS = "popdist.pass"  # noqa: S105 - a key of a node's metadata
"""Metadata key of nodes: the pass that added the node, for example ``backward``."""

PHASE = "popdist.phase"
"""Metadata key of nodes: ``update`` where the node runs once per weight update."""

LOSS = "popdist.loss"
"""Metadata key of models: the name of the loss tensor."""

BUILDER = "popdist"
"""The producer that models of `popdist_onnx.Builder` name."""

FROZEN = "popdist.frozen"
"""Metadata key of models: a JSON list of initializers that are not trained."""

UNBIASED = "popdist.unbiased-variance"
"""Metadata key of models whose running variances are unbiased, as those of torch are."""

LOSS_SCALE_ELEMENTS = "popdist.loss-scale-elements"
"""Metadata key of models: the number of elements that automatic loss scaling counts in one run."""

UPDATE_ON_HOST = "popdist.update-on-host"
"""Metadata key of models: what comes back for a gradient is the weight's next value."""

ORIGIN = "popdist.origin"
"""Metadata key of nodes: operator and opset they had in the file, where loading rewrote them."""

OPSET = "popdist.opset"
"""Key of a loaded graph's ``meta``: the opset of the file, for messages."""

FAILED_INFERENCE = "popdist.failed-inference"
"""Key of a node's ``meta``: why the types and shapes of its outputs could not be inferred."""

ROLE = "popdist.role"
"""Metadata key of nodes: what later passes find them by, for example ``loss-seed``."""

LOSS_SEED = "loss-seed"
"""Role of the node that makes the gradient of the loss."""

PRINTED = "popdist.printed"
"""Metadata key of nodes whose output is printed: its title."""

PRINTED_GRADIENT = "popdist.printed-gradient"
"""Metadata key of the same nodes: the title of the output's gradient, which is printed too."""

ABORT_OF = "popdist.abort"
"""Metadata key of nodes that make a flag: the abort node in words."""

PADDING = "popdist.padding-row"
"""Metadata key of ``Gather`` nodes: the row that looking up does not train, as in torch."""

RANDOM = "popdist.random"
"""Metadata key of graph inputs: the distribution of a random tensor."""


def gradient(tensor: str) -> str:
    """``Gradient___<tensor>``."""
    return GRADIENT + tensor


def updated(tensor: str) -> str:
    """``UpdatedVar___<tensor>``, the name of a state tensor's next value."""
    return UPDATED + tensor


def reserved_prefix(name: str) -> str | None:
    """The reserved prefix of a name; None where it has none."""
    return next((prefix for prefix in RESERVED if name.startswith(prefix)), None)
