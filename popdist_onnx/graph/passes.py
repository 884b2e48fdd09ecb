"""The base of every pass, with checks of the model before and after the pass."""

from __future__ import annotations

from abc import abstractmethod

import onnx_ir as ir

from popdist_onnx.errors import popart_internal_exception
from popdist_onnx.graph.compat import captured


class Pass(ir.passes.InPlacePass):
    """A change of a model in place, from one valid model to another.

    Subclasses write `change`, and `requires`/`ensures` for their own conditions. Errors for the
    user are raised from `change` or `requires`, and are not wrapped.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        return ir.passes.PassResult(model, modified=self.change(model))

    @abstractmethod
    def change(self, model: ir.Model) -> bool:
        """Changes the model; returns whether anything changed."""

    def ensures(self, model: ir.Model) -> None:
        """Checks that the graph is sorted and that names are unique."""
        require_sound(model, type(self).__name__)

    def __call__(self, model_or_result: ir.Model | ir.passes.PassResult, /) -> ir.passes.PassResult:
        """Runs the pass between its checks."""
        try:
            return super().__call__(model_or_result)
        except ir.passes.InvariantError as invariant:
            # popdist's own errors say more than onnx-ir's error of a failed condition.
            if invariant.__cause__ is not None:
                raise invariant.__cause__ from None
            raise


def require_sound(model: ir.Model, author: str) -> None:
    """Checks that a model is sorted and its names unique; ``author`` is named in the message.

    Raises:
        popart_internal_exception: A node comes before what it reads, or two values share a name.
    """
    graph = model.graph
    known = {*graph.inputs, *graph.initializers.values()}
    names: set[str] = {str(value.name) for value in known}
    for node in graph:
        for value in _reads(node):
            if value not in known:
                raise _unsound(author, f"node {node.name!r} reads {value.name!r} too early")
        for value in node.outputs:
            if value.name and value.name in names:
                raise _unsound(author, f"two values are named {value.name!r}")
            names.add(str(value.name))
            known.add(value)
    for value in graph.outputs:
        if value not in known:
            raise _unsound(author, f"nothing makes the output {value.name!r}")


def _reads(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None] + captured(node)


def _unsound(author: str, what: str) -> popart_internal_exception:
    return popart_internal_exception("PD524", f"{author} left an invalid graph: {what}")
