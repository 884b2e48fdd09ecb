"""A small regression with PopTorch that adapts to PopRun, as PopDist's guide teaches it."""

import argparse
import json

import horovod.torch as hvd
import poptorch
import torch

import popdist
import popdist.poptorch

EPOCHS = 3


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)
        )

    def forward(self, x, y):
        out = self.net(x)
        return out, torch.nn.functional.mse_loss(out, y)


def command_line():
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=4)
    return parser.parse_args()


def options_for(arguments):
    """Options of a process on its own, or of an instance that takes its replicas from PopRun."""
    if not popdist.isPopdistEnvSet():
        return poptorch.Options().replicationFactor(arguments.replicas)
    hvd.init()
    total = popdist.getNumTotalReplicas()
    if total != arguments.replicas:
        print(f"poprun decides about replicas: {total} in all")
    arguments.replicas = popdist.getNumLocalReplicas()
    return popdist.poptorch.Options()


def train(options, batch_size):
    torch.manual_seed(1)
    model = Regression()
    x = torch.randn(64, 6)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    if popdist.isPopdistEnvSet():
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training_model = poptorch.trainingModel(model, options, optimizer)
    loader = poptorch.DataLoader(options, data, batch_size=batch_size)
    for _ in range(EPOCHS):
        for batch in loader:
            training_model(*batch)
    return torch.cat([value.flatten() for value in model.state_dict().values()])


if __name__ == "__main__":
    arguments = command_line()
    options = options_for(arguments)
    weights = train(options, arguments.batch_size)
    rank = popdist.getInstanceIndex() if popdist.isPopdistEnvSet() else 0
    answer = {"rank": rank, "replicas": arguments.replicas, "weights": weights.tolist()}
    print(json.dumps(answer), flush=True)
