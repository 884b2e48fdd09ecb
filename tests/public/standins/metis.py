"""Takes the place of the METIS library's wrapper: parts of equal sizes, which cut any edges."""

import random


def part_graph(graph, nparts, seed=0, **_options):
    """Divides the nodes of a graph; returns how many edges are cut, and the part of each node."""
    parts = [i % nparts for i in range(graph.number_of_nodes())]
    random.Random(seed).shuffle(parts)  # noqa: S311 - no secret
    return sum(parts[a] != parts[b] for a, b in graph.edges()), parts
