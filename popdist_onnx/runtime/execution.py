"""How ONNX Runtime is to run a stage: providers, threads, memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnxruntime as ort

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_CPU = "CPUExecutionProvider"


@dataclass(frozen=True)
class Execution:
    """How stages are run.

    Attributes:
        providers: ONNX Runtime's execution providers, in order of preference.
        threads: Threads of one operator.
        spinning: Whether idle threads spin; never where other instances need the cores.
        optimise: Whether ONNX Runtime may rewrite stages.
    """

    providers: tuple[str, ...] = (_CPU,)
    threads: int = 1
    spinning: bool = False
    optimise: bool = True


def default_threads(environment: Mapping[str, str] | None = None) -> int:
    """How many threads an operator may use.

    Args:
        environment: Where ``OMP_NUM_THREADS`` is looked up, which launchers and users set for all
            libraries of a process alike; None for this process's own.

    Returns:
        Its first number; else as many as this process may use processors.
    """
    stated = (os.environ if environment is None else environment).get("OMP_NUM_THREADS", "")
    first = stated.split(",")[0].strip()
    if first.isdigit() and int(first) > 0:
        return int(first)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def make_session(
    model: bytes, execution: Execution, rewritten: Path | None = None
) -> ort.InferenceSession:
    """Makes a session of a stage.

    Args:
        model: The stage as a file's content.
        execution: How to run it.
        rewritten: Where to write the stage as ONNX Runtime executes it; None does not.

    Returns:
        The session.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = execution.threads
    # One operator at a time: the graph of a step is a chain, and its order decides its memory.
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry(
        "session.intra_op.allow_spinning", "1" if execution.spinning else "0"
    )
    if not execution.optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if rewritten is not None:
        options.optimized_model_filepath = str(rewritten)
    # Its warnings speak of constants that could be folded and the like; errors are raised as well.
    options.log_severity_level = 4
    return ort.InferenceSession(model, options, providers=list(execution.providers))
