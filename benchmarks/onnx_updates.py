"""What optimizers of the ONNX adapter cost by themselves: updates of given gradients."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.rows import Aim, Row, compare
from benchmarks.sampling import Samples, interleave

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.harness import Effort

UPDATE_AIM = Aim(sentence="no slower than torch", of="ratio", at_most=1.0)
LIMIT_AIM = Aim(
    sentence="at most 1.25 times as many additions, which take longer than torch's update",
    of="ratio",
    at_most=1.25,
    was="no slower than torch",
)
AIMS = (UPDATE_AIM, LIMIT_AIM)

_OPERATORS = {"Add", "Div", "Max", "Min", "Mul", "Pow", "Sqrt", "Sub"}
_CHEAPEST = {1: "Neg", 2: "Add"}
"""The cheapest operator by its number of operands."""

_SHAPES = {"w0": (784, 1024), "b0": (1024,), "w1": (1024, 1024), "b1": (1024,), "w2": (1024, 10)}
"""The weights of the perceptron 784-1024-1024-10."""


def measure(effort: Effort) -> Iterator[Row]:
    """Updates 1.9 million weights by several optimizers.

    Args:
        effort: How many times.

    Yields:
        A row for each optimizer against ``torch.optim``, fused where it can be, one against the
        limit, which is the same update with an addition in place of each operator, and one against
        the update without blocks.
    """
    import torch

    import popdist_onnx as popart

    torch.set_num_threads(1)
    rate = {"defaultLearningRate": (0.001, False)}
    cases: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "SGD": (popart.SGD(rate), lambda weights: torch.optim.SGD(weights, 0.001, fused=True)),
        "momentum": (
            popart.SGD(rate | {"defaultMomentum": (0.9, True)}),
            lambda weights: torch.optim.SGD(weights, 0.001, 0.9, fused=True),
        ),
        "Adam": (popart.Adam(rate), lambda weights: torch.optim.Adam(weights, 0.001, fused=True)),
        "AdamW": (
            popart.Adam(rate | {"defaultWeightDecay": (0.01, True)}),
            lambda weights: torch.optim.AdamW(weights, 0.001, fused=True),
        ),
        "RMSProp": (popart.Adaptive(rate), lambda weights: torch.optim.RMSprop(weights, 0.001)),
    }
    for name, (optimizer, peer) in cases.items():
        contenders = {
            "blocked": _ours(optimizer),
            "plain": _ours(optimizer, blocked=False),
            "limit": _ours(optimizer, adding=True),
            "torch": _torch(peer),
        }
        took = interleave(contenders, effort.choose(full=60, quick=8))
        times = {contender: Samples(tuple(seconds)) for contender, seconds in took.items()}
        row = f"{name}, 1.9 million weights"
        within = times["limit"].minimum <= times["torch"].minimum
        yield compare(
            row,
            times["blocked"],
            unit="ms",
            peer="torch" if name == "RMSProp" else "torch, fused",  # which has no fused RMSprop
            against=times["torch"],
            aim=UPDATE_AIM if within else None,
        )
        yield compare(
            row,
            times["blocked"],
            unit="ms",
            peer="as many additions",
            against=times["limit"],
            aim=None if within else LIMIT_AIM,
        )
        yield compare(
            row, times["blocked"], unit="ms", peer="without blocks", against=times["plain"]
        )


def _ours(optimizer: Any, *, blocked: bool = True, adding: bool = False) -> Callable[[], float]:
    import numpy as np
    import onnx_ir as ir

    from popdist_onnx.graph import names
    from popdist_onnx.graph.tensor import Tape
    from popdist_onnx.runtime.compiled import Execution
    from popdist_onnx.runtime.engine import Engine
    from popdist_onnx.runtime.graph_reader import read
    from popdist_onnx.transforms.block_updates import block_updates
    from popdist_onnx.transforms.optimizer import grow_updates, scalar_inputs

    rng = np.random.default_rng(0)
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="updates")
    tape = Tape(graph)
    for name, shape in _SHAPES.items():
        weight = tape.state(name, rng.normal(size=shape).astype(np.float32))
        given = tape.input(f"given_{name}", weight.dtype, shape)
        tape.many("Identity", [names.gradient(name)], given)
    model = grow_updates(ir.Model(graph, ir_version=9), optimizer)
    if adding:
        _add_instead(model)
    if blocked:
        block_updates(model)
    engine = Engine(read(model), execution=Execution())
    for name, value in scalar_inputs(model, optimizer).items():
        engine.scalars[name].array[...] = value
    port = _Port({f"given_{n}": rng.normal(size=s).astype("f4") for n, s in _SHAPES.items()})
    return lambda: _timed(lambda: engine.update(port))


def _add_instead(model: Any) -> None:
    """Replaces what works on each element of a weight; what is read and written stays."""
    for node in model.graph:
        large = tuple(node.outputs[0].shape or ()) in _SHAPES.values()
        if large and node.op_type in _OPERATORS:
            node.op_type = _CHEAPEST[len(node.inputs)]


def _torch(make: Callable[[Any], Any]) -> Callable[[], float]:
    import torch

    weights = [torch.nn.Parameter(torch.randn(shape)) for shape in _SHAPES.values()]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer = make(weights)
    return lambda: _timed(optimizer.step)


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class _Port:
    """Feeds the same gradients again and again."""

    def __init__(self, gradients: dict[str, Any]) -> None:
        self._gradients = gradients

    def feed(self, run: int) -> dict[str, Any]:
        """The gradients, for whichever run."""
        del run
        return self._gradients

    def target(self, run: int, anchor: str) -> Any:
        """Nothing is anchored."""
        raise NotImplementedError(f"run {run} has no anchor {anchor}")

    def filled(self, run: int, anchor: str) -> None:
        """Nothing is anchored."""

    def used(self) -> None:
        """Gradients stay as they are."""
