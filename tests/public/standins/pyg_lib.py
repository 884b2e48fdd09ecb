"""The sampling and clustering of pyg-lib, whose compiled part is not on PyPI, in Python.

PyTorch Geometric finds the functions as operators of ``torch.ops.pyg``.
"""

import types

import torch


class _Nodes:
    """The nodes of one kind that were sampled, in their order, and those of the last hop."""

    def __init__(self, seeds=()):
        self.places = {}
        self.last = []
        self.counts = []
        self.add(seeds)

    def add(self, nodes):
        """Ends a hop, which found these nodes."""
        new = [node for node in dict.fromkeys(nodes) if node not in self.places]
        for node in new:
            self.places[node] = len(self.places)
        self.last = new
        self.counts.append(len(new))

    def tensor(self):
        return torch.tensor(list(self.places), dtype=torch.long)


def _edges(colptr, row, nodes, count):
    """Pairs of an edge and its target, at most ``count`` random edges for each target."""
    for node in nodes:
        first, last = int(colptr[node]), int(colptr[node + 1])
        found = torch.arange(first, last)
        if 0 <= count < len(found):
            found = first + torch.randperm(last - first)[:count]
        for edge in found.tolist():
            yield edge, int(row[edge]), node


def hetero_neighbor_sample(
    node_types, edge_types, colptr_dict, row_dict, seed_dict, num_neighbors_dict, *_
):
    """Samples edges of a graph with several kinds of nodes, hop by hop, towards the seeds."""
    nodes = {
        kind: _Nodes(seed_dict[kind].flatten().tolist() if kind in seed_dict else ())
        for kind in node_types
    }
    sampled = {"__".join(kind): [] for kind in edge_types}
    counts = {name: [] for name in sampled}
    for hop in range(max(map(len, num_neighbors_dict.values()))):
        found = {kind: [] for kind in node_types}
        for source, relation, target in edge_types:
            name = f"{source}__{relation}__{target}"
            wanted = num_neighbors_dict[name][hop]
            edges = list(_edges(colptr_dict[name], row_dict[name], nodes[target].last, wanted))
            counts[name].append(len(edges))
            sampled[name] += [(source, target, *edge) for edge in edges]
            found[source] += [edge[1] for edge in edges]
        for kind in node_types:
            nodes[kind].add(found[kind])
    rows, columns, ids = {}, {}, {}
    for name, edges in sampled.items():
        rows[name] = torch.tensor([nodes[s].places[a] for s, _, _, a, _ in edges], dtype=torch.long)
        columns[name] = torch.tensor(
            [nodes[t].places[b] for _, t, _, _, b in edges], dtype=torch.long
        )
        ids[name] = torch.tensor([edge for _, _, edge, _, _ in edges], dtype=torch.long)
    kinds = {kind: one.tensor() for kind, one in nodes.items()}
    return rows, columns, kinds, ids, {kind: one.counts for kind, one in nodes.items()}, counts


def neighbor_sample(rowptr, col, seed, num_neighbors, *_):
    """Samples edges of a graph, hop by hop, towards the seeds."""
    kind = ("node", "to", "node")
    name = "__".join(kind)
    out = hetero_neighbor_sample(
        ["node"], [kind], {name: rowptr}, {name: col}, {"node": seed}, {name: num_neighbors}
    )
    return tuple(part.get(name, part.get("node")) for part in out)


def _contiguous(rowptr, _col, parts, **_):
    """The part of each node: as many parts, of consecutive nodes."""
    count = len(rowptr) - 1
    return torch.arange(count) * parts // count


ops = types.SimpleNamespace()
sampler = types.SimpleNamespace(neighbor_sample=neighbor_sample)
partition = types.SimpleNamespace(metis=_contiguous)
torch.ops.pyg = types.SimpleNamespace(
    neighbor_sample=neighbor_sample, hetero_neighbor_sample=hetero_neighbor_sample
)
