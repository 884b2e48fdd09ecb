"""The program of a contender: one step for each line of its standard input.

``python -m benchmarks.onnx_training.contender CONTENDER MODEL FILE THREADS``, with the protocol of
`benchmarks.onnx_training.ort_training`: it answers with the seconds and the loss.
"""

from __future__ import annotations

import os
import sys
import time

from benchmarks.onnx_training.job import COMPILED, ONNX, PRODUCTS, RATE, onnx_step, torch_step


def main(contender: str, name: str, path: str, threads: int) -> None:
    """Answers lines of the standard input with steps.

    Args:
        contender: Who takes the steps, as in a table of results.
        name: The model.
        path: Its ONNX file.
        threads: Threads of one operator.
    """
    # Libraries write to standard output, which the answers alone may use.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if contender == PRODUCTS:
        from benchmarks.onnx_training.products import products_of, products_step

        step = products_step(products_of(path, RATE), threads)
    elif contender == ONNX:
        step = onnx_step(path, name)
    else:
        step = torch_step(name, threads=threads, compiled=contender == COMPILED)
    for _ in sys.stdin:
        started = time.perf_counter()
        loss = step()
        print(time.perf_counter() - started, loss, file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
