"""The published modules, made from one table: found, listed, loaded late, described to types."""

import ast
import importlib
import pickle
import pkgutil
import pydoc
import subprocess
import sys
from importlib.util import find_spec

import pytest
import tensorflow as tf

from popdist_tf import ipu
from popdist_tf.errors import EstimatorGoneError
from popdist_tf.ipu import tree

ESTIMATORS = ("ipu_estimator", "ipu_pipeline_estimator", "ipu_run_config")
LATE = """
import sys
from popdist_tf.ipu.ops import cross_replica_ops
import popdist_tf.ipu.horovod.popdist_strategy as late
assert late is sys.modules["popdist_tf.ipu.horovod.popdist_strategy"]
assert "PopDistStrategy" in dir(late)
assert "tensorflow" not in sys.modules
late.PopDistStrategy
assert "tensorflow" in sys.modules
"""


def test_all_modules_are_listed_below_the_root():
    found = {one.name: one.ispkg for one in pkgutil.walk_packages(ipu.__path__, "popdist_tf.ipu.")}
    assert found.pop("popdist_tf.ipu.tree") is False
    assert found == {f"popdist_tf.ipu.{path}": bool(tree.below(path)) for path in tree.MODULES}
    assert found["popdist_tf.ipu.ops"]


def test_nothing_is_loaded_before_it_is_used():
    subprocess.run([sys.executable, "-c", LATE], check=True, timeout=120)


def test_a_name_is_the_same_object_wherever_it_is_published():
    old = importlib.import_module("popdist_tf.ipu.horovod.popdist_strategy")
    new = importlib.import_module("popdist_tf.ipu.distributed.popdist_strategy")
    short = importlib.import_module("popdist_tf.ipu.distributed")
    assert old.PopDistStrategy is new.PopDistStrategyV1 is short.PopDistStrategy
    held = pickle.dumps(old.PopDistStrategy)
    assert pickle.loads(held) is old.PopDistStrategy  # noqa: S301 - our own
    assert ipu.distributed is short


def test_a_module_is_loaded_again_in_place():
    config = importlib.import_module("popdist_tf.ipu.config")
    held = config.IPUConfig
    assert importlib.reload(config) is config
    assert config.IPUConfig is held


def test_help_shows_what_a_module_holds():
    text = pydoc.plain(pydoc.render_doc("popdist_tf.ipu.config"))
    assert "The configuration of the system." in text
    assert "class IPUConfig" in text
    assert "popdist_strategy" in pydoc.plain(pydoc.render_doc("popdist_tf.ipu.distributed"))


def test_a_star_brings_what_is_published():
    names = {}
    exec("from popdist_tf.ipu.scopes import *", names)  # noqa: S102 - a star stands in modules only
    assert set(tree.MODULES["scopes"].homes) <= set(names)


def test_other_modules_are_not_found():
    assert find_spec("popdist_tf.ipu.stratgy") is None
    assert find_spec("popdist_tf.ipu.ops.config") is None
    for entry in ("<published below numpy>", "/some/folder", ""):
        with pytest.raises(ImportError):
            tree.Modules(entry)


def test_stubs_name_what_is_there():
    tf_has_no_estimators = not hasattr(tf.compat.v1, "estimator")
    stubs = tree.stubs()
    assert set(stubs) == {"popdist_tf.ipu", *(f"popdist_tf.ipu.{path}" for path in tree.MODULES)}
    for module, text in stubs.items():
        for node in ast.parse(text).body:
            for alias in getattr(node, "names", ()):
                if tf_has_no_estimators and alias.asname in ESTIMATORS:
                    with pytest.raises(EstimatorGoneError, match="PD420"):
                        importlib.import_module(f"{module}.{alias.asname}")
                elif not (tf_has_no_estimators and module.endswith(ESTIMATORS)):
                    home = importlib.import_module(node.module)
                    held = getattr(importlib.import_module(module), alias.asname)
                    assert held is getattr(home, alias.name)


def test_type_checkers_read_the_stub_through_the_loader():
    loader = find_spec("popdist_tf.ipu.loops").loader
    source = loader.get_source("popdist_tf.ipu.loops")
    assert "import repeat as repeat" in source
    exec(loader.get_code("popdist_tf.ipu.loops"), {})  # noqa: S102 - it can be run
