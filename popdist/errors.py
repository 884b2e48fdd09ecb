"""The errors a user sees: what was wrong, the value seen, what is accepted, and a hint.

Every error carries a stable code (``PD012``) by which the troubleshooting page is keyed.
"""

from __future__ import annotations

CODES: dict[str, str] = {
    # Contract between launcher and instance (popdist.popdist_core).
    "PD001": "a POPDIST_* variable is malformed",
    "PD002": "POPDIST_* variables contradict each other or are incomplete",
    "PD003": "a function needs the same number of replicas in every instance",
    "PD004": "an argument does not fit the job",
    # Host communication (popdist.backend).
    "PD010": "no usable Horovod is installed",
    "PD011": "Horovod sees another job than the launcher started",
    "PD012": "host communication is not initialised",
    # Exchange of gradients (popdist.exchange).
    "PD020": "an exchange plan does not fit the buffers it was given",
    "PD021": "an exchange was aborted because another instance ended or failed",
    "PD022": "a gradient changed after it was handed to the exchange",
    # Launcher (popdist.poprun).
    "PD100": "an option is unknown, ambiguous or malformed",
    "PD101": "options contradict each other",
    "PD102": "the program is missing or cannot be started",
    "PD103": "a host list is malformed",
    "PD104": "no usable mpirun was found",
    "PD105": "the job does not fit the hosts",
    "PD106": "a configuration file cannot be read or written",
    "PD107": "a job may not run as root",
    "PD108": "a job cannot be written as a Kubernetes manifest",
    "PD109": "a folder of the launcher cannot be made",
    "PD110": "a place for logs, results or timelines cannot be written",
    "PD140": "a folder holds nothing of a run that could be shown, or its page cannot be written",
    "PD120": "hosts cannot be reached, or are not like this one",
    "PD121": "the job and the Slurm allocation it runs in contradict each other",
    "PD130": "a partition does not exist or cannot be created as asked",
    "PD131": "a partition's devices are in use",
    "PD132": "a V-IPU server on the network is out of scope",
    "PD133": "a partition is not what the job needs",
    # Horovod build (popdist.horovod_build).
    "PD200": "the Horovod build cannot start on this machine",
    "PD201": "the Horovod source cannot be had or is not the expected one",
    "PD202": "compiling Horovod failed",
    "PD203": "the built Horovod does not work",
    "PD204": "no MPI that Horovod and the launcher can share was found",
    "PD205": "the built wheel could not be installed",
    # PyTorch adapter (popdist_torch).
    "PD300": "an option of poptorch.Options is unknown, malformed or frozen",
    "PD301": "a batch does not fit micro-batch x accumulation x iterations x replicas",
    "PD302": "a data set cannot be divided over the instances",
    "PD303": "the model has no loss, or more than one",
    "PD304": "the instances disagree about the model or the data",
    "PD305": "a wrapped model was used in a way its state does not allow",
    "PD306": "an optimizer cannot be used",
    "PD307": "a checkpoint cannot be written, read or used",
    "PD308": "a plain loop uses the distributed optimizer in a way that cannot be right",
    "PD309": "a loss is infinite or not a number",
    # ONNX adapter (popdist_onnx): types, builder, lowering.
    "PD500": "an operator was given an unknown tensor, or the wrong number of them",
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
    "PD511": "an operator cannot be lowered to what ONNX Runtime runs",
    # ONNX adapter: runtime, sessions, Horovod.
    "PD560": "the type of a tensor that the runtime has to store is not known",
    "PD561": "the nodes of a graph are not in an order in which they can run",
    "PD562": "nothing of a model is needed, so there is nothing to compute",
    "PD563": "ONNX Runtime does not take a graph",
    "PD564": "ONNX Runtime failed in a step",
    "PD565": "gradients are to be summed on the host, but nobody is connected there",
    "PD566": "a tensor is not finite",
    "PD567": "a stream of gradients does not exist, or the session has none",
    "PD568": "the instances disagree about the model, the options or the weights",
    "PD569": "options speak of replicas in other processes, but there are none",
    "PD570": "a device does not exist, or cannot run a session",
    "PD571": "the data of a step do not fit the model",
    "PD572": "session options contradict each other or the kind of session",
    "PD573": "the shape of a model's input is open, or contradicts what was said of it",
    "PD574": "an array does not fit a weight, or weights cannot be replaced",
    "PD575": "cycle counts or random streams were asked for in a way that is not possible",
    "PD576": "a session has no tensor of this name",
    "PD577": "calls of a session came in the wrong order",
    "PD578": "DistributedOptimizer was used in a way that is not possible",
    "PD579": "the front door for training was given something it cannot use",
    # TensorFlow adapter (popdist_tf).
    "PD400": "an attribute of IPUConfig is unknown or has a wrong type",
    "PD401": "an IPUConfig contradicts itself or the job",
    "PD402": "TensorFlow has started already, and a device setting comes too late",
    "PD410": "a value cannot be reduced, gathered or broadcast over the instances",
    "PD411": "a distribution strategy cannot be created here",
    "PD412": "a distribution strategy was used in a way it cannot honour",
    "PD413": "the instances disagree about variables, collectives or steps",
    "PD420": "this TensorFlow has no estimators",
    "PD421": "an estimator was configured in a way that cannot work",
    "PD422": "a model_fn or input_fn returned something that cannot be used",
    "PD423": "an estimator feature is not available in this combination",
    # Names of the IPU SDK (popdist.sdk).
    "PD450": "a name of the IPU SDK is refused on a host",
    "PD451": "the IPU SDK publishes no such name",
    "PD452": "the names of the IPU SDK cannot be enabled here",
    "PD453": "a program cannot be checked for names of the IPU SDK",
    # ONNX adapter: graphs and gradients (popdist_onnx.graph, gradients, transforms).
    "PD520": "a model file does not exist or holds no model",
    "PD521": "a model's opset, or a form that only old opsets had, is not supported",
    "PD522": "an operator on the way to the loss has no gradient rule",
    "PD523": "the loss does not exist or is not a scalar",
    "PD524": "a pass left an invalid graph",
    "PD525": "a gradient cannot be made of what the graph says at this place",
    "PD526": "a variable cannot be trained",
    # ONNX adapter: optimizers and the exchange of gradients on the host.
    "PD540": "an optimizer's setting is unknown or malformed",
    "PD541": "an optimizer's setting is out of range",
    "PD542": "a new optimizer does not fit the graph that the session was built with",
    "PD543": "settings of an optimizer contradict each other",
    "PD544": "an optimizer names a weight that the model does not have",
    "PD545": "updates need gradients that the model does not have, or has them already",
    "PD546": "an optimizer state in the model does not fit the optimizer",
    "PD547": "session options cannot be combined with hostAllReduce",
    "PD548": "a gradient or stream of the host allreduce does not exist, or exists already",
    "PD549": "gradients cannot all be copied out before the first is copied in",
}
"""Every code with its meaning; codes are never reused."""


