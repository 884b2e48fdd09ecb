"""``python -m popdist_onnx``: training graphs and operator coverage, without a program."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from popdist_onnx.errors import popart_exception
from popdist_onnx.graph.load import load, read
from popdist_onnx.graph.load import save as save_model
from popdist_onnx.session.pipeline import training_graph
from popdist_onnx.training.model import trainable, with_batch, with_stored_fills
from popdist_onnx.training.settings import NAMES, optimizer_of
from popdist_onnx.training.summary import operator_report, training_summary
from popdist_onnx.types.session_options import SessionOptions

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Runs the command.

    Args:
        arguments: The command line.

    Returns:
        0; 1 where the model cannot be trained or read.
    """
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except popart_exception as error:
        print(f"popdist_onnx: {error}", file=sys.stderr)  # noqa: T201 - a command line
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m popdist_onnx", description="Training graphs of ONNX models."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    graph = commands.add_parser(
        "graph", help="write the training graph of a model, and say what is in it"
    )
    graph.add_argument("model", type=Path, help="an ONNX file")
    graph.add_argument(
        "-o", "--output", type=Path, help="where to write (default: *.training.onnx)"
    )
    graph.add_argument(
        "--loss", default="cross_entropy", help="cross_entropy, mse, or a scalar tensor's id"
    )
    graph.add_argument("--optimizer", choices=NAMES, default="sgd")
    graph.add_argument("--lr", type=float, help="learning rate (default: the usual one)")
    graph.add_argument("--batch-size", type=int, default=1, help="for an open batch dimension")
    graph.add_argument("--accumulation", type=int, default=1, help="micro-batches per update")
    graph.add_argument(
        "--host-allreduce", action="store_true", help="exchange gradients on the host"
    )
    graph.set_defaults(run=_graph)
    operators = commands.add_parser(
        "operators", help="list a model's operators, and whether they have a gradient"
    )
    operators.add_argument("model", type=Path, help="an ONNX file")
    operators.set_defaults(run=_operators)
    return parser


def _graph(given: argparse.Namespace) -> int:
    source = read(given.model)
    with_stored_fills(source)
    prepared, loss, _ = trainable(with_batch(source, given.batch_size), given.loss)
    options = SessionOptions()
    options.enableGradientAccumulation = given.accumulation > 1
    options.accumulationFactor = given.accumulation
    options.hostAllReduce = given.host_allreduce
    optimizer = optimizer_of(given.optimizer, given.lr)
    model = training_graph(prepared, loss, optimizer, options)
    path = given.output or given.model.with_suffix(".training.onnx")
    save_model(model, path)
    print(training_summary(model))  # noqa: T201 - as above
    print(f"\nwritten to {path}")  # noqa: T201
    return 0


def _operators(given: argparse.Namespace) -> int:
    text, complete = operator_report(load(given.model))
    print(text)  # noqa: T201 - as above
    if not complete:
        print("\nWeights before the operators marked NO cannot be trained.")  # noqa: T201
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
