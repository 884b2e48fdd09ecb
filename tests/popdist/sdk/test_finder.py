"""Modules of the SDK are ours, one and the same, by whichever name they are imported."""

import sys

import pytest

from popdist.sdk.finder import ALIASES, Finder, install, ours
from tests.popdist.sdk.pythons import NAMES, passed, python, with_names

POPART = """
import importlib, importlib.util, inspect, pickle, pkgutil, runpy, sys
assert not any(name.startswith("popdist_") for name in sys.modules)

before = importlib.util.find_spec("popart")
assert before.name == "popart" and before.origin.endswith("popdist_onnx/__init__.py")
assert "popdist_onnx" not in sys.modules, "looking is not importing"

import popart
import popdist_onnx
assert popart is popdist_onnx is sys.modules["popart"]
assert popart.__name__ == popart.__spec__.name == popart.__package__ == "popdist_onnx"
assert importlib.util.find_spec("popart") is popart.__spec__

import popart.types.data_flow as first
import popdist_onnx.types.data_flow as second
from popart.types import DataFlow
assert first is second is sys.modules["popart.types.data_flow"]
assert first.__spec__.name == second.__name__ == "popdist_onnx.types.data_flow"
assert DataFlow is second.DataFlow is popart.DataFlow
assert DataFlow.__module__.startswith("popdist_onnx.")
assert pickle.loads(pickle.dumps(DataFlow)) is DataFlow
assert pickle.loads(b"cpopart\\nDataFlow\\n.") is DataFlow, "a pickle of the SDK"

assert inspect.getsource(DataFlow) and inspect.getmodule(DataFlow).__name__ == DataFlow.__module__
assert pkgutil.resolve_name("popart.types:DataFlow") is DataFlow
for module in pkgutil.iter_modules(popart.__path__, "popart."):
    if module.name in ("popart.types", "popart.errors"):
        assert importlib.import_module(module.name).__name__.startswith("popdist_onnx.")
assert "This" not in (pkgutil.get_loader or print).__name__

errors = importlib.import_module("popart.errors")
assert importlib.reload(errors) is errors is sys.modules["popdist_onnx.errors"]
assert sys.modules["popart.errors"] is errors and errors.__spec__.name == "popdist_onnx.errors"

spec = importlib.util.find_spec("popart.prefixes")
assert spec.loader.get_source("popart.prefixes") and spec.loader.get_code("popart.prefixes")
assert not spec.loader.is_package("popart.prefixes")
assert importlib.util.find_spec("popart.nothing") is None
assert importlib.util.find_spec("popxl") is None, "probing raises nothing"

def refused(statement, kind, *texts):
    try:
        exec(statement, {})
    except kind as error:
        assert all(text in str(error) for text in texts), error
        return error
    raise AssertionError(f"{statement} went well")

error = refused("import popxl", ModuleNotFoundError, "PD450", "Builder")
assert error.name == "popxl" and isinstance(error, NotImplementedError)

import pva
report = pva.openReport
import libpvti as pvti
channel = pvti.createTraceChannel("steps")
with pvti.Tracepoint(channel, "first"):
    pvti.Tracepoint.event(channel, "now")
pvti.Graph("loss", "").addSeries("training").add(0.5)
pvti.HeatmapDouble("weights", [0.0, 1.0], "2^x").add([0.5])
assert pvti.instrument(pva, ["__name__"], channel) is pva
assert pvti.instrument_fn(channel)(refused) is refused
refused("import libpvti; libpvti.Tracepoints", AttributeError, "PD451", "did you mean 'Tracepoint'")
refused("import pva; pva.openReport('profile.pop')", NotImplementedError, "PD450", "pva.openReport")
refused("import popart.ir", ModuleNotFoundError, "PD450", "Builder")
refused("import popart.bilder", ImportError, "PD451", "did you mean 'Builder'")
refused("from popart import Bilder", ImportError, "PD451", "did you mean 'Builder'")
refused("import popart; popart.Bilder", AttributeError, "PD451", "did you mean 'Builder'")
refused("import nonsense_of_nobody", ModuleNotFoundError, "No module named")
assert not hasattr(popart, "Bilder") and getattr(popart, "Bilder", 3) == 3
print("done")
"""

TORCH = """
import sys
import popdist.poptorch
import poptorch, popdist_torch
from poptorch.optim import AdamW
import poptorch.optim, popdist_torch.optim
import horovod.popart as hvd, popdist_onnx.horovod
import torch

assert poptorch is popdist_torch and poptorch.optim is popdist_torch.optim
assert AdamW is popdist_torch.optim.AdamW
assert hvd is popdist_onnx.horovod
assert issubclass(popdist.poptorch.Options, poptorch.Options)
assert poptorch.Options is popdist_torch.Options
try:
    import poptorch.poptorch_core
except ImportError as error:
    assert "PD45" in str(error), error
print("done")
"""

