"""The settings of an `IPUEstimator`: devices, loop, and TensorFlow's own settings."""

from __future__ import annotations

from typing import Any, NamedTuple

from popdist_tf.config.ipu_config import IPUConfig
from popdist_tf.config.legacy import IpuOptions
from popdist_tf.errors import EstimatorTypeError, EstimatorValueError
from popdist_tf.estimator_api import estimator_api


class _Fields(NamedTuple):
    iterations_per_loop: int
    ipu_options: Any
    compile_summary: bool
    num_replicas: int
    num_shards: int
    ordinal: int
    prefetch_depth: int | None


class IPURunConfig(_Fields):
    """The devices and the loop of an `IPUEstimator`.

    Args:
        iterations_per_loop: Weight updates in each call into TensorFlow.
        ipu_options: An `IPUConfig`, or the options of SDK 2.2 and before.
        compile_summary: Accepted as published, without effect on a host.
        num_replicas: Replicas of this process.
        num_shards: Devices of one replica.
        ordinal: Which configured device is used.
        prefetch_depth: Accepted as published, without effect on a host.

    Raises:
        EstimatorValueError: The devices do not fit the replicas and shards.
        EstimatorTypeError: ``ipu_options`` is not a configuration.
    """

    def __new__(  # noqa: PYI034 - `Self` came with Python 3.11
        cls,
        iterations_per_loop: int = 1,
        ipu_options: Any = None,
        compile_summary: bool = False,
        num_replicas: int = 1,
        num_shards: int = 1,
        ordinal: int = 0,
        prefetch_depth: int | None = None,
    ) -> IPURunConfig:
        """Checks the settings against each other."""
        devices = num_replicas * num_shards
        if iterations_per_loop < 1:
            raise EstimatorValueError(
                "PD421", "iterations_per_loop must be positive", value=iterations_per_loop
            )
        if ipu_options is None and devices > 1:
            raise EstimatorValueError(
                "PD421",
                "this IPURunConfig configuration requires more than one device, and ipu_options "
                "does not configure them",
                value=f"num_replicas={num_replicas}, num_shards={num_shards}",
                hint="config = IPUConfig(); config.auto_select_ipus = "
                f"{devices}; IPURunConfig(ipu_options=config, ...)",
            )
        if ipu_options is not None:
            _check_options(ipu_options, num_replicas, num_shards, ordinal)
        return super().__new__(
            cls,
            iterations_per_loop,
            ipu_options,
            compile_summary,
            num_replicas,
            num_shards,
            ordinal,
            prefetch_depth,
        )


def _check_options(options: Any, num_replicas: int, num_shards: int, ordinal: int) -> None:
    if not isinstance(options, (IPUConfig, IpuOptions)):
        raise EstimatorTypeError(
            "PD421", "ipu_options is not a configuration", value=options, accepted="an IPUConfig"
        )
    counts = _auto_counts(options)
    if counts is None:  # certain devices are selected; whether they exist is seen when they are
        return
    if ordinal >= len(counts):
        raise EstimatorValueError(
            "PD421",
            "ordinal names a device that is not configured",
            value=ordinal,
            accepted=f"0 to {len(counts) - 1}",
        )
    devices = num_replicas * num_shards
    if counts[ordinal] != devices:
        raise EstimatorValueError(
            "PD421",
            f"`IPURunConfig` configured with {devices} devices ({num_replicas} replicas times "
            f"{num_shards} shards), but `IpuOptions` configured with {counts[ordinal]} devices",
            hint=f"auto_select_ipus = {devices}",
        )


def _auto_counts(options: Any) -> list[int] | None:
    if isinstance(options, IpuOptions):
        counts = [entry.get("auto_count") for entry in options.device_config]
        return None if None in counts else [count for count in counts if count] or [1]
    if options.select_ipus not in ([], ()):
        return None
    auto = options.auto_select_ipus
    return [auto] if isinstance(auto, int) else list(auto) or [1]


class RunConfig(estimator_api().RunConfig):  # type: ignore[misc]
    """Settings of an `IPUEstimator`.

    Args:
        ipu_run_config: Devices and loop; None for the defaults.
        master: Overrides TensorFlow's master where it is given.
        **kwargs: Settings of `tf.estimator.RunConfig`, such as ``train_distribute``.
    """

    def __init__(
        self, ipu_run_config: IPURunConfig | None = None, master: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._ipu_run_config = ipu_run_config or IPURunConfig()
        if master is not None:
            self._master = master

    @property
    def ipu_run_config(self) -> IPURunConfig:
        """Devices and loop."""
        return self._ipu_run_config

    @property
    def master(self) -> Any:
        """TensorFlow's master."""
        return self._master
