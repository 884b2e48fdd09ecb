"""``inferenceModel``: runs a module forward without changing its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from popdist_torch.errors import Error
from popdist_torch.executor.executor import Executor
from popdist_torch.executor.host_access import leave_groups, let_group, times_brought
from popdist_torch.executor.step import infer
from popdist_torch.options import Options, OutputMode, PipelinedExecution
from popdist_torch.synchronised_norms import require_whole_job

if TYPE_CHECKING:
    from torch import nn

    from popdist_torch.executor.inputs import Arguments
    from popdist_torch.executor.outputs import Outputs
    from popdist_torch.executor.step import Replicas


class InferenceExecutor(Executor):
    """Runs a module forward, on each instance separately.

    Where the module is being trained by a training executor, each call runs the newest weights.

    Args:
        model: The module, or an executor of it.
        options: Its options.

    Raises:
        Error: The options ask for gradient accumulation.
    """

    def __init__(self, model: nn.Module | Executor, options: Options | None) -> None:
        super().__init__(model, options, OutputMode.All, trains=False)
        accumulation = self._batching.accumulation
        if accumulation != 1:
            more = ""
            strategy = self._options._execution_strategy  # noqa: SLF001 - its published name
            if type(strategy) is PipelinedExecution:
                more = (
                    " Use poptorch.Options().deviceIterations to process a sufficient number of "
                    "batches each run for pipelined execution instead."
                )
            raise Error(
                "PD305",
                "You must set poptorch.Options().Training.gradientAccumulation to 1 or leave it as "
                f"its default value (1) when running a poptorch.inferenceModel().{more}",
                value=f"gradientAccumulation({accumulation})",
                hint="give inferenceModel options of its own; deviceIterations runs several "
                "batches a call",
            )
        self._seen_version = 0
        let_group(self._user_model, self.per_replica_params.declare)

    def train(self, mode: bool = True) -> InferenceExecutor:
        """Sets the mode of the wrapped module, until it is compiled.

        As published, it sets the mode of the program's submodules too, which both share.

        Args:
            mode: Whether dropout is applied, and batch statistics are used.

        Returns:
            This object.
        """
        for child in self._user_model.children():
            child.train(mode)
        self._training_flags = dict.fromkeys(self._training_flags, mode)
        return self

    def eval(self) -> InferenceExecutor:
        """Sets the evaluation mode of the wrapped module, until it is compiled.

        Returns:
            This object.
        """
        return self.train(mode=False)

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        leave_groups(self._user_model)
        super()._compile(args, kwargs)
        self._seen_version = times_brought(self._user_model)

    def _before_run(self) -> None:
        """Copies the newest weights of a module that is being trained."""
        if (version := times_brought(self._user_model)) != self._seen_version:
            self.copyWeightsToDevice()
            self._seen_version = version

    def _run(self, compiled: Replicas, arguments: Arguments, outputs: Outputs) -> None:
        require_whole_job(self._user_model.modules(), self._placement)
        with compiled.model.in_use():
            infer(arguments, self._batching, compiled, outputs)


def inferenceModel(
    model: nn.Module | Executor, options: Options | None = None
) -> InferenceExecutor:
    """Wraps a module for inference.

    Args:
        model: The module, or an executor of it.
        options: Its options; by default fresh ones.

    Returns:
        An executor that takes combined batches.

    Raises:
        Error: The options ask for gradient accumulation.
    """
    return InferenceExecutor(model, options)
