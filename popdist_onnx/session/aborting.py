"""`aiGraphcore.abort`: ends a run where a tensor of the graph is not zero.

ONNX has no such operator. Each node becomes a flag that the session reads with every micro-batch.
Instances that train together add their flags, so that all of them end with the same error, and none
waits for an exchange that another one never joins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.errors import poplar_runtime_error
from popdist_onnx.graph.names import ABORT_OF

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist_onnx.runtime.engine import Port
    from popdist_onnx.runtime.graph_reader import Reading
    from popdist_onnx.runtime.state import Array


def abort_flags(reading: Reading) -> dict[str, str]:
    """The flags of a graph.

    Args:
        reading: The graph.

    Returns:
        Descriptions of the abort nodes, by the ids of their flags.
    """
    return {
        str(step.node.outputs[0].name): step.node.metadata_props[ABORT_OF]
        for step in reading.steps
        if ABORT_OF in step.node.metadata_props
    }


class AbortPort:
    """A port that keeps flags to itself, and passes everything else on.

    Args:
        port: The step's data.
        flags: The ids of the flags.

    Attributes:
        counts: How many micro-batches raised each flag, since `counts` was last replaced.
    """

    def __init__(self, port: Port, flags: Sequence[str]) -> None:
        self._port = port
        self._flags = {name: np.zeros((), np.bool_) for name in flags}
        self._places = {name: place for place, name in enumerate(flags)}
        self.counts = self.cleared()

    def cleared(self) -> Array:
        """A zero for each flag."""
        return np.zeros(len(self._flags))

    def feed(self, run: int) -> dict[str, Array]:
        """The inputs of a run of the micro-batch part, by name."""
        return self._port.feed(run)

    def target(self, run: int, anchor: str) -> Array:
        """Memory for an anchor or a flag."""
        flag = self._flags.get(anchor)
        return self._port.target(run, anchor) if flag is None else flag

    def filled(self, run: int, anchor: str) -> None:
        """Counts a flag, or reports an anchor."""
        if anchor in self._flags:
            self.counts[self._places[anchor]] += bool(self._flags[anchor])
        else:
            self._port.filled(run, anchor)

    def used(self) -> None:
        """Reports that the inputs of a run are no longer needed."""
        self._port.used()


def require_no_abort(flags: Mapping[str, str], counts: Array) -> None:
    """Ends a run in which a flag was raised.

    Args:
        flags: Descriptions of the abort nodes, by flag.
        counts: Raised flags, by instance and flag.

    Raises:
        poplar_runtime_error: A flag was raised.
    """
    if not counts.any():
        return
    raised = [text for text, hit in zip(flags.values(), counts.any(0), strict=True) if hit]
    where = ", ".join(str(one) for one in np.flatnonzero(counts.any(1)))
    many = int(counts.sum())
    raise poplar_runtime_error(
        "PD599",
        f"Abort Program: {', '.join(raised)} ended the run",
        value=f"{many} micro-batch{'es' if many > 1 else ''}"
        + (f", on instance {where} of {len(counts)}" if len(counts) > 1 else ""),
        hint="the condition was not zero; the update of this batch has been computed to its end",
    )
