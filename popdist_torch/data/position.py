"""Where in its data a loader stands, so that a resumed job reads on instead of starting over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from popdist_torch.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass
class Position:
    """A place in the data.

    Attributes:
        epoch: Index of the epoch, counted over the loader's whole life.
        batch: Batches of this epoch that the program has been given.
        random: State of the loader's generator when the epoch began; None where it has not.
    """

    epoch: int = 0
    batch: int = 0
    random: torch.Tensor | None = None

    def next_epoch(self) -> Position:
        """The start of the following epoch.

        Returns:
            That position.
        """
        return Position(self.epoch + 1)

    def state_dict(self, data: str) -> dict[str, Any]:
        """The position as plain values, for ``torch.save`` or JSON.

        Args:
            data: What is read, and how; a position means something there only.

        Returns:
            Numbers, text, and for ``random`` a list of bytes or None.
        """
        random = None if self.random is None else self.random.tolist()
        return {"data": data, "epoch": self.epoch, "batch": self.batch, "random": random}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any], data: str) -> Position:
        """Reads what `state_dict` wrote.

        Args:
            state: What it wrote.
            data: What is read now, and how.

        Returns:
            The position.

        Raises:
            DataError: It is a position in other data, or none at all.
        """
        wrong = {"data", "epoch", "batch", "random"} ^ set(state)
        if wrong:
            raise DataError(
                "PD302",
                "this is no position of a loader",
                value=sorted(state),
                accepted="what state_dict() of a loader returned",
            )
        if state["data"] != data:
            raise DataError(
                "PD302",
                "the position belongs to another loader",
                value=state["data"],
                accepted=data,
                hint="resume with the data set, batch size, options and number of instances that "
                "the position was saved with",
            )
        random = state["random"]
        return cls(
            int(state["epoch"]),
            int(state["batch"]),
            None if random is None else torch.tensor(random, dtype=torch.uint8),
        )
