"""Errors of the TensorFlow adapter. Each is also of the type that the published modules raise."""

from __future__ import annotations

from popdist.errors import PopdistError, declare

CODES = declare(
    {
        "PD400": "an attribute of IPUConfig is unknown or has a wrong type",
        "PD401": "an IPUConfig contradicts itself or the job",
        "PD402": "TensorFlow has started already, and a device setting comes too late",
        "PD410": "a value cannot be reduced, gathered or broadcast over the instances",
        "PD411": "a distribution strategy cannot be created here",
        "PD412": "a distribution strategy does not support an operation",
        "PD414": "a model would be trained outside of the job's strategy",
        "PD415": "TF_CONFIG does not describe a cluster",
        "PD416": "replicas write different values to a variable without aggregation",
        "PD417": "local replicas cannot be synchronised inside of a loop, branch or function",
        "PD418": "all instances train on the same rows (a warning)",
        "PD419": "a program selects devices for more replicas than there are (a warning)",
        "PD420": "this TensorFlow has no estimators",
        "PD421": "the configuration of an estimator is not valid",
        "PD422": "a model_fn or input_fn returned something that cannot be used",
        "PD423": "an estimator feature is not available in this combination",
        "PD424": "arguments of a pipeline or an accumulating optimizer are not valid",
        "PD425": "a Keras model cannot be pipelined or accumulate gradients with these options",
        "PD426": "this Keras accumulates gradients in another way",
        "PD427": "gradients are averaged over the replicas, and then summed again",
        "PD428": "XLA should compile a loop with a queue",
        "PD429": "a strategy runs one of the several replicas of a process (a warning)",
        "PD430": "instances have adapted preprocessing layers to different data (a warning)",
        "PD431": "gradients are not those of the mean over all instances (a warning)",
        "PD433": "an operation over replicas does not fit the number of replicas",
        "PD434": "an argument of a published layer or operation is not valid",
        "PD435": "an argument of a published optimizer is not valid",
        "PD436": "nothing reduces the gradients of a model over the instances",
        "PD437": "a data set cannot be divided over the replicas",
        "PD438": "a compiled operator has no host function, or one that does not fit",
        "PD440": "an optimizer cannot be distributed, or not in this place",
    }
)
"""The adapter's codes with their meaning."""


class CollectiveError(PopdistError, ValueError):
    """A value cannot be reduced, gathered or broadcast over the instances."""


class StrategyError(PopdistError, ValueError):
    """A distribution strategy was created or used in a way it cannot honour."""


class TooLateError(PopdistError, RuntimeError):
    """TensorFlow has started already, and a setting can no longer take effect."""


class ConfigError(PopdistError, ValueError):
    """An attribute of a configuration is unknown, or its value is out of range."""


class ConfigTypeError(PopdistError, TypeError):
    """An attribute of a configuration was assigned a value of a wrong type."""


class ConfigConflictError(PopdistError):
    """Attributes of a configuration contradict each other or the job."""


class AgreementError(PopdistError, RuntimeError):
    """The instances of a job build or run different things."""


class EstimatorGoneError(PopdistError, ImportError):
    """This TensorFlow has no estimators."""


class EstimatorValueError(PopdistError, ValueError):
    """An argument of an estimator, or what a user's function returned, cannot be used."""


class EstimatorKeyError(EstimatorValueError, KeyError):
    """A result of a user's function lacks a name."""


class EstimatorTypeError(PopdistError, TypeError):
    """An argument of an estimator, or what a user's function returned, has a wrong type."""


class EstimatorUnsupportedError(PopdistError, NotImplementedError):
    """A combination that the published estimators refuse as well."""


class PipelineError(PopdistError, ValueError):
    """A pipeline or an accumulating optimizer was asked for what cannot be."""


class PipelineTypeError(PipelineError, TypeError):
    """An argument of a pipeline has a wrong type."""


class PipelineStateError(PipelineError, RuntimeError):
    """A pipeline cannot run, or be asked for, in this state of its model."""


class OperatorError(PopdistError, NotImplementedError):
    """A compiled operator has no host function that computes it."""


class LayerError(PopdistError, ValueError):
    """A published layer or operation was given an argument that is not valid."""


class OptimizerError(PopdistError, ValueError):
    """A published optimizer was given an argument that is not valid."""
