"""Trains a classifier of digits with everything that spreads a batch, and keeps checkpoints.

An update has gradientAccumulation micro-batches on each replica of each instance, and a call makes
deviceIterations of them. Data are loaded asynchronously. Instance 0 alone writes a checkpoint after
each epoch and tests it, with a model and options of its own. With --resume training goes on from a
checkpoint.
"""

import argparse
import hashlib
import json
import os

import horovod.torch as hvd
import numpy as np
import popart
import poptorch
import torch
from sklearn.datasets import load_digits

import popdist
import popdist.poptorch

TRAINING_DIGITS = 1536
TEST_DIGITS = 256


def command_line_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch-size", type=int, default=8)
    parser.add_argument("--gradient-accumulation", type=int, default=2)
    parser.add_argument("--device-iterations", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=0.02)
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="adamw")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--checkpoint-dir", required=True)
    parser.add_argument("--resume")
    return parser.parse_args()


def init_popdist(args):
    hvd.init()
    args.use_popdist = True
    if popdist.getNumTotalReplicas() != args.replicas:
        print(f"The number of replicas is overridden: {popdist.getNumTotalReplicas()}")
    args.replicas = int(popdist.getNumLocalReplicas())
    args.popdist_rank = popdist.getInstanceIndex()
    args.popdist_size = popdist.getNumInstances()


def init_alone(args):
    args.use_popdist = False
    args.popdist_rank, args.popdist_size = 0, 1


def create_options(args):
    if args.use_popdist:
        options = popdist.poptorch.Options(ipus_per_replica=1)
    else:
        options = poptorch.Options()
        options.replicationFactor(args.replicas)
    options.autoRoundNumIPUs(True)
    options.deviceIterations(args.device_iterations)
    options.randomSeed(args.seed)
    options.outputMode(poptorch.OutputMode.Sum)
    options.setAvailableMemoryProportion({"IPU0": 0.6})
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
    options.showCompilationProgressBar(args.popdist_rank == 0)
    options.Training.gradientAccumulation(args.gradient_accumulation)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    options.Training.setMeanAccumulationAndReplicationReductionStrategy(
        poptorch.MeanReductionStrategy.Post
    )
    options.Precision.setPartialsType(torch.float32)
    options.Precision.enableStochasticRounding(False)
    options.TensorLocations.setOptimizerLocation(
        poptorch.TensorLocationSettings()
        .useOnChipStorage(False)
        .useReplicatedTensorSharding(True)
        .minElementsForReplicatedTensorSharding(args.replicas)
    )
    options._Popart.set("saveInitializersToFile", os.path.join(args.checkpoint_dir, "weights.bin"))
    options._Popart.set("subgraphCopyingStrategy", int(popart.SubgraphCopyingStrategy.JustInTime))
    return options


def datasets():
    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    images = torch.tensor(digits.images[order] / 16, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target[order], dtype=torch.long)
    split = TRAINING_DIGITS, TRAINING_DIGITS + TEST_DIGITS
    train = torch.utils.data.TensorDataset(images[: split[0]], labels[: split[0]])
    return train, torch.utils.data.TensorDataset(images[slice(*split)], labels[slice(*split)])


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)
        )
        self.scores = torch.nn.Linear(8 * 16, 10)

    def forward(self, images):
        return self.scores(self.features(images).flatten(1))


class ClassifierWithLoss(torch.nn.Module):
    def __init__(self, classifier):
        super().__init__()
        self.classifier = classifier
        self.loss = torch.nn.CrossEntropyLoss(reduction="mean")

    def forward(self, images, labels):
        scores = self.classifier(images)
        right = (scores.argmax(1) == labels).float().mean()
        return self.loss(scores, labels), right


