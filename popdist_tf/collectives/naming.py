"""Names by which the ranks of a job find each other's collectives.

Horovod matches operations across ranks by the name of the graph node. Names that TensorFlow derives
from input tensors shift as soon as one rank builds an op, a layer or an optimizer more than the
others, and the job stalls. Ours count collectives in the outermost graph that is being built, so
they depend on nothing but the order of the collectives themselves.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_COUNTERS = "_popdist_collectives"


def collective_name(kind: str) -> str | None:
    """A name for the next collective of the graph that is being built.

    Args:
        kind: What the collective does, such as ``allreduce``.

    Returns:
        A name, the same on every rank that builds the same sequence of collectives; None in eager
        code, where Horovod pairs operations by their order and ignores names.
    """
    if tf.executing_eagerly():
        return None
    # The counters live and die with their graph. (A graph collection would end up in checkpoints.)
    graph = _outermost(tf.compat.v1.get_default_graph())
    if not hasattr(graph, _COUNTERS):
        setattr(graph, _COUNTERS, {})
    counters = getattr(graph, _COUNTERS)
    index = counters.get(kind, 0)
    counters[kind] = index + 1
    return f"popdist_{kind}_{index}"


def _outermost(graph: Any) -> Any:
    while True:
        outer = getattr(graph, "outer_graph", None)
        # A function that is called from eager code hangs off TensorFlow's global default graph. A
        # count kept there would drift as soon as one rank retraces more often than another.
        if outer is None or not (outer.building_function or _is_v1_graph(outer)):
            return graph
        graph = outer


def _is_v1_graph(graph: Any) -> bool:
    return not tf.compat.v1.executing_eagerly_outside_functions() and not graph.building_function
