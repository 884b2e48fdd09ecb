"""The base of every pass with its checks, and the error of models that are not sound."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from popdist.errors import PopdistError
from popdist_onnx.errors import popart_exception, popart_internal_exception
from popdist_onnx.graph.compat import clone, reads

if TYPE_CHECKING:
    from collections.abc import Iterator


class Pass(ir.passes.InPlacePass):
    """A change of a model in place, from one valid model to another.

    Subclasses write `change`, and `requires`/`ensures` for their own conditions. Errors for the
    user are raised from `change` or `requires`, and are not wrapped.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass, and checks that a changed graph is sorted and its names unique."""
        if modified := self.change(model):
            require_sound(model, str(self))
        return ir.passes.PassResult(model, modified=modified)

    @abstractmethod
    def change(self, model: ir.Model) -> bool:
        """Changes the model; returns whether anything changed."""

    def __call__(self, model_or_result: ir.Model | ir.passes.PassResult, /) -> ir.passes.PassResult:
        """Runs the pass between its checks."""
        try:
            return super().__call__(model_or_result)
        except ir.passes.InvariantError as invariant:
            # popdist's own errors say more than onnx-ir's error of a failed condition.
            if invariant.__cause__ is not None:
                raise invariant.__cause__ from None
            raise

    def __str__(self) -> str:
        return type(self).__name__


class Sequential(ir.passes.Sequential):
    """Passes in their order. An unexpected error names the passes before it."""

    def __call__(self, model_or_result: ir.Model | ir.passes.PassResult, /) -> ir.passes.PassResult:
        """Runs the passes."""
        try:
            return super().__call__(model_or_result)
        except ir.passes.PassError as error:
            if isinstance(error.__cause__, PopdistError):
                raise error.__cause__ from None
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
        for value in reads(node):
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


def _unsound(author: str, what: str) -> popart_internal_exception:
    return popart_internal_exception("PD524", f"{author} left an invalid graph: {what}")


# One error for whatever a malformed model makes readers and passes stumble over.


@contextmanager
def sound(model: ir.Model | onnx.ModelProto) -> Iterator[None]:
    """Reports an unexpected error within a with-block as what is wrong with the model.

    onnx's checker finds the reason, in the model as it is then: the block works on a copy. Where it
    accepts the model, the fault is of this package.

    Raises:
        popart_exception: The model is malformed.
        popart_internal_exception: It is not, as far as onnx can tell.
    """
    try:
        yield
    except PopdistError as error:
        if isinstance(error, popart_internal_exception) and (reason := _reason(model)):
            raise _malformed(reason) from error
        raise
    except Exception as error:
        if reason := _reason(model):
            raise _malformed(reason) from error
        raise popart_internal_exception(
            "PD611",
            f"the model could not be read, although onnx's checker accepts it: {_chain(error)}",
            hint="please report it with the model's file",
        ) from error


def _chain(error: BaseException) -> str:
    """An error and what it comes from: the passes that ran, and the error in the last one."""
    said = f"{type(error).__name__}: {error}"
    return said if error.__cause__ is None else f"{said}: {_chain(error.__cause__)}"


def _malformed(reason: str) -> popart_exception:
    return popart_exception(
        "PD611",
        f"the model's graph is malformed: {reason}",
        accepted="a model that onnx.checker.check_model(path, full_check=True) accepts",
    )


def _reason(model: ir.Model | onnx.ModelProto) -> str | None:
    """Why onnx refuses a model; None where it does not. Weights are left out."""
    try:
        proto = skeleton(model) if isinstance(model, ir.Model) else _without_weights(model)
        onnx.checker.check_model(proto, full_check=True)
    except Exception as error:  # noqa: BLE001 - onnx raises several types
        refused: BaseException = error
        while refused.__cause__ is not None:  # what onnx-ir cannot write has a chain of errors
            refused = refused.__cause__
        return str(refused).strip().splitlines()[0] if str(refused).strip() else repr(refused)
    return None


def skeleton(model: ir.Model, small: int = -1) -> onnx.ModelProto:
    """A model for checks by onnx, in which weights of more than ``small`` elements are inputs."""
    bare = clone(model)
    graph = bare.graph
    graph.name = graph.name or "g"
    for name, value in list(graph.initializers.items()):
        if value.const_value is None or value.const_value.size > small:
            del graph.initializers[name]
            if not value.is_graph_input():
                graph.inputs.append(value)
    proto: onnx.ModelProto = ir.to_proto(bare)
    return proto


def _without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same of a file that cannot be brought into the form for passes."""
    bare = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    bare.functions.extend(proto.functions)
    bare.graph.name = proto.graph.name or "g"
    bare.graph.node.extend(proto.graph.node)
    bare.graph.output.extend(proto.graph.output)
    bare.graph.value_info.extend(proto.graph.value_info)
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    bare.graph.input.extend(value for value in proto.graph.input if value.name not in weights)
    bare.graph.input.extend(
        onnx.helper.make_tensor_value_info(name, one.data_type, one.dims)
        for name, one in weights.items()
    )
    return bare
