"""The state of a wrapped model: weights and buffers by name, and each replica's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.errors import Error
from popdist_torch.executor import replica_state
from popdist_torch.executor.replicas import random_words, restore_words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from popdist_torch.executor.step import Replicas
    from popdist_torch.options import Options


class Stateful:
    """A wrapped model whose state can be looked at, saved and loaded."""

    _user_model: nn.Module
    _options: Options
    _replicas: Replicas | None
    _attached: bool
    _loaded_replicas: list[replica_state.Row]

    def isCompiled(self) -> bool:
        """Whether the model is ready to run.

        Returns:
            True between the first call (or `compile`) and `destroy`.
        """
        return self._replicas is not None

    def isAttachedToDevice(self) -> bool:
        """Whether the device holds the model.

        Returns:
            True from the first call on, except between `detachFromDevice` and the next call.
        """
        return self._attached

    def copyWeightsToDevice(self) -> None:
        """Copies the program's weights and buffers to the device, over those there.

        Raises:
            Error: The model is not compiled.
        """
        self._require_compiled().model.from_host()

    def copyWeightsToHost(self) -> None:
        """Copies weights and the first replica's buffers from the device to the program's module.

        Raises:
            Error: The model is not compiled.
        """
        self._require_compiled().model.to_host()

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Copies weights to the program's module where the device has newer ones.

        Returns:
            Whether there was anything to copy.
        """
        return False

    def copyNamedBuffersToDevice(self) -> None:
        """Copies the buffers that ``options.updatableNamedBuffers`` names to all local replicas.

        Raises:
            Error: The model is not compiled, or it has no such buffer.
        """
        model = self._require_compiled().model
        model.buffers_from_host(self._options.values().get("updatable_named_buffers", []))

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The module's state with the newest weights.

        Args:
            *args: As for ``torch.nn.Module.state_dict``.
            **kwargs: As above.

        Returns:
            Plain tensors by name.
        """
        return self._user_model.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Loads the module's state, on the device too.

        Args:
            state_dict: Tensors by name.
            strict: Whether names must match exactly.

        Returns:
            Missing and unexpected keys.
        """
        result = self._user_model.load_state_dict(state_dict, strict=strict)
        if self.isAttachedToDevice():
            self.copyWeightsToDevice()
        return result

    def replica_state(self) -> list[dict[str, Any]]:
        """What each local replica has of its own: its random stream and its buffers.

        Returns:
            One dictionary of plain values a replica; none before the first call.
        """
        if self._replicas is None:
            return list(self._loaded_replicas)
        return replica_state.rows(self._replicas, self._options.placement)

    def load_replica_state(self, rows: list[dict[str, Any]]) -> None:
        """Brings the local replicas to states of `replica_state`, at once or on the first call.

        Args:
            rows: Those of all replicas of the job.

        Raises:
            CheckpointError: They are of a job of another number of replicas.
        """
        self._loaded_replicas = replica_state.of_this_process(rows, self._options.placement)
        if self._replicas is not None:
            replica_state.restore(self._replicas, self._loaded_replicas)

    @property
    def rng_state(self) -> list[int]:
        """The seed, then the positions of all local replicas' random streams, as numbers.

        Raises:
            Error: The model is not compiled.
        """
        return random_words(self._seed(), self._require_compiled().streams)

    @rng_state.setter
    def rng_state(self, state: list[int]) -> None:
        restore_words(state, self._require_compiled().streams)

    def _require_compiled(self) -> Replicas:
        if self._replicas is None:
            raise Error(
                "PD305",
                "the model has not been compiled",
                hint="call it once, or call compile() with a full batch",
            )
        return self._replicas

    def _seed(self) -> int:
        if self._options.exists("random_seed"):
            return int(self._options.random_seed)
        return torch.initial_seed()
