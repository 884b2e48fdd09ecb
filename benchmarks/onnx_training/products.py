"""The matrix products of a training step alone: what no step can be faster than.

Every product of the training graph is computed once, by ONNX Runtime's kernel for plain products of
single precision: nothing is transposed, added or scaled, and operands and results stay where they
are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import onnx


class Product(NamedTuple):
    """The lengths of a product ``[batch, rows, inner] x [batch, inner, columns]``."""

    batch: int
    rows: int
    inner: int
    columns: int


def products_of(path: str, rate: float) -> list[Product]:
    """The products of one training step.

    Args:
        path: The ONNX file, whose loss is ``loss``.
        rate: The learning rate of SGD.

    Returns:
        One entry for each product, in the order of the graph.
    """
    import popdist_onnx as popart
    from popdist_onnx.session.pipeline import read_with_shapes, training_graph

    optimizer = popart.SGD({"defaultLearningRate": (rate, True)})
    source = read_with_shapes(path, None)
    model = training_graph(source, "loss", optimizer, popart.SessionOptions())
    return [product for node in model.graph for product in _products(node)]


def _products(node: Any) -> Iterator[Product]:
    if node.op_type == "Scan":
        # The body's products are computed once for each element of what is looped over.
        body, first = node.attributes["body"].as_graph(), node.inputs[-1]
        once = [product for inner in body for product in _products(inner)]
        yield from once * int(first.shape[0])
        return
    if node.domain not in ("", "ai.onnx") or node.op_type not in ("Gemm", "MatMul"):
        return
    left, right = ([int(one) for one in value.shape] for value in node.inputs[:2])
    if node.attributes.get_int("transA", 0):
        left.reverse()
    columns = right[0] if node.attributes.get_int("transB", 0) else right[-1]
    stacked = len(right) > 2  # noqa: PLR2004 - the operand has a matrix for each sample
    batch = math.prod(left[:-2]) if stacked else 1
    rows = left[-2] if stacked else math.prod(left[:-1])
    yield Product(batch, rows, left[-1], columns)


def products_step(products: list[Product], threads: int) -> Callable[[], float]:
    """A function that computes products once.

    Args:
        products: Which.
        threads: Threads of one product.

    Returns:
        The function; it returns zero, as there is no loss.
    """
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Equal products would become one.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        _model(products).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    rng = np.random.default_rng(0)
    for value in session.get_inputs():
        array = rng.normal(size=value.shape).astype(np.float32)
        binding.bind_ortvalue_input(value.name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for value in session.get_outputs():
        memory = onnxruntime.OrtValue.ortvalue_from_shape_and_type(value.shape, np.float32)
        binding.bind_ortvalue_output(value.name, memory)

    def step() -> float:
        session.run_with_iobinding(binding)
        return 0.0

    return step


def _model(products: list[Product]) -> onnx.ModelProto:
    """Equal products share their operands, and each has a result of its own."""
    from onnx import TensorProto, helper

    inputs, outputs, nodes = {}, [], []
    for index, product in enumerate(products):
        batch, rows, inner, columns = product
        names = []
        for side, shape in (("left", [rows, inner]), ("right", [inner, columns])):
            name = f"{side}/{'x'.join(map(str, product))}"
            whole = [batch, *shape] if batch > 1 else shape
            inputs[name] = helper.make_tensor_value_info(name, TensorProto.FLOAT, whole)
            names.append(name)
        made = [batch, rows, columns] if batch > 1 else [rows, columns]
        outputs.append(helper.make_tensor_value_info(f"made/{index}", TensorProto.FLOAT, made))
        nodes.append(helper.make_node("MatMul", names, [f"made/{index}"]))
    graph = helper.make_graph(nodes, "products", list(inputs.values()), outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
