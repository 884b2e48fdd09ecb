"""Looks at programs from outside, as not one of their lines may be changed for a test.

A folder with this file on PYTHONPATH makes every Python program write what it trained, as JSON, to
``$OBSERVED/<process id>.json`` when it ends. The programs also get what a test cannot download:
MNIST of Keras, and MNIST and CIFAR of torchvision, are answered with scikit-learn's digits.

Environment:
    OBSERVED: Folder for the answers; without it nothing is observed.
    OBSERVED_SEED: Seeds torch, and numpy's old generator, which the programs draw from unseeded.
"""

import atexit
import functools
import hashlib
import importlib.abc
import importlib.util
import json
import os
import sys
import types
from pathlib import Path


def load_data():
    """As many digits as scikit-learn has, in the form of `keras.datasets.mnist.load_data`."""
    import numpy as np
    from sklearn.datasets import load_digits

    bunch = load_digits()
    large = np.kron(bunch.images * (255 / 16), np.ones((3, 3))).astype(np.uint8)
    images = np.pad(large, ((0, 0), (2, 2), (2, 2)))
    labels = bunch.target.astype(np.uint8)
    return (images[:1500], labels[:1500]), (images[1500:], labels[1500:])


def answer(**values):
    """Leaves an answer for the test."""
    path = Path(os.environ["OBSERVED"]) / f"{os.getpid()}.json"
    path.write_text(json.dumps(values))


