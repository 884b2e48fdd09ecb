"""Sizes of aggregations, and a comparison of a wrapped model with torch."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any

import torch
from torch.testing import assert_close
from torch_geometric.nn import MessagePassing

from popdist_torch.executor.inference import inferenceModel
from popdist_torch.executor.training import trainingModel
from popdist_torch.optim import Adam
from popdist_torch.options import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

__all__ = ["TrainingStepper", "set_aggregation_dim_size"]


def set_aggregation_dim_size(model: nn.Module, dim_size: int) -> None:
    """Fixes the number of nodes in the results of message passing.

    Args:
        model: Its layers of message passing are changed.
        dim_size: At least the number of nodes of a batch.
    """

    def fix(_layer: Any, inputs: tuple[Any, ...]) -> Any:
        return {**inputs[-1], "dim_size": dim_size}

    for layer in model.modules():
        if isinstance(layer, MessagePassing):
            layer.register_aggregate_forward_pre_hook(fix)


class TrainingStepper:
    """Trains a copy of a model by torch, and another one wrapped, and compares them at each step.

    Args:
        model: The model; in training, ``forward`` returns an output and a loss.
        lr: The learning rate.
        optimizer: The class of both optimizers.
        options: Those of the wrapped model.
        rtol: Relative tolerance of comparisons; by default torch's.
        atol: Absolute tolerance.
        enable_fp_exception: Whether numbers that are not finite are errors.
        equal_nan: Whether NaN equals NaN.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 0.001,
        optimizer: Callable[..., Any] = Adam,
        options: Options | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        enable_fp_exception: bool = True,
        equal_nan: bool = False,
    ) -> None:
        model.train()
        self.rtol, self.atol, self.equal_nan = rtol, atol, equal_nan
        self.options = Options() if options is None else options
        if enable_fp_exception:
            self.options.Precision.enableFloatingPointExceptions(enable_fp_exception)
        self.cpu_model, self.ipu_model = copy.deepcopy(model), copy.deepcopy(model)
        self.training_model: Any = None
        if any(True for _ in model.parameters()):
            self.optimizer = optimizer(list(self.cpu_model.parameters()), lr=lr)
            wrapped = optimizer(list(self.ipu_model.parameters()), lr=lr)
            self.training_model = trainingModel(self.ipu_model, self.options, wrapped)
        self.inference_model = inferenceModel(self.ipu_model, self.options)
        self.check_parameters()

    def check_parameters(self) -> None:
        """Compares all parameters."""
        pairs = zip(
            self.cpu_model.named_parameters(), self.ipu_model.named_parameters(), strict=True
        )
        for (name, expected), (_, actual) in pairs:
            self.assert_close(actual, expected, name)

    def cpu_step(self, batch: Sequence[Any]) -> tuple[Any, Any]:
        """Trains the model of torch for one step."""
        self.optimizer.zero_grad()
        output, loss = self.cpu_model(*batch)
        loss.backward()
        self.optimizer.step()
        return output, loss

    def ipu_step(self, batch: Sequence[Any], copy_weights: bool = True) -> tuple[Any, Any]:
        """Trains the wrapped model for one step."""
        output, loss = self.training_model(*batch)
        if copy_weights:
            self.training_model.copyWeightsToHost()
        return output, loss

    def run(self, num_steps: int, batch: Sequence[Any], ipu_batch: Any = None) -> None:
        """Trains both models, and compares outputs, losses and parameters.

        Args:
            num_steps: The number of steps.
            batch: The arguments of each step.
            ipu_batch: Those of the wrapped model, where they are others, as with more padding.

        Raises:
            AssertionError: The two differ.
        """
        assert self.training_model is not None, "Training model was not created."  # noqa: S101
        self.cpu_model.train()
        for _ in range(num_steps):
            expected, loss = self.cpu_step(batch)
            actual, wrapped_loss = self.ipu_step(batch if ipu_batch is None else ipu_batch)
            if ipu_batch is not None:
                rows = min(len(expected), len(actual))
                expected, actual = expected[:rows], actual[:rows]
            self.assert_close(actual, expected, "Output")
            self.assert_close(wrapped_loss, loss, "loss")
            self.check_parameters()

    def run_inference(self, batch: Sequence[Any]) -> None:
        """Compares the outputs of both models.

        Args:
            batch: The arguments.

        Raises:
            AssertionError: The two differ.
        """
        self.cpu_model.eval()
        with torch.no_grad():
            expected = self.cpu_model(*batch)
        self.assert_close(self.inference_model(*batch), expected, "inference")

    def assert_close(self, actual: Any, expected: Any, id: str) -> None:  # noqa: A002 - published
        """Compares two results, and names them in the error."""
        assert_close(
            actual,
            expected,
            rtol=self.rtol,
            atol=self.atol,
            equal_nan=self.equal_nan,
            msg=lambda text: f"{id} was not equal:\n\n{text}\n",
        )

    def benchmark(
        self, num_steps: int, batch: Sequence[Any], devices: Sequence[str] = ("ipu",)
    ) -> dict[str, float]:
        """The seconds that steps take.

        Args:
            num_steps: The number of steps.
            batch: The arguments of each.
            devices: ``ipu`` for the wrapped model, ``cpu`` for torch.

        Returns:
            ``ipu_time`` and ``cpu_time``.

        Raises:
            NotImplementedError: Another device.
        """
        steps = {
            "ipu": lambda: self.ipu_step(batch, copy_weights=False),
            "cpu": lambda: self.cpu_step(batch),
        }
        seconds = {}
        for device in (devices,) if isinstance(devices, str) else devices:
            if device not in steps:
                raise NotImplementedError(f"there are no steps of a {device} to measure")
            steps[device]()
            begin = time.perf_counter()
            for _ in range(num_steps):
                steps[device]()
            seconds[f"{device}_time"] = time.perf_counter() - begin
        return seconds
