"""Names of the SDK's time that Python, numpy and torch have removed, in a Python with the names."""

from popdist.startup.environment import FRAMEWORKS, enable
from tests.popdist.sdk.pythons import passed, python, with_names

PROGRAM = """
import sys
from collections import Mapping, MutableMapping, OrderedDict
import collections.abc, fractions, inspect, math, sysconfig, time, typing

assert Mapping is collections.abc.Mapping and isinstance(OrderedDict(), MutableMapping)
assert fractions.gcd(12, 18) == 6 and time.clock() <= time.clock()
assert sysconfig.get_config_vars()["SO"] == sysconfig.get_config_var("EXT_SUFFIX")
assert sysconfig.get_config_vars("SO", "EXT_SUFFIX")[0].endswith(".so")
assert inspect.getargspec(lambda a, b=1, *c, **d: 0) == (["a", "b"], "c", "d", (1,))

class Row(typing.NamedTuple):
    name: str
    size: int = 0

assert Row._field_types == {"name": str, "size": int} and Row("a") == ("a", 0)
assert not [name for name in sys.modules if name.partition(".")[0] == "numpy"]
import numpy as np

assert np.zeros(2, np.float).dtype == np.float64 and np.zeros(2, np.bool).dtype == bool
assert np.zeros(2, np.int).dtype == np.int64 and np.array([], np.object).dtype == object
assert np.Inf == np.inf and np.isnan(np.NaN) and np.float_ is np.float64
assert "popdist" not in sys.modules, "the launcher would take this for the instance's program"
"""

TORCH = """
import torch
from torch._six import container_abcs, inf, string_classes

assert isinstance("text", string_classes) and isinstance([], container_abcs.Sequence)
assert inf == torch.inf and torch._six.int_classes is int

rates = torch.optim.lr_scheduler
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
halved = rates.StepLR(optimizer, 1, gamma=0.5, verbose=True)
slower = rates.ReduceLROnPlateau(optimizer, patience=0, verbose=False)

class Own(rates.LRScheduler):
    def __init__(self, optimizer, *verbose, **named):
        super().__init__(optimizer, *verbose, **named)

    def get_lr(self):
        return [rate / 4 for rate in self.base_lrs]

optimizer.step()
halved.step()
assert halved.get_last_lr() == [0.5]
assert Own(optimizer, verbose=True).get_last_lr() == [0.25]
assert Own(optimizer, -1, True).get_last_lr() == [0.25]
assert rates.StepLR(optimizer, 1, 0.5, -1, False).gamma == 0.5
try:
    Own(optimizer, -1, True, "one too many")
except TypeError:
    pass
else:
    raise AssertionError
"""


def test_programs_of_that_time_find_them(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + TORCH)
    environment = with_names()
    enable(environment, FRAMEWORKS)  # as poprun, which waits for torch too
    passed(python(program, env=environment))
    (tmp_path / "torch_alone.py").write_text(TORCH)
    passed(python("-m", "popdist.sdk", tmp_path / "torch_alone.py"))


def test_a_module_that_torchvision_removed_is_found(tmp_path):
    models = tmp_path / "torchvision" / "models"
    models.mkdir(parents=True)
    for folder in (models.parent, models):
        (folder / "__init__.py").write_text("import torch")
    program = tmp_path / "program.py"
    text = "from torchvision.models.utils import load_state_dict_from_url as found\n"
    program.write_text(text + "import torch\nassert found is torch.hub.load_state_dict_from_url\n")
    passed(python("-m", "popdist.sdk", program))
    (models / "utils.py").write_text("def load_state_dict_from_url(): pass")
    assert "AssertionError" in python("-m", "popdist.sdk", program).stderr


def test_programs_without_the_names_do_not(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import collections, numpy, torch\ncollections.Mapping")
    assert "AttributeError" in python(program).stderr
