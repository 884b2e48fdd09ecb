"""Looks at programs from outside, as not one of their lines may be changed for a test.

A folder with this file on PYTHONPATH makes every Python program write what it trained, as JSON, to
``$OBSERVED/<process id>.json`` when it ends. The programs also get what a test cannot download:
Keras' MNIST is answered with scikit-learn's digits, enlarged to 28 x 28 pixels.

Environment:
    OBSERVED: Folder for the answers; without it nothing is observed.
    OBSERVED_SEED: Seeds numpy's old generator, which the programs draw from unseeded.
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

    losses = []

    def report(session):
        session.weightsToHost()
        found = {name: np.empty_like(array) for name, array in session.host_tensors.items()}
        session.readWeights(sys.modules["popdist_onnx"].PyWeightsIO(found))
        largest = max(float(np.abs(array).max()) for array in found.values())
        answer(losses=losses, digest=digest(found), largest=largest)

    original = module.TrainingSession.run

    @functools.wraps(original)
    def run(self, stepio, *args, **kwargs):
        if not losses:
            atexit.register(report, self)
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


WATCHED = {
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