def create_optimizer(args, model):
    """Decays the weights, and not the biases."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.01},
        {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    if args.optimizer == "sgd":
        optimizer = poptorch.optim.SGD(
            groups, lr=args.learning_rate, momentum=0.9, loss_scaling=8.0, use_combined_accum=False
        )
    else:
        optimizer = poptorch.optim.AdamW(
            groups,
            lr=args.learning_rate,
            loss_scaling=8.0,
            accum_type=torch.float32,
            first_order_momentum_accum_type=torch.float32,
            second_order_momentum_accum_type=torch.float32,
        )
    optimizer.variable_attrs.markAsConstant("weight_decay")
    return optimizer


def checkpoint_file(args, epoch):
    return os.path.join(args.checkpoint_dir, f"epoch_{epoch}.pt")


def save_checkpoint(args, model, optimizer, scheduler, epoch):
    torch.save(
        {
            "epoch": epoch,
            "model_state_dict": model.state_dict(),
            "optimizer_state_dict": optimizer.state_dict(),
            "scheduler_state_dict": scheduler.state_dict(),
            "args": args,
        },
        checkpoint_file(args, epoch),
    )


def validate(args, dataset, epochs):
    """The accuracies of checkpoints; runs on one instance, while the others wait."""
    options = poptorch.Options()
    options.Distributed.disable()
    options.deviceIterations(2)
    loader = poptorch.DataLoader(options, dataset, batch_size=64, drop_last=False)
    accuracies = []
    for epoch in epochs:
        model = Classifier().eval()
        checkpoint = torch.load(checkpoint_file(args, epoch), weights_only=False)
        prefix = "classifier."
        model.load_state_dict(
            {
                name[len(prefix) :]: value
                for name, value in checkpoint["model_state_dict"].items()
                if name.startswith(prefix)
            }
        )
        inference_model = poptorch.inferenceModel(model, options)
        right = sum(int((inference_model(x).argmax(1) == y).sum()) for x, y in loader)
        inference_model.destroy()
        accuracies.append(right / len(dataset))
    return accuracies


def mean_metric(args, value):
    """A metric of all replicas of all instances, from the sums over a call's micro-batches."""
    value = value / (args.device_iterations * args.gradient_accumulation)
    mean = value.mean()
    if args.use_popdist:
        mean = hvd.allreduce(torch.Tensor([mean]), name="metric", op=hvd.Average)[0]
    return float(mean)


def main():
    args = command_line_arguments()
    if popdist.isPopdistEnvSet():
        popdist.init()
        init_popdist(args)
    else:
        init_alone(args)

    options = create_options(args)
    training_set, test_set = datasets()
    model = ClassifierWithLoss(Classifier())
    model.train()
    poptorch.BeginBlock(model.classifier.features, "features", ipu_id=0)
    poptorch.BeginBlock(model.classifier.scores, "scores", ipu_id=0)
    optimizer = create_optimizer(args, model)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1], gamma=0.5)
    training_model = poptorch.trainingModel(model, options, optimizer=optimizer)
    loader = poptorch.DataLoader(
        options,
        training_set,
        batch_size=args.micro_batch_size,
        shuffle=False,
        drop_last=True,
        num_workers=1,
        persistent_workers=True,
        mode=poptorch.DataLoaderMode.Async,
        async_options={"load_indefinitely": True, "buffer_size": 2},
    )
    first_epoch = 0
    if args.resume:
        checkpoint = torch.load(args.resume, weights_only=False)
        first_epoch = checkpoint["epoch"]
        training_model.load_state_dict(checkpoint["model_state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
        scheduler.load_state_dict(checkpoint["scheduler_state_dict"])
    elif args.use_popdist:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    training_model.compile(*next(iter(loader)))

    losses, shares = [], []
    for epoch in range(first_epoch, args.epochs):
        for images, labels in loader:
            loss, right = training_model(images, labels)
            losses.append(mean_metric(args, loss))
            shares.append(mean_metric(args, right))
        scheduler.step()
        training_model.setOptimizer(optimizer)
        save = save_checkpoint, args, model, optimizer, scheduler, epoch + 1
        if args.use_popdist:
            popdist.execute_on_instances({0}, *save)
        else:
            save[0](*save[1:])
    training_model.destroy()
    loader.terminate()

    check = validate, args, test_set, range(first_epoch + 1, args.epochs + 1)
    if args.use_popdist:
        accuracies = popdist.execute_on_instances({0}, *check)
    else:
        accuracies = check[0](*check[1:])
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    digest = hashlib.sha256(b"".join(weights[name].tobytes() for name in sorted(weights)))
    answer = {
        "rank": args.popdist_rank,
        "losses": losses,
        "training_accuracies": shares,
        "accuracies": accuracies,
        "digest": digest.hexdigest(),
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