def digest(arrays):
    """One short text for the bits of arrays by name."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(name.encode() + arrays[name].tobytes())
    return found.hexdigest()[:16]


def watch_onnx(module):
    """Keeps the losses of a training session, and reads its weights at the end."""
    import numpy as np

    losses, before = [], {}

    def report(session):
        session.weightsToHost()
        found = {name: np.empty_like(array) for name, array in session.host_tensors.items()}
        session.readWeights(sys.modules["popdist_onnx"].PyWeightsIO(found))
        largest = max(float(np.abs(array).max()) for array in found.values())
        changed = [not np.array_equal(found[n], before[n]) for n in session.trained_weights]
        answer(
            losses=losses,
            digest=digest(found),
            largest=largest,
            rank=int(os.environ.get("OMPI_COMM_WORLD_RANK", "0")),
            updates=[len(losses)],
            digests=[digest(found)],
            moved=any(changed),
        )

    original = module.TrainingSession.run

    @functools.wraps(original)
    def run(self, stepio, *args, **kwargs):
        if not losses:
            atexit.register(report, self)
            before.update({name: one.copy() for name, one in self.host_tensors.items()})
        original(self, stepio, *args, **kwargs)
        outputs = {name: array.size for name, array in stepio._outputs.items()}
        smallest = min(outputs, key=outputs.get)
        losses.append([float(value) for value in stepio._outputs[smallest]])

    module.TrainingSession.run = run


def watch_estimator(module):
    """Keeps the losses of a training, and reads all variables before its session is closed."""
    losses = []
    original_run, original_leave = module.MonitoredSession.run, module.MonitoredSession.__exit__

    @functools.wraps(original_run)
    def run(self, *args, **kwargs):
        found = original_run(self, *args, **kwargs)
        losses.extend(float(value) for value in found if np_is_scalar(value))
        return found

    @functools.wraps(original_leave)
    def leave(self, *args):
        import numpy as np
        import tensorflow.compat.v1 as tf

        # The graph is finished, so that only what is read in it already can be asked for.
        with self.graph.as_default():
            variables = {v.name: getattr(v, "values", [v])[0] for v in tf.global_variables()}
        reads = {name: variable._graph_element for name, variable in variables.items()}
        values = self._tf_sess().run(reads)
        arrays = {name: np.asarray(value) for name, value in values.items()}
        answer(
            digest=digest(arrays),
            first_loss=losses[0],
            last_loss=losses[-1],
            names=sorted(arrays),
            steps=int(arrays["global_step:0"]),
        )
        return original_leave(self, *args)

    module.MonitoredSession.run = run
    module.MonitoredSession.__exit__ = leave


def np_is_scalar(value):
    """Whether a fetched value is a number of floating point."""
    return getattr(value, "shape", None) == () and value.dtype.kind == "f"


def watch_torch(module):
    """Keeps the losses of wrapped models, and reads their parameters at the end."""
    trained = {}  # by executor, in the order of their first calls

    def values(executor):
        named = executor._user_model.named_parameters()
        return {name: one.detach().float().numpy() for name, one in named}

    def report():
        now = [digest(values(executor)) for executor in trained]
        answer(
            rank=int(os.environ.get("OMPI_COMM_WORLD_RANK", "0")),
            updates=[len(kept["losses"]) for kept in trained.values()],
            losses=[loss for kept in trained.values() for loss in kept["losses"]],
            digests=now,
            moved=all(
                kept["before"] != one for kept, one in zip(trained.values(), now, strict=True)
            ),
        )

    original = module.TrainingExecutor.__call__

    @functools.wraps(original)
    def call(self, *args, **kwargs):
        from torch.utils import _pytree as pytree

        if not trained:
            atexit.register(report)
        if self not in trained:
            trained[self] = {"losses": [], "before": digest(values(self))}
        outputs = original(self, *args, **kwargs)
        tensors = [one for one in pytree.tree_leaves(outputs) if hasattr(one, "numel")]
        smallest = min((one for one in tensors if one.is_floating_point()), key=lambda t: t.numel())
        trained[self]["losses"].append(float(smallest.detach().double().mean()))
        return outputs

    module.TrainingExecutor.__call__ = call


def watch_mnist(module):
    """Answers torchvision's MNIST and its kin with scikit-learn's digits, enlarged."""

    def prepare(self, root, train=True, transform=None, target_transform=None, download=False):
        import torch

        super(module.MNIST, self).__init__(
            root, transform=transform, target_transform=target_transform
        )
        self.train = train
        self.data, self.targets = map(torch.from_numpy, load_data()[0 if train else 1])
        self.targets = self.targets.long()

    module.MNIST.__init__ = prepare


def watch_cifar(module):
    """Answers torchvision's CIFAR with scikit-learn's digits in three colours."""

    def prepare(self, root, train=True, transform=None, target_transform=None, download=False):
        import numpy as np

        super(module.CIFAR10, self).__init__(
            root, transform=transform, target_transform=target_transform
        )
        self.train = train
        images, labels = load_data()[0 if train else 1]
        wide = np.pad(images, ((0, 0), (2, 2), (2, 2)))
        self.data, self.targets = np.stack([wide] * 3, axis=-1), labels.tolist()
        self.classes = [str(digit) for digit in range(10)]
        self.class_to_idx = {name: int(name) for name in self.classes}

    module.CIFAR10.__init__ = prepare


def watch_torchvision(_module):
    """Declares the operators of torchvision where its compiled part is for another PyTorch."""
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    schemas = {
        "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    }
    for name, schema in schemas.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(name + schema)
    sys.modules["torchvision.extension"].kept = library


def seed_torch(module):
    """Seeds torch before the program uses it."""
    if "OBSERVED_SEED" in os.environ:
        module.manual_seed(int(os.environ["OBSERVED_SEED"]))


WATCHED = {
    "torch": seed_torch,
    "popdist_torch.executor.training": watch_torch,
    "torchvision.datasets.cifar": watch_cifar,
    "torchvision.datasets.mnist": watch_mnist,
    "torchvision.extension": watch_torchvision,
    "popdist_onnx.session.training": watch_onnx,
    "tensorflow.python.training.monitored_session": watch_estimator,
}


class Watcher(importlib.abc.MetaPathFinder):
    """Calls a function of `WATCHED` when its module has been imported."""

    def find_spec(self, name, path=None, target=None):
        if name not in WATCHED:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        execute = spec.loader.exec_module

        def then_watch(module):
            execute(module)
            WATCHED[name](module)

        spec.loader.exec_module = then_watch
        return spec


if "OBSERVED" in os.environ:
    sys.meta_path.insert(0, Watcher())
    mnist = sys.modules["keras.src.datasets.mnist"] = types.ModuleType("keras.src.datasets.mnist")
    mnist.load_data = load_data
    if "OBSERVED_SEED" in os.environ:
        import numpy as np

        np.random.seed(int(os.environ["OBSERVED_SEED"]))
