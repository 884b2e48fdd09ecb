"""`aiGraphcore.printtensor` and `aiGraphcore.abort`: what a session does with tensors as it runs.

ONNX has no such operators. A node that prints becomes an `Identity`, and one that aborts a flag;
the session reads both with every micro-batch, as it reads an anchor. Instances that train together
add their flags, so that all of them end with the same error, and none waits for an exchange that
another one never joins.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import numpy as np

from popdist_onnx.errors import poplar_runtime_error
from popdist_onnx.graph.names import ABORT_OF, PRINTED, PRINTED_GRADIENT, gradient
from popdist_onnx.runtime.state import empty

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import onnx_ir as ir

    from popdist_onnx.runtime.engine import Port
    from popdist_onnx.runtime.graph_reader import Reading
    from popdist_onnx.runtime.state import Array


# Tensors that are printed, and their gradients.


logger = logging.getLogger("popdist.onnx")


def printed(graph: ir.Graph) -> dict[str, str]:
    """The printed tensors of a graph.

    Args:
        graph: The graph, after lowering.

    Returns:
        Titles by tensor: values in the graph's order, then gradients in the opposite order.
    """
    made = {str(output.name) for node in graph for output in node.outputs}
    values: dict[str, str] = {}
    gradients: dict[str, str] = {}
    for node in graph.all_nodes():
        title = node.metadata_props.get(PRINTED)
        if title is None:
            continue
        name = str(node.outputs[0].name)
        if node.graph is not graph:
            logger.warning("%s is not printed: it is inside of a loop or a branch", title)
            continue
        values[name] = title
        of_gradient = node.metadata_props.get(PRINTED_GRADIENT)
        if of_gradient is not None and gradient(name) in made:
            gradients = {gradient(name): of_gradient, **gradients}
    return values | gradients


class PrintPort:
    """A port that prints tensors at the end of each micro-batch, and passes everything else on.

    Args:
        port: The step's data.
        titles: Titles by tensor, in the order of printing.
        reading: The graph.
        anchors: The tensors among them that the step returns too.
    """

    def __init__(
        self, port: Port, titles: dict[str, str], reading: Reading, anchors: Collection[str]
    ) -> None:
        self._port, self._titles = port, titles
        self._own = {
            name: empty(reading.spec(name)).array for name in titles if name not in anchors
        }
        self._values: dict[str, Array] = {}

    def feed(self, run: int) -> dict[str, Array]:
        """The inputs of a run of the micro-batch part, by name."""
        return self._port.feed(run)

    def target(self, run: int, anchor: str) -> Array:
        """Memory for an anchor or a printed tensor."""
        own = self._own.get(anchor)
        target = self._port.target(run, anchor) if own is None else own
        if anchor in self._titles:
            self._values[anchor] = target
        return target

    def filled(self, run: int, anchor: str) -> None:
        """Keeps a printed tensor, and reports an anchor."""
        if anchor in self._values:
            self._values[anchor] = self._values[anchor].copy()
        if anchor not in self._own:
            self._port.filled(run, anchor)

    def used(self) -> None:
        """Prints what the micro-batch made."""
        lines = [
            f"{title}: {_braces(self._values[name])}\n"
            for name, title in self._titles.items()
            if name in self._values
        ]
        sys.stderr.write("".join(lines))
        sys.stderr.flush()
        self._values = {}
        self._port.used()


def _braces(array: Array) -> str:
    if array.ndim:
        return f"{{{','.join(map(_braces, array))}}}"
    return f"{array:g}" if array.dtype.kind == "f" else str(int(array))


# Flags that end a run.


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
