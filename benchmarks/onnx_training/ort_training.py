"""Training steps by onnxruntime-training: a program for an environment of its own.

That package cannot live beside onnxruntime, whose modules it replaces. The program reads a model
and its data, then takes a step for each line of its standard input and answers with the seconds and
the loss. It imports nothing of this repository.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

if TYPE_CHECKING:
    from collections.abc import Callable

_NORMALISED = 3
"""Outputs of LayerNormalization: its gradient reads the last two, which exporters leave out."""


def main(path: str, data: str, threads: int, rate: float) -> None:
    """Answers lines of the standard input with steps.

    Args:
        path: The ONNX file, whose loss is ``loss``.
        data: A file of numpy with the inputs ``x`` and ``labels``.
        threads: Threads of one operator.
        rate: The learning rate of SGD.
    """
    # ONNX Runtime writes to standard output, which the answers alone may use.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    arrays = np.load(data)
    with tempfile.TemporaryDirectory() as folder:
        step = _step(_complete(onnx.load(path)), folder, threads, rate)
        for _ in sys.stdin:
            started = time.perf_counter()
            loss = float(step(arrays["x"], arrays["labels"]))
            print(time.perf_counter() - started, loss, file=answers, flush=True)


def _complete(model: onnx.ModelProto) -> onnx.ModelProto:
    """Names the outputs that its gradients read; the loss is the only output of the graph."""
    for node in model.graph.node:
        if node.op_type == "LayerNormalization":
            for index in range(len(node.output), _NORMALISED):
                node.output.append(f"{node.output[0]}/{index}")
        if node.op_type == "SoftmaxCrossEntropyLoss" and len(node.output) == 1:
            node.output.append(f"{node.output[0]}/logarithms")
    del model.graph.output[:]
    model.graph.output.append(
        onnx.helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, [])
    )
    return model


def _step(model: onnx.ModelProto, folder: str, threads: int, rate: float) -> Callable[..., Any]:
    import onnxruntime
    from onnxruntime.training import artifacts
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    statistics = {
        name
        for node in model.graph.node
        if node.op_type == "BatchNormalization"
        for name in node.input[3:]
    }
    weights = {
        tensor.name
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT
    }
    artifacts.generate_artifacts(
        model,
        requires_grad=sorted(weights - statistics),
        frozen_params=sorted(weights & statistics),
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=folder,
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
    module = Module(f"{folder}/training_model.onnx", state, None, "cpu", options)
    optimizer = Optimizer(f"{folder}/optimizer_model.onnx", module)
    optimizer.set_learning_rate(rate)
    module.train()

    def step(*inputs: Any) -> Any:
        loss = module(*inputs)
        optimizer.step()
        module.lazy_reset_grad()
        return loss

    return step


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
