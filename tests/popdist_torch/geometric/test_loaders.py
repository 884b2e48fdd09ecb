"""Batches of graphs with one size, against the batches of torch_geometric itself."""

import pickle

import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import GCNConv, global_add_pool

import popdist_torch as poptorch
from popdist_torch.geometric import (
    FixedSizeDataLoader,
    FixedSizeOptions,
    FixedSizeStrategy,
    OverSizeStrategy,
    PyGArgsParser,
    make_exclude_keys,
)
from popdist_torch.geometric.cluster_loader import FixedSizeClusterLoader
from popdist_torch.geometric.collate import FixedSizeCollater
from popdist_torch.geometric.dataloader import DataLoader, Dealt
from popdist_torch.geometric.stream_packing_sampler import StreamPackingSampler


def graph(nodes, edges, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.randn(nodes, 3, generator=rng),
        edge_index=torch.randint(nodes, (2, edges), generator=rng),
        edge_attr=torch.randn(edges, 2, generator=rng),
        y=torch.randn(1, generator=rng),
    )


GRAPHS = [graph(2 + i % 4, 3 + i % 5, i) for i in range(12)]


def of_types(seed=0):
    data = HeteroData()
    data["paper"].x = graph(4, 1, seed).x
    data["author"].x = graph(3, 1, seed + 1).x
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 2, 2], [0, 1, 2, 3]])
    return data


@pytest.mark.parametrize("strategy", FixedSizeStrategy)
def test_what_is_real_is_the_batch_of_torch_geometric(strategy):
    size = FixedSizeOptions.from_dataset(GRAPHS, 4)
    loader = FixedSizeDataLoader(
        GRAPHS, batch_size=4, fixed_size_options=size, fixed_size_strategy=strategy
    )
    seen = 0
    for batch in loader:
        count = int(batch.graphs_mask.sum())
        expected = Batch.from_data_list(GRAPHS[seen : seen + count])
        seen += count
        assert batch.x.shape == (size.num_nodes, 3)
        assert batch.edge_index.shape == (2, size.num_edges)
        assert batch.y.shape == batch.graphs_mask.shape == (4,)
        assert torch.equal(batch.x[batch.nodes_mask], expected.x)
        assert torch.equal(batch.edge_index[:, batch.edges_mask], expected.edge_index)
        assert torch.equal(batch.edge_attr[batch.edges_mask], expected.edge_attr)
        assert torch.equal(batch.y[batch.graphs_mask], expected.y)
        assert torch.equal(batch.batch[batch.nodes_mask], expected.batch)
        # Edges of padding join nodes of padding.
        padding = batch.edge_index[:, ~batch.edges_mask]
        assert not batch.nodes_mask[padding].any()
        assert not batch.x[~batch.nodes_mask].any()
    assert seen == len(GRAPHS)


def test_values_of_padding():
    size = FixedSizeOptions(
        40, 60, 3, node_pad_value=1.0, edge_pad_value=2.0, graph_pad_value=3.0,
        pad_graph_defaults={"name": "padding"},
    )  # fmt: skip
    named = GRAPHS[0].clone()
    named.name = "real"
    batch = FixedSizeCollater(size, add_masks_to_batch=True)([named, named])
    assert batch.x[~batch.nodes_mask].unique().tolist() == [1]
    assert batch.edge_attr[~batch.edges_mask].unique().tolist() == [2]
    assert batch.y[~batch.graphs_mask].tolist() == [3]
    assert batch.name == ["real", "real", "padding"]


def test_graphs_with_types():
    size = FixedSizeOptions(9, 7, 3).to_hetero(["paper", "author"], [("author", "writes", "paper")])
    assert (size.total_num_nodes, size.total_num_edges) == (18, 7)
    with pytest.raises(RuntimeError, match=r"number of .'author', 'writes', 'paper'. edges"):
        FixedSizeCollater(size)([of_types(), of_types(1)])
    size.num_edges[("author", "writes", "paper")] = 9
    batch = FixedSizeCollater(size, add_masks_to_batch=True)([of_types(), of_types(1)])
    expected = Batch.from_data_list([of_types(), of_types(1)])
    for kind in ("paper", "author"):
        assert batch[kind].x.shape == (9, 3)
        assert torch.equal(batch[kind].x[batch[kind].nodes_mask], expected[kind].x)
    edges = batch["author", "writes", "paper"]
    assert torch.equal(edges.edge_index[:, edges.edges_mask], expected["writes"].edge_index)
    again = PyGArgsParser().reconstruct(batch, iter(list(PyGArgsParser().yieldTensors(batch))))
    assert torch.equal(again["paper"].x, batch["paper"].x)


