"""Looks at programs from outside, as not one of their lines may be changed for a test.

A folder with this file on PYTHONPATH makes every Python program write what it trained, as JSON, to
``$OBSERVED/<process id>.json`` when it ends. The programs also get what a test cannot download:
MNIST of Keras, and MNIST and CIFAR of torchvision, are answered with scikit-learn's digits.

Environment:
    OBSERVED: Folder for the answers; without it nothing is observed.
    OBSERVED_SEED: Seeds torch, and numpy's old generator, which the programs draw from unseeded.
    OBSERVED_ROWS: The number of rows of the training data that programs get; all by default.
    OBSERVED_STEPS: The number of steps after which Keras ends a training or an evaluation.
    OBSERVED_LAST: The most elements that ``take`` of a data set leaves, and the last step of a
        training in sessions of TensorFlow 1.
    OBSERVED_WORKERS: The most processes that a loader of torch starts.
"""

import atexit
import functools
import hashlib
import importlib.abc
import importlib.util
import json
import os
import random
import sys
import types
from pathlib import Path


def load_data(path="mnist.npz"):
    """scikit-learn's digits in the form of `keras.datasets.mnist.load_data`.

    The training part has ``$OBSERVED_ROWS`` rows, by default 1,500 different ones.
    """
    import numpy as np

    # scikit-learn itself takes seconds to import.
    package = Path(importlib.util.find_spec("sklearn").origin).parent
    table = np.loadtxt(package / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    large = np.kron(table[:, :-1].reshape(-1, 8, 8) * (255 / 16), np.ones((3, 3))).astype(np.uint8)
    images = np.pad(large, ((0, 0), (2, 2), (2, 2)))
    labels = table[:, -1].astype(np.uint8)
    rows = np.arange(int(os.environ.get("OBSERVED_ROWS", "1500"))) % 1500
    return (images[rows], labels[rows]), (images[1500:], labels[1500:])


def load_colours():
    """The digits in the form of `keras.datasets.cifar10.load_data`."""
    import numpy as np

    def coloured(images, labels):
        images = np.pad(images, ((0, 0), (2, 2), (2, 2)))
        return np.repeat(images[..., None], 3, axis=-1), labels[:, None]

    return tuple(coloured(*part) for part in load_data())


def load_words(num_words=2000, **_):
    """Sequences in the form of `keras.datasets.imdb.load_data`; the first number is the class."""
    import numpy as np

    rng = np.random.default_rng(1)

    def part(count):
        labels = rng.integers(0, 2, count)
        lengths = rng.integers(20, 80, count)
        rows = np.empty(count, object)
        for i, (label, length) in enumerate(zip(labels, lengths, strict=True)):
            rows[i] = [1 + label, *rng.integers(3, num_words or 2000, length).tolist()]
        return rows, labels

    return part(640), part(160)


def answer(**values):
    """Leaves an answer for the test, beside earlier ones of this process."""
    path = Path(os.environ["OBSERVED"]) / f"{os.getpid()}.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, **values}))


def digest(arrays):
    """One short text for the bits of arrays by name."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(name.encode() + arrays[name].tobytes())
    return found.hexdigest()[:16]


def are_finite(arrays):
    """Whether all numbers of arrays by name are finite."""
    import numpy as np

    return all(np.isfinite(one).all() for one in arrays.values() if one.dtype.kind in "fc")


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
            finite=are_finite(found),
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
        parts = found if isinstance(found, (list, tuple)) else [found]
        losses.extend(float(value) for value in parts if np_is_scalar(value))
        return found

    @functools.wraps(original_leave)
    def leave(self, *args):
        import numpy as np
        import tensorflow.compat.v1 as tf

        with self.graph.as_default():
            values = self._tf_sess().run(readings(tf.global_variables()))
        arrays = {name: np.asarray(value) for name, value in values.items()}
        answer(
            digest=digest(arrays),
            first_loss=losses[0] if losses else None,
            last_loss=losses[-1] if losses else None,
            names=sorted(arrays),
            steps=int(arrays["global_step:0"]),
        )
        return original_leave(self, *args)

    module.MonitoredSession.run = run
    module.MonitoredSession.__exit__ = leave


def readings(variables):
    """What to fetch of a graph's variables by name: a finished graph has no place for more."""
    parts = {one.name: getattr(one, "values", [one])[0] for one in variables}
    return {name: getattr(one, "_graph_element", one) for name, one in parts.items()}


class Trained:
    """The trained variables of a TensorFlow program: their first values, and those of now."""

    def __init__(self):
        self.variables = []  # of eager code, with their first values
        self.sessions = {}  # of graphs, with the first and the last values
        atexit.register(self.report)

    def note(self, variable):
        """Notes a new variable of eager code."""
        from tensorflow.python.eager import context
        from tensorflow.python.framework import ops

        with ops.init_scope():
            if variable.trainable and context.executing_eagerly():
                self.variables.append((variable, self.value(variable)))

    @staticmethod
    def value(variable):
        """The value of a variable; None where it has none yet."""
        try:
            return variable.numpy()
        except Exception:  # noqa: BLE001 - of any kind
            return None

    def read(self, session):
        """Reads the variables of a session's graph, once they all have values."""
        import tensorflow.compat.v2 as tf

        with session.graph.as_default():
            held = tf.compat.v1.trainable_variables()
        try:
            values = session.run(readings(held))
        except Exception:  # noqa: BLE001 - some variable has no value yet
            return
        first = self.sessions.get(session, (values,))[0]
        self.sessions[session] = (first, values)

    def report(self):
        """Leaves the answer."""
        import numpy as np

        for session in list(self.sessions):
            if not session._closed:
                self.read(session)
        kept = [values for values in self.sessions.values() if values[-1]]
        pairs = [(first[name], last[name]) for first, last in kept for name in last]
        pairs += [(first, self.value(one)) for one, first in self.variables]
        pairs = [(a, b) for a, b in pairs if b is not None]
        arrays = {f"{i:05}": np.asarray(last) for i, (_, last) in enumerate(pairs)}
        if arrays:
            answer(
                rank=int(os.environ.get("OMPI_COMM_WORLD_RANK", "0")),
                updates=[],
                losses=[],
                digests=[digest(arrays)],
                finite=are_finite(arrays),
                moved=any(not np.array_equal(first, last) for first, last in pairs),
            )


def watch_variables(module):
    """Notes the variables of eager TensorFlow code."""
    original = module.BaseResourceVariable.__init__

    @functools.wraps(original)
    def made(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if not isinstance(self, module._UnreadVariable):  # an assignment of another variable
            TRAINED.note(self)

    module.BaseResourceVariable.__init__ = made


def watch_sessions(module):
    """Reads the variables of a session after its first runs, and before it is closed."""
    run, close = module.BaseSession.run, module.BaseSession.close

    @functools.wraps(run)
    def ran(self, *args, **kwargs):
        found = run(self, *args, **kwargs)
        if self not in TRAINED.sessions and not getattr(self, "_observing", False):
            self._observing = True
            TRAINED.read(self)
            self._observing = False
        return found

    @functools.wraps(close)
    def closed(self):
        if self in TRAINED.sessions and not self._closed:
            TRAINED.read(self)
        close(self)

    module.BaseSession.run, module.BaseSession.close = ran, closed


def seed_tensorflow(module):
    """Seeds TensorFlow, eager code and graphs, where a program leaves that to it."""
    original = module.get_seed

    @functools.wraps(original)
    def seeded(op_seed):
        if module.context.executing_eagerly():
            if module.context.global_seed() is None:
                module.context.set_global_seed(int(os.environ["OBSERVED_SEED"]))
        elif module.ops.get_default_graph().seed is None:
            module.ops.get_default_graph().seed = int(os.environ["OBSERVED_SEED"])
        return original(op_seed)

    if "OBSERVED_SEED" in os.environ:
        module.get_seed = seeded


def shorten_keras(module):
    """Ends what Keras does with data early, for a program that has no option for it."""
    original = module.DataHandler.__init__

    @functools.wraps(original)
    def made(self, *args, **kwargs):
        if kwargs.get("steps_per_epoch"):
            kwargs["steps_per_epoch"] = min(kwargs["steps_per_epoch"], steps)
        kwargs["epochs"] = min(kwargs.get("epochs", 1), kwargs.get("initial_epoch", 0) + 1)
        original(self, *args, **kwargs)

    steps = int(os.environ.get("OBSERVED_STEPS", "0"))
    if steps:
        module.DataHandler.__init__ = made


def shorten_data(module):
    """Shortens what a program of TensorFlow takes of its data."""
    original = module.DatasetV2.take

    @functools.wraps(original)
    def take(self, count, name=None):
        return original(self, min(count, last), name)

    last = int(os.environ.get("OBSERVED_LAST", "0"))
    if last:
        module.DatasetV2.take = take


def shorten_sessions(module):
    """Ends a training of TensorFlow 1 early."""
    original = module.StopAtStepHook.__init__

    @functools.wraps(original)
    def made(self, num_steps=None, last_step=None):
        numbers = (
            None if number is None else min(number, last) for number in (num_steps, last_step)
        )
        original(self, *numbers)

    last = int(os.environ.get("OBSERVED_LAST", "0"))
    if last:
        module.StopAtStepHook.__init__ = made


def np_is_scalar(value):
    """Whether a fetched value is a number of floating point."""
    return getattr(value, "shape", None) == () and value.dtype.kind == "f"


def watch_torch(module):
    """Keeps the losses of wrapped models, and reads their parameters at the end."""
    trained = EXECUTORS

    def values(executor):
        named = executor._user_model.named_parameters()
        return {name: one.detach().float().numpy() for name, one in named}

    def report():
        last = [values(executor) for executor in trained]
        now = [digest(one) for one in last]
        answer(
            rank=int(os.environ.get("OMPI_COMM_WORLD_RANK", "0")),
            updates=[len(kept["losses"]) for kept in trained.values()],
            losses=[loss for kept in trained.values() for loss in kept["losses"]],
            digests=now,
            finite=all(map(are_finite, last)),
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
        # torch does not know every class of dictionaries, such as those of transformers.
        known = dict(outputs) if isinstance(outputs, dict) else outputs
        tensors = [one for one in pytree.tree_leaves(known) if hasattr(one, "numel")]
        smallest = min((one for one in tensors if one.is_floating_point()), key=lambda t: t.numel())
        trained[self]["losses"].append(float(smallest.detach().double().mean()))
        return outputs

    module.TrainingExecutor.__call__ = call


def watch_optimizers(module):
    """Reads what the optimizers of a plain loop update, before the first step and at the end."""
    steps, before = {}, {}  # by optimizer, in the order of their first steps

    def values(optimizer):
        held = [one for group in optimizer.param_groups for one in group["params"]]
        return {f"{i:05}": one.detach().float().cpu().numpy() for i, one in enumerate(held)}

    def report():
        if EXECUTORS:  # whose optimizers these are
            return
        last = [values(optimizer) for optimizer in steps]
        now = [digest(one) for one in last]
        answer(
            rank=int(os.environ.get("OMPI_COMM_WORLD_RANK", "0")),
            updates=[*steps.values()],
            losses=[],
            digests=now,
            finite=all(map(are_finite, last)),
            moved=all(before[one] != end for one, end in zip(steps, now, strict=True)),
        )

    def count(optimizer, *_):
        if not steps:
            atexit.register(report)
        if optimizer not in steps:
            before[optimizer] = digest(values(optimizer))
        steps[optimizer] = steps.get(optimizer, 0) + 1

    module.register_optimizer_step_pre_hook(count)


def limit_workers(module):
    """Limits the processes of a loader, for a machine with few processors."""
    original = module.DataLoader.__init__

    @functools.wraps(original)
    def made(self, *args, **kwargs):
        if "num_workers" in kwargs:
            kwargs["num_workers"] = min(kwargs["num_workers"], most)
        original(self, *args, **kwargs)

    most = int(os.environ.get("OBSERVED_WORKERS", "0"))
    if most:
        module.DataLoader.__init__ = made


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


EXECUTORS = {}
"""The training models of PopTorch programs, in the order of their first calls."""

WATCHED = {
    "torch": seed_torch,
    "popdist_torch.executor.training": watch_torch,
    "torch.optim.optimizer": watch_optimizers,
    "torch.utils.data.dataloader": limit_workers,
    "torchvision.datasets.cifar": watch_cifar,
    "torchvision.datasets.mnist": watch_mnist,
    "torchvision.extension": watch_torchvision,
    "popdist_onnx.session.training": watch_onnx,
    "keras.src.engine.data_adapter": shorten_keras,
    "tensorflow.python.client.session": watch_sessions,
    "tensorflow.python.data.ops.dataset_ops": shorten_data,
    "tensorflow.python.training.basic_session_run_hooks": shorten_sessions,
    "tensorflow.python.framework.random_seed": seed_tensorflow,
    "tensorflow.python.ops.resource_variable_ops": watch_variables,
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
    TRAINED = Trained()
    for name, load in {
        "mnist": load_data,
        "fashion_mnist": load_data,
        "cifar10": load_colours,
        "imdb": load_words,
    }.items():
        own = sys.modules[f"keras.src.datasets.{name}"] = types.ModuleType(name)
        own.load_data, own.get_word_index = load, dict
    if "OBSERVED_SEED" in os.environ:
        import numpy as np

        np.random.seed(int(os.environ["OBSERVED_SEED"]))
        random.seed(int(os.environ["OBSERVED_SEED"]))  # of which Keras 2 makes its seeds
