"""The base of every pass: it states what it needs and what it leaves, and both are checked."""

from __future__ import annotations

from abc import abstractmethod

import onnx_ir as ir

from popdist_onnx.errors import popart_internal_exception
from popdist_onnx.graph.compat import captured


class Pass(ir.passes.InPlacePass):
    """A change of a model in place, from one valid model to another.

    Subclasses write `change`, and `requires`/`ensures` for conditions of their own; errors of the
    user are raised from `change` or `requires` as they are.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass.

        Args:
            model: The model, changed in place.

        Returns:
            The model and whether it changed.
        """
        return ir.passes.PassResult(model, modified=self.change(model))

    @abstractmethod
    def change(self, model: ir.Model) -> bool:
        """Changes the model.

        Args:
            model: The model.

        Returns:
            Whether anything changed.
        """

    def ensures(self, model: ir.Model) -> None:
        """Every pass leaves a graph that is sorted and whose names are unique.

        Args:
            model: The model.
        """
        require_sound(model, type(self).__name__)

    def __call__(self, model_or_result: ir.Model | ir.passes.PassResult, /) -> ir.passes.PassResult:
        """Runs the pass between its checks.

        Args:
            model_or_result: The model, or what the pass before returned.

        Returns:
            The model and whether it changed.
        """
        try:
            return super().__call__(model_or_result)
        except ir.passes.InvariantError as invariant:
            # The conditions raise errors of ours, which say more than that a condition failed.
            if invariant.__cause__ is not None:
                raise invariant.__cause__ from None
            raise


def require_sound(model: ir.Model, author: str) -> None:
    """Checks what every model between passes must be.

    Args:
        model: The model.
        author: Who made it, for the message.

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
