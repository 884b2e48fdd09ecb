"""`aiGraphcore.printtensor`: prints tensors and their gradients, of every micro-batch.

ONNX has no such operator. Each node becomes an `Identity`, whose output the session reads with
every micro-batch, as it reads an anchor.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from popdist_onnx.graph.names import PRINTED, PRINTED_GRADIENT, gradient
from popdist_onnx.runtime.state import empty

if TYPE_CHECKING:
    from collections.abc import Collection

    import onnx_ir as ir

    from popdist_onnx.runtime.engine import Port
    from popdist_onnx.runtime.graph_reader import Reading
    from popdist_onnx.runtime.state import Array

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
