"""Trains an ONNX network of digits with momentum, accumulation and a schedule; can be resumed.

The job's replicas are described by popdist. The learning rate falls between steps, sent to the
device by `updateOptimizerFromHost`. With --save the model goes to a file at the end, velocities
included; with --resume training goes on from such a file.
"""

import argparse
import hashlib
import json

import horovod.popart as hvd
import numpy as np
import popart
from sklearn.datasets import load_digits

import popdist
import popdist.popart

CLASSES = 10
PIXELS = 64
HIDDEN = 24


def command_line_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch-size", type=int, default=8)
    parser.add_argument("--gradient-accumulation", type=int, default=2)
    parser.add_argument("--batches-per-step", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--until", type=int, help="the step to stop at")
    parser.add_argument("--save", help="file for the trained model")
    parser.add_argument("--resume", help="file of a model to go on with")
    return parser.parse_args()


def create_model(args):
    builder = popart.Builder()
    random = np.random.RandomState(1)
    images = builder.addInputTensor("FLOAT", [args.micro_batch_size, PIXELS], "images")
    labels = builder.addInputTensor("INT32", [args.micro_batch_size], "labels")

    def linear(x, inputs, outputs, name):
        weight = random.normal(0, np.sqrt(2 / inputs), [inputs, outputs]).astype(np.float32)
        weight_id = builder.addInitializedInputTensor(weight, f"{name}_weight")
        bias_id = builder.addInitializedInputTensor(np.zeros(outputs, np.float32), f"{name}_bias")
        return builder.aiOnnx.add([builder.aiOnnx.matmul([x, weight_id]), bias_id])

    scale = builder.addInitializedInputTensor(np.ones(HIDDEN, np.float32), "norm_scale")
    shift = builder.addInitializedInputTensor(np.zeros(HIDDEN, np.float32), "norm_shift")
    x = linear(images, PIXELS, HIDDEN, "hidden")
    x = builder.aiGraphcore.groupnormalization([x, scale, shift], num_groups=1)[0]
    x = linear(builder.aiGraphcore.gelu([x]), HIDDEN, CLASSES, "scores")
    log_probabilities = builder.aiOnnx.logsoftmax([x])
    loss = builder.aiGraphcore.nllloss([log_probabilities, labels], inputIsLogProbability=True)
    return builder.getModelProto(), loss


def learning_rate(step):
    """The rate of a step, as an optimizer for the device."""
    return popart.SGD(
        {
            "defaultLearningRate": (0.2 * 0.8**step, False),
            "defaultMomentum": (0.9, True),
            "defaultWeightDecay": (1e-4, True),
            "lossScaling": (16.0, True),
        },
        clip_norm_settings=[popart.ClipNormSettings.clipAllWeights(1.0)],
        accumulatorAndMomentum=popart.SGDAccumulatorAndMomentum.Separate,
    )


def create_options(args):
    options = popart.SessionOptions()
    popdist.popart.configureSessionOptions(options)
    options.enableGradientAccumulation = args.gradient_accumulation > 1
    options.accumulationFactor = args.gradient_accumulation
    options.accumulationAndReplicationReductionType = popart.ReductionType.Mean
    options.meanAccumulationAndReplicationReductionStrategy = popart.MeanReductionStrategy.Post
    options.enableOutlining = False
    options.enableStochasticRounding = False
    return options


def batches(args):
    """Every step's images and labels: [updates, accumulation, local replicas, micro-batch]."""
    digits = load_digits()
    total, local = popdist.getNumTotalReplicas(), popdist.getNumLocalReplicas()
    first = popdist.getReplicaIndexOffset()
    shape = (args.batches_per_step, args.gradient_accumulation, total, args.micro_batch_size)
    samples = int(np.prod(shape))
    for step in range(args.steps):
        order = np.random.RandomState(step).permutation(len(digits.target))[:samples]
        own = order.reshape(shape)[:, :, first : first + local]
        yield (
            np.ascontiguousarray(digits.data[own] / 16, dtype=np.float32),
            np.ascontiguousarray(digits.target[own], dtype=np.int32),
        )


def main():
    args = command_line_arguments()
    hvd.init()
    proto, loss = create_model(args)
    start = 0
    if args.resume:
        with open(f"{args.resume}.step") as file:
            start = int(file.read())
        proto = args.resume
    session = popart.TrainingSession(
        fnModel=proto,
        dataFlow=popart.DataFlow(args.batches_per_step, {loss: popart.AnchorReturnType("Sum")}),
        loss=loss,
        optimizer=learning_rate(start),
        deviceInfo=popdist.popart.getDevice(ipusPerReplica=1),
        userOptions=create_options(args),
    )
    session.prepareDevice()
    session.weightsFromHost()
    anchors = session.initAnchorArrays()
    losses = []
    for step, (images, labels) in enumerate(batches(args)):
        if not start <= step < (args.until or args.steps):
            continue
        session.updateOptimizerFromHost(learning_rate(step))
        session.run(popart.PyStepIO({"images": images, "labels": labels}, anchors))
        micro_batches = args.batches_per_step * args.gradient_accumulation
        losses.append(float(anchors[loss].mean()) / micro_batches)
    session.weightsToHost()
    weights = {
        "hidden_weight": np.empty([PIXELS, HIDDEN], np.float32),
        "norm_scale": np.empty(HIDDEN, np.float32),
        "scores_weight": np.empty([HIDDEN, CLASSES], np.float32),
        "scores_bias": np.empty(CLASSES, np.float32),
    }
    session.readWeights(popart.PyWeightsIO(weights))
    if args.save and popdist.getInstanceIndex() == 0:
        session.modelToHost(args.save)
        with open(f"{args.save}.step", "w") as file:
            file.write(str(args.until or args.steps))
        np.savez(f"{args.save}.npz", **weights)
    digest = hashlib.sha256(b"".join(array.tobytes() for array in weights.values())).hexdigest()
    rank = popdist.getInstanceIndex()
    print(json.dumps({"rank": rank, "losses": losses, "digest": digest}), flush=True)


if __name__ == "__main__":
    main()
