"""The adapter's errors; each inherits from the type that PopTorch programs expect as well."""

from __future__ import annotations

from popdist.errors import PopdistError, declare

CODES = declare(
    {
        "PD300": "an option of poptorch.Options is unknown, malformed or frozen",
        "PD301": "a batch does not fit micro-batch x accumulation x iterations x replicas",
        "PD302": "a data set cannot be divided over the instances",
        "PD303": "the model has no loss, or more than one",
        "PD305": "a method of a wrapped model cannot be called in its current state",
        "PD306": "an optimizer cannot be used",
        "PD307": "a checkpoint cannot be written, read or used",
        "PD308": "a plain loop uses the distributed optimizer in a wrong way",
        "PD309": "a loss is NaN or infinite",
        "PD310": "a parameter that is to be trained has no values yet",
        "PD311": "the instances differ after an update",
        "PD312": "a gradient hook would change a part of a sum over replicas",
        "PD313": "a compiled model does not return its loss",
        "PD314": "a gradient hook is not linear",
        "PD315": "a layer would synchronise nothing over replicas",
        "PD316": "a value computed from the loss is not trained (a warning)",
        "PD317": "groups of replicas cannot have versions of a parameter as asked",
        "PD318": "an optimizer would mix the versions that groups of replicas have",
        "PD320": "gradients were changed before all processes had exchanged them",
        "PD323": "instances wait for each other at different places",
        "PD322": "Lightning needs an operation that Horovod does not have",
        "PD321": "a process would train alone, though it was started with others",
        "PD324": "a checkpoint cannot be resumed with another layout of instances",
        "PD325": "a sharded checkpoint needs a folder that all instances share",
        "PD326": "all instances train on the same rows (a warning)",
        "PD327": "an optimizer of a plain loop exchanges no gradients (a warning)",
        "PD328": "a parameter of a plain loop is divided over processes",
        "PD329": "a wrapped model does not use weights that the program has changed (a warning)",
        "PD330": "processes have distributed different optimizers",
        "PD331": "the processes of a Lightning program have different numbers of batches",
        "PD332": "a plain loop asks for gradients of gradients that are exchanged",
        "PD333": "a plain loop updates weights by hand and exchanges no gradients (a warning)",
        "PD335": "gradients of the parts of a batch do not add up to that of the whole (a warning)",
        "PD336": "batch normalization cannot be over all processes as asked",
        "PD339": "forward calls global_mean several times, or in some micro-batches only",
        "PD350": "floating-point exceptions are enabled, and an operation raised one",
        "PD351": "calls of a model that is to be trained train nothing (a warning)",
        "PD352": "a collective operation has a wrong argument",
        "PD353": "a program's options have other replicas than the job (a warning)",
        "PD360": "a custom operator has no host function",
        "PD361": "host functions of custom operators cannot be imported",
        "PD362": "a host function of a custom operator returns another number of tensors",
        "PD363": "a known custom operator does not support an attribute",
        "PD364": "local replicas cannot exchange values with each other here",
        "PD365": "replicas exchange unequal values, or not all of them exchange",
        "PD370": "gradients of DistributedDataParallel cannot be exchanged by popdist",
        "PD390": "a model cannot be wrapped",
        "PD391": "the arguments or shapes of a call do not fit a wrapped model",
        "PD392": "a wrapped model has no tensor of this name",
        "PD393": "a feature exists on an IPU only",
        "PD394": "an accessor was ended, or its data process failed",
        "PD395": "the batches of a data set cannot be sent to the program",
        "PD396": "a saved position does not belong to this loader",
    }
)
"""The adapter's codes with their meaning."""


class Error(PopdistError, RuntimeError):
    """What PopTorch programs know as ``poptorch.Error``: the model cannot be run as asked.

    Attributes:
        type: What kind of error PopTorch would call it.
        location: Where it was found in compiled code; nowhere.
    """

    type = "popdist_torch_error"
    location = ""

    @property
    def message(self) -> str:
        """The error's text."""
        return str(self)


class NotCompiledError(Error, AssertionError):
    """A wrapped model was asked for what it has once it is compiled."""


class RecoverableError(Error):
    """PopTorch raises it where a device can be used again after ``recovery_action``.

    Kept for programs that catch it; hosts have no such failures.

    Attributes:
        recovery_action: What to do.
    """

    recovery_action = ""


class UnrecoverableError(Error):
    """PopTorch raises it where a device is lost; kept for programs that catch it."""


class NotOnHostError(Error, NotImplementedError):
    """Something was asked for that only an IPU has, or only PopTorch's compiler."""


class CustomOperatorError(NotOnHostError):
    """A custom operator has no host function, or the function cannot be used here."""


class OptionError(PopdistError, AssertionError):
    """An option does not exist, or its value is of the wrong type or out of range."""


class OptionValueError(PopdistError, ValueError):
    """An option exists, but not with this value."""


class UnknownOptionError(PopdistError, AttributeError):
    """An option that does not exist was read."""


class FrozenOptionsError(PopdistError, AttributeError):
    """Options were changed after a loader or a model took them."""


class ConfigFileError(PopdistError, ValueError):
    """A file of options cannot be read, or says what options cannot be told."""


class BatchError(PopdistError, AssertionError):
    """A tensor's first dimension does not fit the batching options."""


class DataError(PopdistError, AssertionError):
    """A data set or a loader cannot be divided over the instances as asked."""


class OfflineError(PopdistError, AssertionError):
    """A model was to run in a job without devices."""


class LossError(Error):
    """The model marks no loss, or several that do not feed one another."""


class AgreementError(Error):
    """The instances of the job were about to train different things."""


class DdpError(Error):
    """Gradients of DistributedDataParallel cannot be exchanged by popdist."""


class OptimizerError(PopdistError, AssertionError):
    """An optimizer cannot drive this model."""


class CheckpointError(Error):
    """A checkpoint cannot be written, read or used."""


class PlainLoopError(Error):
    """The thin path for plain loops was used in a way that cannot be right."""


class NotFiniteError(Error):
    """A loss is infinite or not a number, and the program asked to stop there."""


class GradientError(Error):
    """Something changes gradients where that cannot be right."""
