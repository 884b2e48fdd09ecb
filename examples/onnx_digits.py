"""Trains an ONNX network, built operator by operator, on handwritten digits.

    poprun --num-instances 2 --num-replicas 2 python examples/onnx_digits.py
    poprun --num-instances 2 --num-replicas 4 python examples/onnx_digits.py --network cnn

The program is written as PopART programs are: a builder makes the graph, a session trains it, the
real Horovod sums gradients between the instances. It ends with the accuracy on digits that were not
trained on, and with the check that all instances hold the same weights, bit for bit.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import digits
import numpy as np
from tqdm import tqdm

import popdist
import popdist.popart
import popdist_onnx as popart
import popdist_onnx.horovod as hvd

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOWEST_ACCURACY = 0.93
CLASSES = 10


@dataclass(frozen=True)
class Network:
    """A graph with the ids of what the program feeds and reads.

    Attributes:
        proto: The serialized model.
        images: The input of the images.
        labels: The input of the class numbers.
        probabilities: The output.
        loss: The scalar to minimise.
    """

    proto: bytes
    images: str
    labels: str
    probabilities: str
    loss: str


class Layers:
    """Adds layers to a graph.

    Args:
        seed: Of the first weights, which all instances draw alike.
    """

    def __init__(self, seed: int) -> None:
        self.builder = popart.Builder(opsets={"ai.onnx": 11, "ai.graphcore": 1})
        self._random = np.random.default_rng(seed)

    def weight(self, name: str, *shape: int) -> str:
        """A weight, scaled so that signals keep their size."""
        scale = np.sqrt(2 / np.prod(shape[1:]))
        values = self._random.normal(0, scale, shape).astype(np.float32)
        return str(self.builder.addInitializedInputTensor(values, name))

    def bias(self, name: str, size: int) -> str:
        """A bias of zeros."""
        return str(self.builder.addInitializedInputTensor(np.zeros(size, np.float32), name))

    def linear(self, name: str, x: str, inputs: int, outputs: int) -> str:
        """A fully connected layer on [batch, inputs]."""
        operands = [x, self.weight(f"{name}_w", outputs, inputs), self.bias(f"{name}_b", outputs)]
        return str(self.builder.aiOnnx.gemm(operands, transB=1))

    def convolution(self, name: str, x: str, inputs: int, outputs: int) -> str:
        """A 3 x 3 convolution that keeps the size, on [batch, inputs, side, side]."""
        operands = [
            x,
            self.weight(f"{name}_w", outputs, inputs, 3, 3),
            self.bias(f"{name}_b", outputs),
        ]
        made = self.builder.aiOnnx.conv(operands, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        return str(self.builder.aiOnnx.relu([made]))


def perceptron(layers: Layers, images: str, side: int) -> str:
    """Scores by two hidden layers."""
    hidden = layers.builder.aiOnnx.flatten([images])
    for index, (inputs, outputs) in enumerate([(side * side, 64), (64, 32)]):
        made = layers.linear(f"layer{index}", hidden, inputs, outputs)
        hidden = layers.builder.aiOnnx.relu([made])
    return layers.linear("scores", hidden, 32, CLASSES)


def convolutional(layers: Layers, images: str, side: int) -> str:
    """Scores by two convolutions and pooling."""
    hidden = layers.convolution("conv0", images, 1, 16)
    hidden = layers.convolution("conv1", hidden, 16, 32)
    (hidden,) = _listed(
        layers.builder.aiOnnx.maxpool([hidden], num_outputs=1, kernel_shape=[2, 2], strides=[2, 2])
    )
    flat = layers.builder.aiOnnx.flatten([hidden])
    return layers.linear("scores", flat, 32 * (side // 2) ** 2, CLASSES)


def build(kind: str, batch: int, side: int, seed: int) -> Network:
    """Makes the graph with its loss."""
    layers = Layers(seed)
    builder = layers.builder
    images = builder.addInputTensor(popart.TensorInfo("FLOAT", [batch, 1, side, side]), "images")
    labels = builder.addInputTensor(popart.TensorInfo("INT32", [batch]), "labels")
    scores = (perceptron if kind == "mlp" else convolutional)(layers, images, side)
    probabilities = builder.aiOnnx.softmax([scores])
    loss = builder.aiGraphcore.nllloss([probabilities, labels])
    builder.addOutputTensor(probabilities)
    return Network(builder.getModelProto(), images, labels, probabilities, loss)


def train(
    args: argparse.Namespace, network: Network, data: digits.Digits
) -> popart.TrainingSession:
    """Trains on all instances together."""
    options = popart.SessionOptions()
    popdist.popart.configureSessionOptions(options)
    options.accumulationAndReplicationReductionType = popart.ReductionType.Mean
    optimizer = popart.SGD(
        {"defaultLearningRate": (args.lr, False), "defaultMomentum": (0.9, True)}
    )
    session = popart.TrainingSession(
        network.proto,
        popart.DataFlow(1, {network.loss: popart.AnchorReturnType("Sum")}),
        network.loss,
        optimizer,
        popdist.popart.getDevice(),
        userOptions=options,
    )
    session.prepareDevice()
    session.weightsFromHost()
    anchors = session.initAnchorArrays()
    first, local = popdist.getReplicaIndexOffset(), popdist.getNumLocalReplicas()
    total = popdist.getNumTotalReplicas()
    updates = len(data.train) // (args.batch_size * total)
    random = np.random.default_rng(args.seed)  # the same order on every instance
    with tqdm(
        total=args.epochs * updates, unit="update", disable=True if first else None, file=sys.stdout
    ) as bar:
        for epoch in range(args.epochs):
            order = random.permutation(len(data.train))[: updates * args.batch_size * total]
            # [updates, replicas of the job, micro-batch]; this instance takes its replicas.
            for chosen in order.reshape(updates, total, -1)[:, first : first + local]:
                step = {
                    network.images: data.train.images[chosen],
                    network.labels: data.train.labels[chosen].astype(np.int32),
                }
                session.run(popart.PyStepIO(step, anchors))
                bar.update()
            bar.set_postfix(epoch=epoch + 1, loss=f"{anchors[network.loss].mean():.4f}")
    session.weightsToHost()
    return session


def accuracy(network: Network, session: popart.TrainingSession, data: digits.Digits) -> float:
    """The share of test digits that the trained weights name correctly."""
    options = popart.SessionOptions()
    options.constantWeights = False
    inference = popart.InferenceSession(
        network.proto,
        popart.DataFlow(1, [network.probabilities]),
        popdist.popart.getDevice(),
        userOptions=options,
    )
    inference.prepareDevice()
    inference.writeWeights(popart.PyWeightsIO(dict(session.fetched)))
    inference.weightsFromHost()
    anchors = inference.initAnchorArrays()
    batch = len(anchors[network.probabilities])
    right = 0
    count = len(data.test) // batch * batch
    for start in range(0, count, batch):
        part = slice(start, start + batch)
        images = np.ascontiguousarray(data.test.images[part])
        inference.run(
            popart.PyStepIO(
                {network.images: images, network.labels: np.zeros(batch, np.int32)}, anchors
            )
        )
        seen = anchors[network.probabilities].argmax(1)
        right += int((seen == data.test.labels[part]).sum())
    return right / count


def instances_agree(weights: dict[str, NDArray[Any]]) -> bool:
    """Whether all instances hold the same weights, bit for bit."""
    if popdist.getNumInstances() == 1:
        return True
    hvd.init()
    same = [
        np.array_equal(array, hvd.broadcast(array, root_rank=0, name=name))
        for name, array in weights.items()
    ]
    return bool(hvd.allreduce(np.asarray([float(all(same))]))[0] == 1)


def _listed(made: str | list[str]) -> list[str]:
    return [made] if isinstance(made, str) else made


def main() -> int:
    """Trains, tests, checks.

    Returns:
        0; 1 where the accuracy is too low or the instances differ.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--network", choices=("mlp", "cnn"), default="mlp")
    parser.add_argument("--epochs", type=int, default=15, help="passes over the training data")
    parser.add_argument("--batch-size", type=int, default=8, help="samples of a micro-batch")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate")
    parser.add_argument("--seed", type=int, default=1, help="of weights and order")
    args = parser.parse_args()
    popdist.init()
    data = digits.load()
    network = build(args.network, args.batch_size, data.side, args.seed)
    session = train(args, network, data)
    share = accuracy(network, session, data)
    agree = instances_agree(dict(session.fetched))
    if popdist.getReplicaIndexOffset() == 0:
        print(
            f"{args.network} on {data.name}: accuracy {share:.3f}; "
            f"instances {'agree' if agree else 'DISAGREE'}"
        )
    return 0 if agree and share >= LOWEST_ACCURACY else 1


if __name__ == "__main__":
    sys.exit(main())
