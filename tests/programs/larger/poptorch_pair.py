"""Trains and tests a sequence reader of digits with a pair of executors that share one model.

There is no poprun: mpirun starts the processes, and plain options find their place among them. The
model is cut into blocks, its loss is a function of its own, marked by identity_loss, and the hidden
layers are recomputed. After every epoch the inference executor tests what the training executor has
made of the weights.
"""

import argparse
import hashlib
import json

import horovod.torch as hvd
import numpy as np
import poptorch
import torch
from sklearn.datasets import load_digits

TRAINING_DIGITS = 1280
TEST_DIGITS = 480
WIDTH = 32


def command_line_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--optimizer", choices=("lamb", "sgd"), default="sgd")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--weights")
    return parser.parse_args()


class Attention(torch.nn.Module):
    """Every row of an image looks at all of them."""

    def __init__(self):
        super().__init__()
        self.queries_keys_values = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, rows):
        queries, keys, values = self.queries_keys_values(rows).chunk(3, dim=-1)
        scores = torch.matmul(queries, keys.transpose(-1, -2)) / WIDTH**0.5
        mixed = torch.matmul(torch.softmax(scores, -1), values)
        return self.norm(rows + mixed)


@poptorch.BlockFunction("embedding", ipu_id=0)
def embedded(layer, images, places):
    return layer(images) + places


class RowReader(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = torch.nn.Linear(8, WIDTH)
        self.places = torch.nn.Parameter(torch.zeros(8, WIDTH))
        self.attention = poptorch.BeginBlock(Attention(), "attention", ipu_id=0)
        self.digits = torch.nn.Linear(WIDTH, 10)
        self.register_buffer("classes", torch.arange(10), persistent=False)

    def forward(self, images, labels=None):
        rows = self.attention(embedded(self.rows, images, self.places))
        (rows,) = (poptorch.recomputationCheckpoint(rows),)
        with poptorch.Block("classifier", ipu_id=0):
            scores = self.digits(rows.mean(1))
            if labels is None:
                return scores
            # Smoothed cross entropy, spelled out.
            wanted = 0.9 * (labels.unsqueeze(1) == self.classes).float() + 0.01
            loss = -(wanted * torch.log_softmax(scores, -1)).sum(-1)
            return {"scores": scores, "loss": poptorch.identity_loss(loss, reduction="mean")}


def data():
    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    images = torch.tensor(digits.images[order] / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target[order], dtype=torch.int32)
    split = TRAINING_DIGITS, TRAINING_DIGITS + TEST_DIGITS
    train = torch.utils.data.TensorDataset(images[: split[0]], labels[: split[0]])
    return train, torch.utils.data.TensorDataset(images[slice(*split)], labels[slice(*split)])


def training_options():
    options = poptorch.Options()
    options.deviceIterations(4)
    options.replicationFactor(2)
    options.Training.gradientAccumulation(2)
    options.outputMode(poptorch.OutputMode.All)
    options.setExecutionStrategy(
        poptorch.PipelinedExecution("embedding", "attention", "classifier")
    )
    options.randomSeed(7)
    return options


def inference_options():
    options = poptorch.Options()
    options.Distributed.disable()
    options.deviceIterations(3)
    options.outputMode(poptorch.OutputMode.All)
    options.setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement))
    return options


def create_optimizer(args, model):
    if args.optimizer == "lamb":
        return poptorch.optim.LAMB(model.parameters(), lr=args.learning_rate, weight_decay=0.01)
    return poptorch.optim.SGD(
        model.parameters(),
        lr=args.learning_rate,
        momentum=0.9,
        nesterov=False,
        use_combined_accum=True,
    )


def main():
    args = command_line_arguments()
    hvd.init()
    options = training_options()
    training_set, test_set = data()
    loader = poptorch.DataLoader(
        options, training_set, batch_size=args.micro_batch_size, shuffle=False, num_workers=0
    )
    test_options = inference_options()
    test_loader = poptorch.DataLoader(test_options, test_set, batch_size=40)

    model = RowReader()
    training = poptorch.trainingModel(model, options, create_optimizer(args, model))
    inference = poptorch.inferenceModel(model, test_options)
    losses, accuracies = [], []
    for epoch in range(args.epochs):
        for images, labels in loader:
            outputs = training(images, labels=labels)
            assert outputs["scores"].shape == (len(labels), 10)
            losses.append(float(outputs["loss"].mean()))
        optimizer = create_optimizer(args, model)
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * 0.5 ** (epoch + 1)
        training.setOptimizer(optimizer)
        training.detachFromDevice()
        right = 0
        for images, labels in test_loader:
            right += int((inference(images).argmax(-1) == labels).sum())
        inference.detachFromDevice()
        accuracies.append(right / len(test_set))
        training.attachToDevice()

    training.copyWeightsToHost()
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    if args.weights and hvd.rank() == 0:
        np.savez(args.weights, **weights)
    digest = hashlib.sha256(b"".join(weights[name].tobytes() for name in sorted(weights)))
    mean = hvd.allreduce(torch.tensor(losses), name="losses", op=hvd.Average)
    answer = {
        "rank": hvd.rank(),
        "losses": losses,
        "mean_losses": mean.tolist(),
        "accuracies": accuracies,
        "digest": digest.hexdigest(),
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