def test_trimming_keeps_a_node_of_each_graph_and_room_for_padding():
    size = FixedSizeOptions(num_nodes=6, num_edges=10, num_graphs=4)
    batch = FixedSizeCollater(size, add_masks_to_batch=True, trim_nodes=True, trim_edges=True)(
        GRAPHS[:3]
    )
    assert batch.x.shape == (6, 3)
    assert int(batch.nodes_mask.sum()) == 5
    real = batch.batch[batch.nodes_mask]
    assert real.unique().tolist() == [0, 1, 2]
    kept = {tuple(row.tolist()) for row in batch.x[batch.nodes_mask]}
    assert kept <= {tuple(row.tolist()) for one in GRAPHS[:3] for row in one.x}


def test_trimming_makes_room_for_edges_of_padding_where_all_nodes_just_fit():
    nodes = sum(one.num_nodes for one in GRAPHS[:3])
    edges = sum(one.num_edges for one in GRAPHS[:3])
    for more, kept in ((2, nodes - 1), (0, nodes)):
        size = FixedSizeOptions(num_nodes=nodes, num_edges=edges + more, num_graphs=4)
        batch = FixedSizeCollater(size, add_masks_to_batch=True, trim_nodes=True)(GRAPHS[:3])
        assert (batch.num_nodes, batch.num_edges) == (nodes, edges + more)
        assert int(batch.nodes_mask.sum()) == kept


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (FixedSizeOptions(100, 100, 3), "enough room for all the graphs"),
        (FixedSizeOptions(100, 100, 3 + 1), None),
        (FixedSizeOptions(5, 100, 9), "number of nodes"),
        (FixedSizeOptions(100, 5, 9), "number of edges"),
        (FixedSizeOptions(12, 100, 9), None),
        (FixedSizeOptions(sum(g.num_nodes for g in GRAPHS[:4]), 100, 9), "a node of padding"),
    ],
)
def test_graphs_that_do_not_fit(size, message):
    graphs = GRAPHS[:3] if message is None else GRAPHS[:4]
    if message is None:
        FixedSizeCollater(size)(graphs)
        return
    with pytest.raises(RuntimeError, match=message):
        FixedSizeCollater(size)(graphs)


def test_stream_packing_fills_batches_in_order():
    sampler = StreamPackingSampler(GRAPHS, 4, max_num_nodes=12, max_num_edges=20)
    batches = list(sampler)
    assert [index for batch in batches for index in batch] == list(range(12))
    assert len(sampler) == len(batches)
    for batch in batches:
        assert sum(GRAPHS[i].num_nodes for i in batch) <= 12
    with pytest.raises(RuntimeError, match="single sample 0"):
        list(StreamPackingSampler(GRAPHS, 1, max_num_nodes=1, max_num_edges=2))
    skipped = StreamPackingSampler(GRAPHS, 1, 3, 100, allow_skip_data=True)
    assert [i for batch in skipped for i in batch] == [0, 1, 4, 5, 8, 9]


def test_too_few_packs_for_all_instances_are_a_warning(caplog):
    assert list(Dealt([[0], [1], [2]], 1, 2)) == [[1]]
    assert not caplog.records
    assert list(Dealt([[0]], 0, 2)) == []
    assert "1 packed batches cannot be divided over 2 instances" in caplog.text


