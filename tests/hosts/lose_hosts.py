"""Trainings that lose a host twice: each of nine steps is one update, checkpointed.

    poprun ... python -m tests.hosts.lose_hosts torch|onnx|tf FOLDER

With a folder that has the file ``undisturbed`` nothing waits. Otherwise the job waits after the
third update for the death of a host, after the fifth for its return, and after the seventh for its
second death. What was trained stands in ``result.npz`` at the end.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

import popdist

UPDATES, REPLICAS, ROWS = 9, 4, 3
WAITS = {0: 3, 1: 5, 2: 7}


def pause(folder, updates):
    """Waits after the update at which this start of the job has to be disturbed."""
    here = popdist.topology()
    if (folder / "undisturbed").exists() or WAITS.get(here.restart_count) != updates:
        return
    (folder / f"waits.{here.restart_count}").touch()
    while here.restart_count != 1 or not (folder / "returned").exists():
        time.sleep(0.05)
    os._exit(3)


def rows():
    """The data set: features, and classes."""
    rng = np.random.default_rng(4)
    samples = UPDATES * REPLICAS * ROWS
    return rng.normal(size=(samples, 5)).astype(np.float32), rng.integers(0, 4, samples)


def train_torch(folder):
    """A shuffled loader, dropout, batch statistics and a schedule; the same bits are expected."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    import popdist.poptorch
    import popdist_torch as poptorch
    from tests.popdist_torch import reference

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(
                nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.4), nn.Linear(8, 4)
            )

        def forward(self, x, y):
            return nn.functional.cross_entropy(self.layers(x), y)

    options = popdist.poptorch.Options().randomSeed(3)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    training = poptorch.trainingModel(model, options, optimizer, placement_invariant=True)
    data = TensorDataset(*map(torch.from_numpy, rows()))
    # The same batches in every layout, also in the one that nothing disturbs.
    part = poptorch.DataPartition.Interleaved
    loader = poptorch.DataLoader(options, data, batch_size=ROWS, shuffle=True, partition=part)
    saved = poptorch.Checkpoint(folder / "run.pt", model=training, loader=loader, s=scheduler)
    updates = (saved.load() or {"updates": 0})["updates"]
    for x, y in loader:
        training.setOptimizer(optimizer)
        training(x, y)
        scheduler.step()
        updates += 1
        saved.save(updates=updates)
        pause(folder, updates)
    return {"weights": reference.flat(model), "rate": scheduler.get_last_lr()[0]}


def train_onnx(folder):
    """Momentum and a schedule, each epoch in a drawn order."""
    import popdist_onnx
    from tests.popdist_onnx.training.test_trainer import data, exported, network

    x, y = data()
    trainer = popdist_onnx.Trainer(exported(network()), optimizer="momentum", batch_size=2)
    path = folder / "run.onnx"
    if path.exists():
        trainer.resume(path)
    while len(trainer.history) < UPDATES:
        trainer.fit(x[:16], y[:16], epochs=1, schedule=lambda update: 0.05 / (1 + update))
        trainer.save_checkpoint(path)
        pause(folder, len(trainer.history))
    return {**trainer.weights, "losses": np.asarray(trainer.history)}


def train_tf(folder):
    """Keras under PopDistStrategy, with a schedule and noise that the step draws."""
    import tensorflow as tf

    from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy

    strategy = PopDistStrategy()
    with strategy.scope():
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential(
            [tf.keras.layers.Dense(8, "tanh", input_shape=(5,)), tf.keras.layers.Dense(4)]
        )
        rate = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.8)
        model.compile(
            optimizer=tf.keras.optimizers.Adam(rate),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            steps_per_execution=1,
        )
        model.optimizer.build(model.trainable_variables)
    state = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = str(folder / "run")
    if Path(f"{path}.index").exists():
        state.read(path).assert_existing_objects_matched()
    features, classes = rows()
    here = popdist.topology()
    while (update := int(model.optimizer.iterations.numpy())) < UPDATES:
        rng = np.random.default_rng(update)  # the order, and the noise, of every replica
        chosen = rng.permutation(len(features))[: REPLICAS * ROWS].reshape(REPLICAS, ROWS)
        noise = rng.normal(size=(REPLICAS, ROWS, 5)).astype(np.float32) / 10
        mine = slice(here.replica_index_offset, here.replica_index_offset + here.num_local_replicas)
        x, y = features[chosen[mine]] + noise[mine], classes[chosen[mine]]
        batches = tf.data.Dataset.from_tensor_slices((x, y)).unbatch().batch(ROWS)
        model.fit(batches, verbose=0)
        popdist.synchronize()
        if here.instance_index == 0:
            state.write(path)
        popdist.synchronize()
        pause(folder, update + 1)
    return {f"weight{i}": weight for i, weight in enumerate(model.get_weights())}


def main(adapter, folder):
    result = {"torch": train_torch, "onnx": train_onnx, "tf": train_tf}[adapter](Path(folder))
    if popdist.getInstanceIndex() == 0:
        np.savez(Path(folder, "result.npz"), **result)


if __name__ == "__main__":
    main(*sys.argv[1:])
