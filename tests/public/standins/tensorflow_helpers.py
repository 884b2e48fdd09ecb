"""A plugin of pytest: modules that TensorFlow's suites import beside those that they test.

Helpers that are published with the suites are imported unchanged from the checkout; the variable
`SUITE_PACKAGE` is the package of its folder. The formats of the device's events have the published
numbers, and no event: a host records none. Small functions on lists that the helpers take from
private names have the same place here, and so has the file format of a configuration, which is
empty. Keras has its helpers under other names since.
"""

import os
import sys
from enum import IntEnum
from importlib import import_module
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

import tensorflow as tf  # noqa: F401 - the SDK's names stand below it
from absl import flags

_IPU = "tensorflow.python.ipu"
_DRIVER = "tensorflow.compiler.plugin.poplar.driver"


class IpuTraceEvent(IntEnum):
    """The kinds of events."""

    COMPILE_BEGIN = 0
    COMPILE_END = 1
    HOST_TO_DEVICE_TRANSFER = 2
    DEVICE_TO_HOST_TRANSFER = 3
    LOAD_ENGINE = 4
    EXECUTE = 5


class ThreeState(IntEnum):
    """A switch of the compiler's options."""

    THREESTATE_OFF = 0
    THREESTATE_ON = 1
    THREESTATE_UNDEFINED = 2

    @classmethod
    def Name(cls, number):  # noqa: N802 - as protobuf calls it
        return cls(number).name

    @classmethod
    def Value(cls, name):  # noqa: N802 - as protobuf calls it
        return cls[name].value


def _listed(value):
    """A list of what may be one value, a sequence or nothing."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _flat(values):
    """The values of nested lists in their order."""
    return [
        one for value in values for one in (_flat(value) if isinstance(value, list) else [value])
    ]


def _put(name, module):
    """Makes a module importable under a name."""
    sys.modules[name] = module
    above, _, last = name.rpartition(".")
    setattr(import_module(above), last, module)


def _put_package(name, *folders, **content):
    """Makes a package of names, and of the modules in some folders."""
    module = ModuleType(name)
    module.__path__ = list(map(str, folders))
    vars(module).update(content)
    _put(name, module)


class _Published:
    """Finds helpers of the checkout by the names under which they were published."""

    def __init__(self, folder, package):
        self._paths = {f"{_IPU}.test_utils": folder.parent / "beside" / "__init__.py"}
        for path in folder.rglob("*test_util*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            self._paths[".".join((*package, *parts))] = path

    def find_spec(self, name, _path=None, _target=None):
        path = self._paths.get(name)
        return path and spec_from_file_location(name, path)


def pytest_configure():
    """Imports the helpers."""
    flags.FLAGS.mark_as_parsed()  # absl's own main would parse the command line
    import_module(f"{_IPU}.functional_ops")._convert_to_list = _listed
    import_module(f"{_IPU}.pipelining_ops")._to_flat_list = _flat
    import_module(f"{_IPU}.pipelining_ops")._ALL_DEVICES = -1
    import_module(f"{_IPU}.config").IPUConfig._create_protobuf = lambda _: None
    here = Path.cwd()
    _put_package(_DRIVER)
    _put_package(f"{_DRIVER}.trace_pb2", IpuTraceEvent=IpuTraceEvent)
    _put_package(f"{_DRIVER}.threestate_pb2", ThreeState=ThreeState, **ThreeState.__members__)
    _put_package(f"{_IPU}.tests")
    sys.meta_path.insert(0, _Published(here, os.environ.get("SUITE_PACKAGE", "").split()))
    import_module(f"{_IPU}.test_utils")
    infra = "keras.src.testing_infra"
    for old, new in {
        "testing_utils": f"{infra}.test_utils",
        "keras_parameterized": f"{infra}.test_combinations",
        "combinations": f"{infra}.test_combinations",
        "tests": "keras.src.tests",
    }.items():
        _put(f"keras.{old}", import_module(new))
