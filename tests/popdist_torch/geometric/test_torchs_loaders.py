"""Loaders of one process and the comparison of steps, against torch_geometric and torch."""

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCNConv

from popdist_torch.data import DataLoader as Combined
from popdist_torch.geometric import TrainingStepper, dataloader, pyg_dataloader
from popdist_torch.geometric.fixed_size_options import FixedSizeOptions
from popdist_torch.geometric.masker import LayerMasker, Masker, NoMasker, PreLayerMasker
from popdist_torch.geometric.pyg_collate import Collater

NUMBERS = torch.Generator().manual_seed(0)
GRAPHS = [
    Data(
        x=torch.randn(2 + i % 4, 3, generator=NUMBERS),
        edge_index=torch.randint(2 + i % 4, (2, 3 + i % 5), generator=NUMBERS),
    )
    for i in range(12)
]


def test_batches_of_any_size_are_those_of_torch_geometric():
    first, second, last = pyg_dataloader.DataLoader(GRAPHS[:5], batch_size=2)
    for batch, graphs in ((first, GRAPHS[:2]), (second, GRAPHS[2:4]), (last, GRAPHS[4:5])):
        expected = Batch.from_data_list(graphs)
        assert torch.equal(batch.x, expected.x)
        assert torch.equal(batch.edge_index, expected.edge_index)
    assert "edge_index" not in Collater(exclude_keys=("edge_index",))(GRAPHS[:2])


@pytest.mark.parametrize("strategy", pyg_dataloader.FixedSizeStrategy)
def test_batches_of_one_size_have_the_graphs_of_torch_geometric(strategy):
    size = FixedSizeOptions.from_dataset(GRAPHS, 4)
    loader = pyg_dataloader.FixedSizeDataLoader(
        GRAPHS, batch_size=4, fixed_size_options=size, fixed_size_strategy=strategy
    )
    assert not isinstance(loader, Combined)
    seen = 0
    for batch in loader:
        count = int(batch.graphs_mask.sum())
        expected = Batch.from_data_list(GRAPHS[seen : seen + count])
        seen += count
        assert batch.x.shape == (size.num_nodes, 3)
        assert torch.equal(batch.x[batch.nodes_mask], expected.x)
        assert torch.equal(batch.edge_index[:, batch.edges_mask], expected.edge_index)
    assert seen == len(GRAPHS)


def test_the_loaders_of_a_model_derive_from_those_of_torch():
    published = dataloader.FixedSizeDataLoader.__mro__[:4]
    assert published == (
        dataloader.FixedSizeDataLoader,
        pyg_dataloader.FixedSizeDataLoader,
        Combined,
        torch.utils.data.DataLoader,
    )


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GCNConv(3, 2)

    def forward(self, x, edge_index):
        found = self.conv(x, edge_index)
        return found, torch.nn.functional.mse_loss(found, torch.zeros_like(found))


class Changed(Net):
    """Has another gradient where it is wrapped: a wrapped model gets a copy of the module."""

    copies = 0

    def __deepcopy__(self, memo):
        Changed.copies += 1
        made = Net()
        made.load_state_dict(self.state_dict())
        if Changed.copies == 2:
            made.conv.bias.register_hook(lambda gradient: 2 * gradient)
        return made


def test_steps_of_a_wrapped_model_are_those_of_torch():
    torch.manual_seed(0)
    graph = GRAPHS[3]
    model = Net()
    before = model.conv.lin.weight.detach().clone()
    stepper = TrainingStepper(model, lr=0.1, optimizer=torch.optim.SGD)
    stepper.run(3, (graph.x, graph.edge_index))
    stepper.run_inference((graph.x, graph.edge_index))
    assert torch.equal(model.conv.lin.weight, before)  # copies are trained
    assert not torch.equal(stepper.cpu_model.conv.lin.weight, before)
    seconds = stepper.benchmark(1, (graph.x, graph.edge_index), ("ipu", "cpu"))
    assert set(seconds) == {"ipu_time", "cpu_time"}
    with pytest.raises(NotImplementedError, match="gpu"):
        stepper.benchmark(1, (graph.x, graph.edge_index), ("gpu",))


def test_a_step_that_differs_is_an_error_that_names_the_parameter():
    stepper = TrainingStepper(Changed(), lr=0.1, optimizer=torch.optim.SGD)
    with pytest.raises(AssertionError, match=r"conv.bias was not equal"):
        stepper.run(1, (GRAPHS[3].x, GRAPHS[3].edge_index))


class FirstRow(NoMasker):
    def node_masker(self, node_entries, mask=None):
        return tuple(entry[mask] for entry in node_entries)


def test_layers_get_what_a_masker_leaves():
    layer = PreLayerMasker(FirstRow()).node_masker(torch.sum)
    mask = torch.tensor([True, False])
    assert layer(torch.tensor([2.0, 5.0]), mask=mask) == 2
    assert PreLayerMasker(FirstRow()).edge_masker(torch.sum)(torch.tensor([2.0, 5.0])) == 7
    for kind in (Masker, LayerMasker):
        with pytest.raises(TypeError, match="abstract"):
            kind()
