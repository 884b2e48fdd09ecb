"""Larger PopTorch programs, with the published imports: they train what plain PyTorch trains."""

import numpy as np
import torch
from sklearn.datasets import load_digits

from tests.programs.launching import LARGER, run

FOUR_REPLICAS = ("--num-instances=2", "--num-replicas=4")
INSTANCES = 2


def digits(count):
    """Images and labels of the programs' training data."""
    data = load_digits()
    order = np.random.RandomState(0).permutation(len(data.target))[:count]
    images = torch.tensor(data.images[order] / 16, dtype=torch.float32)
    return images, torch.tensor(data.target[order])


def updates(array, samples):
    """The global batches of an epoch: every instance has a contiguous part of the data."""
    parts = array.reshape(INSTANCES, -1, samples // INSTANCES, *array.shape[1:])
    return [part.flatten(0, 1) for part in parts.transpose(0, 1)]


def trained_by_torch(model, loss, optimizer_of_epoch, data, samples, epochs):
    """The losses of all updates of plain PyTorch."""
    losses = []
    for epoch in range(epochs):
        optimizer = optimizer_of_epoch(epoch)
        for images, labels in zip(*(updates(part, samples) for part in data), strict=True):
            optimizer.zero_grad()
            value = loss(model(images), labels)
            value.backward()
            optimizer.step()
            losses.append(value.item())
    return losses


def test_training_with_everything_that_spreads_a_batch(enabled, tmp_path):
    program = LARGER / "poptorch_training.py"
    arguments = [f"--checkpoint-dir={tmp_path}"]
    ranks, output = run("poprun with names", program, *arguments, options=FOUR_REPLICAS)
    assert "The number of replicas is overridden: 4" in output
    assert ranks[0]["digest"] == ranks[1]["digest"]
    assert ranks[0]["losses"] == ranks[1]["losses"]  # averaged over the instances
    assert ranks[1]["accuracies"] is None
    assert len(ranks[0]["accuracies"]) == 2
    assert ranks[0]["accuracies"][-1] > 0.9

    torch.manual_seed(42)
    model = torch.nn.Sequential(
        *(torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
        *(torch.nn.Flatten(), torch.nn.Linear(8 * 16, 10)),
    )
    decayed = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.02)

    def of_epoch(epoch):
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * 0.5**epoch
        return optimizer

    images, labels = digits(1536)
    data = images.unsqueeze(1), labels
    losses = trained_by_torch(
        model, torch.nn.functional.cross_entropy, of_epoch, data, samples=64, epochs=2
    )
    # A call of the program makes two updates, and returns the mean of their losses.
    np.testing.assert_allclose(ranks[0]["losses"], np.reshape(losses, (-1, 2)).mean(1), rtol=2e-3)
    saved = torch.load(tmp_path / "epoch_2.pt", weights_only=False)["model_state_dict"]
    for value, expected in zip(saved.values(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(value, expected, rtol=2e-3, atol=2e-4)

    resume = [*arguments, f"--resume={tmp_path / 'epoch_1.pt'}"]
    again, _ = run("poprun", program, *resume, options=FOUR_REPLICAS, environment=enabled)
    assert [rank["digest"] for rank in again] == [rank["digest"] for rank in ranks]
    assert again[0]["accuracies"] == ranks[0]["accuracies"][1:]


class RowReader(torch.nn.Module):
    """The model of the program, without annotations."""

    def __init__(self):
        super().__init__()
        self.rows = torch.nn.Linear(8, 32)
        self.places = torch.nn.Parameter(torch.zeros(8, 32))
        self.queries_keys_values = torch.nn.Linear(32, 96)
        self.norm = torch.nn.LayerNorm(32)
        self.digits = torch.nn.Linear(32, 10)

    def forward(self, images):
        rows = self.rows(images) + self.places
        queries, keys, values = self.queries_keys_values(rows).chunk(3, dim=-1)
        mixed = torch.softmax(queries @ keys.mT / 32**0.5, -1) @ values
        return self.digits(self.norm(rows + mixed).mean(1))


def test_a_training_and_an_inference_executor_share_a_model(enabled, tmp_path):
    file = tmp_path / "weights.npz"
    program = LARGER / "poptorch_pair.py"
    ranks, _ = run("mpirun", program, f"--weights={file}", environment=enabled)
    assert ranks[0]["digest"] == ranks[1]["digest"]
    assert ranks[0]["losses"] != ranks[1]["losses"]
    assert ranks[0]["accuracies"] == ranks[1]["accuracies"]

    torch.manual_seed(7)
    model = RowReader()

    def loss(scores, labels):
        return torch.nn.functional.cross_entropy(scores, labels, label_smoothing=0.1)

    def of_epoch(epoch):  # a new optimizer, without the velocities of the one before
        return torch.optim.SGD(model.parameters(), lr=0.05 * 0.5**epoch, momentum=0.9)

    losses = trained_by_torch(model, loss, of_epoch, digits(1280), samples=64, epochs=2)
    # A call of the program makes four updates.
    np.testing.assert_allclose(
        ranks[0]["mean_losses"], np.reshape(losses, (-1, 4)).mean(1), rtol=1e-3
    )
    with np.load(file) as found:
        for value, expected in zip(found.values(), model.state_dict().values(), strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-4)
