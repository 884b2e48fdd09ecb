"""The adapter's errors; each inherits from the type that PopART programs expect as well.

PopART's programs and tests compare the first argument with a published sentence. So unlike
elsewhere this argument is the sentence alone, and in the text the code follows the sentence.
"""

from __future__ import annotations

from typing import Any

from popdist.errors import PopdistError, declare

CODES = declare(
    {
        # Types, builder, lowering.
        "PD500": "a tensor of an operator is unknown, or their number is wrong",
        "PD501": "an argument of a builder method is unknown, missing or malformed",
        "PD502": "operator sets are unknown or contradict each other",
        "PD503": "an operator of PopART cannot be expressed for a host",
        "PD504": "a tensor or node of this name does not exist, exists already, or is reserved",
        "PD505": "a node attribute does not exist, exists already, or is of another type",
        "PD506": "a session option is unknown, or its value is of the wrong type or out of range",
        "PD507": "a tensor's type or shape is malformed",
        "PD508": "a data flow or an anchor's return type is malformed",
        "PD509": "an ONNX model cannot be read or written",
        "PD510": "an operator's operands or attributes do not fit each other",
        "PD511": "an operator cannot be converted to operators of ONNX Runtime",
        # Graphs and gradients.
        "PD520": "a model file does not exist or is not a model",
        "PD521": "a model's opset, or a form that only old opsets had, is not supported",
        "PD522": "an operator between a weight and the loss has no gradient rule",
        "PD523": "the loss does not exist or is not a scalar",
        "PD524": "a pass left an invalid graph",
        "PD525": "a gradient needs facts that the graph does not have",
        # Optimizers, and the exchange of gradients on the host.
        "PD540": "an optimizer's setting is unknown or malformed",
        "PD541": "an optimizer's setting is out of range",
        "PD542": "a new optimizer does not fit the graph of the session",
        "PD543": "settings of an optimizer contradict each other",
        "PD544": "an optimizer names a weight that the model does not have",
        "PD545": "updates need gradients that the model does not have, or has them already",
        "PD546": "an optimizer state in the model does not fit the optimizer",
        "PD547": "session options cannot be combined with hostAllReduce",
        "PD548": "a gradient or stream of the host allreduce does not exist, or exists already",
        "PD549": "a gradient depends on the update of another gradient",
        "PD600": "gradients of the parts of a batch do not add up to that of the whole (a warning)",
        # Runtime, sessions, Horovod.
        "PD560": "the type of a tensor that the runtime has to store is not known",
        "PD561": "the nodes of a graph are not in topological order",
        "PD562": "no output of a model is needed",
        "PD563": "ONNX Runtime does not accept a graph",
        "PD564": "ONNX Runtime failed in a step",
        "PD565": "gradients are to be summed on the host, but nothing is connected there",
        "PD566": "a tensor is not finite",
        "PD567": "a stream of gradients does not exist, or the session has none",
        "PD569": "options describe replicas in other processes, but there are none",
        "PD570": "a device does not exist, or cannot run a session",
        "PD571": "the data of a step do not fit the model",
        "PD572": "session options contradict each other or the kind of session",
        "PD573": "the shape of a model's input is unknown or contradictory",
        "PD574": "an array does not fit a weight, or weights cannot be replaced",
        "PD575": "an option for cycle counts or random streams is not set",
        "PD576": "a session has no tensor of this name",
        "PD577": "methods of a session were called in the wrong order",
        "PD578": "DistributedOptimizer was used in a wrong way",
        "PD579": "an argument of popdist_onnx.train is not valid",
        "PD610": "a tensor of a model's file has no readable content of the size that it states",
        "PD611": "a model's graph is malformed",
        "PD580": "the type or shape of a tensor cannot be inferred",
        "PD581": "automatic loss scaling is not possible with these settings",
        "PD583": "settings, metrics or callbacks of a training are not valid",
        "PD584": "a torch module and an ONNX model do not fit each other",
        "PD585": "a checkpoint is not one of this training",
        "PD586": "the data of a training are not valid",
        "PD592": "an exported file computes other results than the torch module",
        "PD593": "an exported file lacks parameters of the torch module",
        "PD594": "a torch module writes buffers that an exported file does not update",
        "PD595": "a torch embedding has settings or bags that an exported file does not carry",
        "PD124": "a file that torch traced holds for the example inputs only",
        "PD597": "a file that torch exported has other gradients than the module",
        "PD598": "operators on whole numbers would keep weights from training",
        "PD599": "the model ended a run by an abort",
        "PD596": "a package for an exporter of torch is missing",
        "PD590": "a tensor of a step is unknown or missing",
        "PD591": "a graph cannot sum a tensor over these replicas",
    }
)
"""The adapter's codes with their meaning."""


# The published names of this family are what programs write in `except` clauses.
class popart_exception(PopdistError, RuntimeError):  # noqa: N801, N818
    """A model, an option or a call cannot be used as asked."""

    def __init__(self, code: str, what: str, **parts: Any) -> None:
        super().__init__(code, what, **parts)
        self.args = (what,)

    def __str__(self) -> str:
        lead = f"[{self.code}] {self.what}"
        return self._text().replace(lead, f"{self.what} [{self.code}]", 1)


class popart_internal_exception(popart_exception):  # noqa: N801
    """An invariant of the adapter does not hold: a mistake of ours."""


class popart_runtime_error(popart_exception):  # noqa: N801
    """A step failed while it ran."""


class poplar_exception(PopdistError, RuntimeError):  # noqa: N801, N818
    """What runs the graph (here ONNX Runtime) refused it."""


class poplar_runtime_error(poplar_exception):  # noqa: N801
    """What runs the graph failed while it ran."""


class poplar_recoverable_runtime_error(poplar_runtime_error):  # noqa: N801
    """A failure after which a restart may help; no host failure is known to be one."""


class poplar_unrecoverable_runtime_error(poplar_runtime_error):  # noqa: N801
    """A failure after which a restart does not help."""


class poplibs_exception(PopdistError, RuntimeError):  # noqa: N801, N818
    """An operator's kernel refused its operands."""


class OutOfMemoryException(popart_exception):
    """The model does not fit into memory."""


class UnknownShapeError(popart_exception, ValueError):
    """The type or shape of a tensor is needed, but cannot be told before it is computed."""


class ArgumentError(popart_exception, TypeError):
    """An argument is unknown, missing, or of a type that the call does not take."""


class ValueRangeError(popart_exception, ValueError):
    """An argument has the right type, but not an accepted value."""


class OptionError(popart_exception, AttributeError):
    """An option that does not exist was read or written."""


class NotOnHostError(popart_exception, NotImplementedError):
    """Something exists in PopART, but cannot be expressed for a host."""