class PopdistError(Exception):
    """Base of every error that popdist raises on purpose.

    Args:
        code: Stable code, a key of `CODES`.
        what: What was wrong, one sentence without a final full stop.
        value: The value that was seen, where there is one.
        accepted: What would have been accepted.
        hint: The exact fix to try.
    """

    def __init__(
        self,
        code: str,
        what: str,
        *,
        value: object = None,
        accepted: str | None = None,
        hint: str | None = None,
    ) -> None:
        if code not in CODES:
            raise KeyError(f"{code} is not a declared error code")
        self.code = code
        self.what = what
        self.value = value
        self.accepted = accepted
        self.hint = hint
        super().__init__(self._text())

    def _text(self) -> str:
        lines = [f"[{self.code}] {self.what}"]
        if self.value is not None:
            lines.append(f"  seen:     {self.value!r}")
        if self.accepted is not None:
            lines.append(f"  accepted: {self.accepted}")
        if self.hint is not None:
            lines.append(f"  hint:     {self.hint}")
        return "\n".join(lines)


class ContractError(PopdistError, ValueError):
    """The ``POPDIST_*`` variables of this process are malformed or contradictory."""


class NonUniformError(PopdistError, RuntimeError):
    """A function that is defined only for equal numbers of replicas was called without them."""


class ArgumentError(PopdistError, ValueError):
    """An argument of a popdist function does not fit the job it runs in."""


class BackendError(PopdistError, RuntimeError):
    """Host communication is missing, not initialised, or not the launcher's."""


class UsageError(PopdistError, ValueError):
    """The launcher's command line, or a file it names, is wrong."""


class LaunchError(PopdistError, RuntimeError):
    """The job could not be started on this machine or on one of its hosts."""


class BuildError(PopdistError, RuntimeError):
    """Horovod could not be built or does not work."""
