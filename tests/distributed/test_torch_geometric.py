"""Training on graphs in two real ranks, against one process on the global batch."""

import numpy as np
import torch

from tests.distributed.jobs import run_job
from tests.popdist_torch.geometric.test_loaders import GRAPHS, Net


def trained(strategy, accumulation=1):
    import popdist_torch as poptorch
    from popdist_torch.geometric import FixedSizeDataLoader, FixedSizeOptions, FixedSizeStrategy

    torch.manual_seed(0)
    model = Net()
    options = poptorch.Options()
    options.Training.gradientAccumulation(accumulation)
    loader = FixedSizeDataLoader(
        GRAPHS,
        batch_size=4,
        fixed_size_options=FixedSizeOptions.from_dataset(GRAPHS, 4),
        fixed_size_strategy=FixedSizeStrategy[strategy],
        options=options,
    )
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.05)
    training = poptorch.trainingModel(model, options, optimizer=optimizer)
    seen = []
    for batch in loader:
        training(batch)
        seen += batch.y[batch.graphs_mask].tolist()
    weights = torch.cat([one.detach().flatten() for one in model.parameters()])
    return {"weights": weights.numpy(), "seen": seen, "batches": len(loader)}


def test_instances_read_different_graphs_and_end_with_equal_weights():
    first, second = run_job(trained, instances=2, strategy="PadToMax")
    assert not set(first["seen"]) & set(second["seen"])
    np.testing.assert_array_equal(first["weights"], second["weights"])


def test_packed_batches_train_as_in_one_process():
    """Two instances take turns with the batches, as two micro-batches of one process do."""
    alone = trained("StreamPack", accumulation=2)
    first, second = run_job(trained, instances=2, strategy="StreamPack")
    assert first["batches"] == second["batches"] == alone["batches"]
    assert sorted(first["seen"] + second["seen"]) == sorted(alone["seen"])
    np.testing.assert_array_equal(first["weights"], second["weights"])
    np.testing.assert_allclose(first["weights"], alone["weights"], rtol=1e-4, atol=1e-6)