def test_published_checks():
    with pytest.raises(ValueError, match="at least 2"):
        FixedSizeOptions(10, num_graphs=1)
    with pytest.raises(AssertionError, match="must match"):
        FixedSizeDataLoader(GRAPHS, batch_size=3, fixed_size_options=FixedSizeOptions(9))
    with pytest.raises(AssertionError, match="must be 2"):
        FixedSizeClusterLoader([], FixedSizeOptions(9, num_graphs=3))
    assert set(make_exclude_keys(["x"], GRAPHS[0])) == {"edge_index", "edge_attr", "y"}
    assert "At least one node" in repr(FixedSizeOptions(9))
    assert OverSizeStrategy.TrimEdges.trims == {"trim_nodes": False, "trim_edges": True}


class Clusters:
    """As many parts of a graph as METIS would make, in the form of ClusterData."""

    def __init__(self):
        self.parts = GRAPHS[:6]

    def __len__(self):
        return len(self.parts)


def test_clusters_become_one_graph(monkeypatch):
    class Joined:
        def __init__(self, data):
            self.data = data

        def collate_fn(self, indices):
            joined = Batch.from_data_list([self.data.parts[i] for i in indices])
            return Data(x=joined.x, edge_index=joined.edge_index)

    monkeypatch.setattr("popdist_torch.geometric.pyg_cluster_loader.ClusterLoader", Joined)
    options = poptorch.Options().deviceIterations(2)
    loader = FixedSizeClusterLoader(
        Clusters(), FixedSizeOptions(30, 40), batch_size=2, options=options
    )
    (batch,) = list(loader)
    assert batch.x.shape == (60, 3)  # two iterations
    assert int(batch.nodes_mask.sum()) == sum(one.num_nodes for one in GRAPHS[:4])


@pytest.mark.parametrize("make", [graph, lambda *_: of_types()])
def test_a_combined_batch_has_the_numbers_of_one_batch_in_the_model_too(make):
    graphs = [make(4, 5, seed) for seed in range(6)]
    options = poptorch.Options().deviceIterations(3)
    (batch,) = pickle.loads(pickle.dumps(list(DataLoader(graphs, batch_size=2, options=options))))  # noqa: S301 - as workers send it
    one = Batch.from_data_list(graphs[:2])

    class Numbers(torch.nn.Module):
        def forward(self, graph):
            x = next(iter(graph.node_stores)).x
            return x * 0 + graph.num_nodes, x * 0 + graph.num_edges

    nodes, edges = poptorch.inferenceModel(Numbers(), options)(batch)
    assert len(nodes) == 3 * len(next(iter(one.node_stores)).x)
    assert (batch.num_nodes, batch.num_edges) == (one.num_nodes, one.num_edges)
    assert nodes.unique().tolist() == [one.num_nodes]
    assert edges.unique().tolist() == [one.num_edges]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GCNConv(3, 4)
        self.last = torch.nn.Linear(4, 1)

    def forward(self, batch):
        found = self.conv(batch.x, batch.edge_index).relu()
        found = self.last(global_add_pool(found, batch.batch, size=4)).flatten()
        error = torch.where(batch.graphs_mask, found - batch.y, 0.0)
        return found, poptorch.identity_loss((error**2).sum() / 3, "none")


def test_a_model_takes_batches_of_graphs_and_trains_as_torch_does():
    torch.manual_seed(0)
    model, torchs = Net(), Net()
    torchs.load_state_dict(model.state_dict())
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    size = FixedSizeOptions.from_dataset(GRAPHS, 4)
    loader = FixedSizeDataLoader(GRAPHS, batch_size=4, fixed_size_options=size, options=options)
    training = poptorch.trainingModel(
        model, options, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.05)
    )
    optimizer = torch.optim.SGD(torchs.parameters(), lr=0.05)
    assert len(loader) == 2
    for number, batch in enumerate(loader):
        training(batch)
        optimizer.zero_grad()
        for half in range(2):
            start = number * 6 + half * 3
            part = Batch.from_data_list(GRAPHS[start : start + 3])
            found = torchs.last(
                global_add_pool(torchs.conv(part.x, part.edge_index).relu(), part.batch)
            ).flatten()
            (((found - part.y) ** 2).mean() / 2).backward()
        optimizer.step()
    for mine, theirs in zip(model.parameters(), torchs.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_batches_without_padding():
    (batch,) = list(DataLoader(GRAPHS[:3], batch_size=3))
    assert torch.equal(batch.x, Batch.from_data_list(GRAPHS[:3]).x)