TENSORFLOW = """
from tensorflow.python import ipu
import sys
import tensorflow as tf
import tensorflow.python.ipu.utils
import tensorflow.python.ipu.utils as utils
from tensorflow.python.ipu import horovod as hvd
from tensorflow.python.ipu.config import IPUConfig
from tensorflow.python.ipu.horovod import ipu_horovod_strategy
from tensorflow.python.ops import math_ops
import popdist_tf.ipu, popdist_tf.ipu.config, popdist_tf.ipu.horovod.ipu_horovod_strategy as own

assert ipu is popdist_tf.ipu is sys.modules["tensorflow.python.ipu"]
assert utils is popdist_tf.ipu.utils is ipu.utils
assert hvd is popdist_tf.ipu.horovod and ipu_horovod_strategy is own
assert IPUConfig is popdist_tf.ipu.config.IPUConfig
assert math_ops.__name__ == "tensorflow.python.ops.math_ops", "TensorFlow's own stays its own"
assert ipu.__spec__.name == "popdist_tf.ipu"
try:
    from tensorflow.python.ipu import ipu_stratgy
except ImportError as error:
    assert "did you mean 'ipu_strategy'" in str(error), error
else:
    raise AssertionError
print("done")
"""


@pytest.mark.parametrize("program", [POPART, TORCH, TENSORFLOW], ids=["onnx", "torch", "tf"])
def test_modules_are_the_same_by_both_names(program, tmp_path):
    (tmp_path / "program.py").write_text(program)
    ended = python(*NAMES, "program.py", cwd=tmp_path)
    assert passed(ended) == "done\n"


def test_a_plain_folder_hides_no_module(tmp_path):
    (tmp_path / "popart").mkdir()
    (tmp_path / "popart" / "notes.txt").write_text("applications/popart is such a folder")
    code = "import popart; print(popart.Builder.__module__)"
    assert passed(python(*NAMES, "-c", code, cwd=tmp_path)).startswith("popdist_onnx.")


def test_real_modules_win(tmp_path):
    """Whatever finder has them: the path's, or one that was installed after ours."""
    (tmp_path / "poptorch").mkdir()
    (tmp_path / "poptorch" / "__init__.py").write_text("real = True")
    (tmp_path / "poptorch" / "optim.py").write_text("real = True")
    code = """if True:
        import sys, types
        from importlib.machinery import ModuleSpec
        import poptorch, poptorch.optim
        assert poptorch.real and poptorch.optim.real
        class Late:
            def find_spec(self, name, path=None, target=None):
                return ModuleSpec(name, self) if name == "popart" else None
            def create_module(self, spec):
                return types.ModuleType(spec.name)
            def exec_module(self, module):
                module.real = True
        sys.meta_path.append(Late())
        import popart
        assert popart.real
        assert not any(name.startswith("popdist_") for name in sys.modules)
    """
    env = with_names(PYTHONPATH=f"{tmp_path}:{sys.path[0]}")
    passed(python("-c", code, env=env))


def test_modules_that_keras_had_are_found_where_they_are_now():
    assert ours("keras.engine.base_layer") == "keras.src.engine.base_layer"
    assert (
        ours("keras.optimizer_v2.gradient_descent")
        == "keras.src.optimizers.legacy.gradient_descent"
    )
    assert ours("keras.ipu") == "popdist_tf.ipu.keras"
    assert ours("keras.src.engine") is None


def test_a_name_of_the_sdk_stands_for_one_of_ours():
    assert ours("poptorch.optim") == "popdist_torch.optim"
    assert ours("tensorflow.python.ipu") == "popdist_tf.ipu"
    for other in ("poptorchx", "popart_tools", "horovod", "horovod.torch", "tensorflow.python"):
        assert ours(other) is None


def test_one_finder_is_enough(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    last = sys.meta_path[-1]
    install()
    install()
    assert sum(isinstance(finder, Finder) for finder in sys.meta_path) == 1
    assert sys.meta_path[-1] is last


def test_other_modules_are_none_of_its_business():
    finder = Finder()
    for name in ("numpy", "horovod", "horovod.torch", "tensorflow", "tensorflow.python.keras"):
        assert finder.find_spec(name) is None
    assert all(finder.find_spec(name) is not None for name in ALIASES)
