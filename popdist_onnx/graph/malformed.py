"""One error for whatever a malformed model makes readers and passes stumble over."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import onnx

from popdist.errors import PopdistError
from popdist_onnx.errors import popart_exception, popart_internal_exception

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def sound(proto: onnx.ModelProto) -> Iterator[None]:
    """Reports an unexpected error within a with-block as what is wrong with the model.

    onnx's checker finds the reason. Where it accepts the model, the fault is of this package.

    Raises:
        popart_exception: The model is malformed.
        popart_internal_exception: It is not, as far as onnx can tell.
    """
    try:
        yield
    except PopdistError as error:
        if isinstance(error, popart_internal_exception) and (reason := _reason(proto)):
            raise _malformed(reason) from error
        raise
    except Exception as error:
        if reason := _reason(proto):
            raise _malformed(reason) from error
        raise popart_internal_exception(
            "PD611",
            f"the model could not be read, although onnx's checker accepts it: "
            f"{type(error).__name__}: {error}",
            hint="please report it with the model's file",
        ) from error


def _malformed(reason: str) -> popart_exception:
    return popart_exception(
        "PD611",
        f"the model's graph is malformed: {reason}",
        accepted="a model that onnx.checker.check_model(path, full_check=True) accepts",
    )


def _reason(proto: onnx.ModelProto) -> str | None:
    """Why onnx refuses a model; None where it does not. Weights are left out."""
    shell = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    shell.functions.extend(proto.functions)
    shell.graph.name = proto.graph.name or "g"
    shell.graph.node.extend(proto.graph.node)
    shell.graph.output.extend(proto.graph.output)
    shell.graph.value_info.extend(proto.graph.value_info)
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    shell.graph.input.extend(one for one in proto.graph.input if one.name not in weights)
    shell.graph.input.extend(
        onnx.helper.make_tensor_value_info(name, one.data_type, one.dims)
        for name, one in weights.items()
    )
    try:
        onnx.checker.check_model(shell, full_check=True)
    except Exception as refused:  # noqa: BLE001 - onnx raises several types
        return str(refused).strip().splitlines()[0] if str(refused).strip() else repr(refused)
    return None
