"""``popdist-sdk check``: what it finds in sources, and that its table of edits says what is so."""

import json

import pytest

from popdist.sdk.check.idioms import IDIOMS, idiom_of
from popdist.sdk.check.resolve import Source, SourceError, find, parse
from popdist.sdk.check.verdicts import examine, examine_program
from popdist.sdk.cli import main
from popdist_torch import Options
from popdist_torch.options.option_methods import declared
from popdist_torch.options.options import GROUPS
from popdist_torch.options.storage import OptionsDict
from tests.popdist.sdk.walk import option_keys

EAGER = "import tensorflow as tf\ntf.function\n"
"""The start of a program that is not TensorFlow 1's."""


def found(tmp_path, text):
    """(line, name, status) of everything found in a program."""
    file = tmp_path / "program.py"
    file.write_text(text)
    return [(one.line, one.verdict.name, one.verdict.status) for one in examine(parse(str(file)))]


def names(tmp_path, text, status=None):
    return [name for _, name, own in found(tmp_path, text) if status in (None, own)]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import popart as p\np.SGD({})", "popart.SGD"),
        ("from poptorch import Options as O\nO()", "poptorch.Options"),
        ("import poptorch as a\nb = a\nc = b.Options\nc()", "poptorch.Options"),
        ("import horovod.popart as hvd\nhvd.rank()", "horovod.popart.rank"),
        ("import horovod.popart\nhorovod.popart.rank()", "horovod.popart.rank"),
        (
            "from tensorflow.python import ipu\nipu.config.IPUConfig()",
            "tensorflow.python.ipu.config.IPUConfig",
        ),
        ("from tensorflow.python.ipu import utils as u\n[u]", "tensorflow.python.ipu.utils"),
        ("import popdist.poptorch\npopdist.poptorch.Options()", "popdist.poptorch.Options"),
        ("import popdist\npopdist.getInstanceIndex()", "popdist.getInstanceIndex"),
        ("from poptorch import *\nx = DataLoader(1)", "poptorch.DataLoader"),
        (
            "import poptorch\no = poptorch.Options()\no.replication_factor",
            "poptorch.Options.replication_factor",
        ),
        (
            "import poptorch\no = poptorch.Options()\no.Training.gradient_accumulation",
            "poptorch.Options.Training.gradient_accumulation",
        ),
        ("if x:\n  import popart\nelse:\n  popart = None\npopart.SGD", "popart.SGD"),
        ("def f():\n  return popart.SGD\nimport popart", "popart.SGD"),
        ("import importlib\np = importlib.import_module('popart')\np.SGD", "popart.SGD"),
        ("import popart\nclass A(popart.PyStepIO): pass", "popart.PyStepIO"),
        ("import popart\n@popart.SGD\ndef f(): pass", "popart.SGD"),
        ("import popart\nf = lambda: popart.SGD", "popart.SGD"),
    ],
)
def test_names_are_followed_through_imports_and_assignments(tmp_path, text, name):
    assert (name, "works") in [(found_, own) for _, found_, own in found(tmp_path, text)]


@pytest.mark.parametrize(
    "text",
    [
        "opts = poptorch.Options()\nopts.deviceIterations(2)",
        "poptorch.Options().replicationFactor(1).deviceIterations(2)",
        "opts = poptorch.Options().replicationFactor(1)\nopts.deviceIterations(2)",
        "opts: poptorch.Options = poptorch.Options()\nopts.deviceIterations(2)",
        "def f(opts: poptorch.Options):\n  opts.deviceIterations(2)",
        "class A:\n def f(s):\n  s.o = poptorch.Options()\n def g(s):\n  s.o.deviceIterations(2)",
        "a, opts = 1, poptorch.Options()\nopts.deviceIterations(2)",
        "if (opts := poptorch.Options()):\n  opts.deviceIterations(2)",
        "with poptorch.Options() as opts:\n  opts.deviceIterations(2)",
        "import popdist.poptorch as pp\nopts = pp.Options()\nopts.deviceIterations(2)",
    ],
)
def test_objects_are_followed_from_their_constructors(tmp_path, text):
    used = names(tmp_path, f"import poptorch\n{text}", "works")
    assert any(name.endswith("poptorch.Options.deviceIterations") for name in used)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("poptorch.Optins()", "poptorch.Optins"),
        ("poptorch.Options().deviceIteration(2)", "poptorch.Options.deviceIteration"),
        ("from poptorch import Optins", "poptorch.Optins"),
        ("import poptorch.optimizers", "poptorch.optimizers"),
    ],
)
def test_a_misspelt_name_gets_the_nearest(tmp_path, text, name):
    (tmp_path / "program.py").write_text(f"import poptorch\n{text}")
    (verdict,) = [
        one.verdict
        for one in examine(parse(str(tmp_path / "program.py")))
        if one.verdict.status == "unknown"
    ]
    assert verdict.name == name
    assert verdict.instead.startswith("did you mean 'opti" if "opti" in text[16:] else "did you")


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_what_options_have_once_their_methods_were_called_is_known(tmp_path, group):
    options = Options()
    part = getattr(options, group) if group else options
    keys = option_keys(type(part)) | set(part.values())
    keys -= {"torch_compile"}  # of popdist's own torchCompile, which the SDK has not
    methods = {name for name in dir(OptionsDict) if name[0] != "_"} - {"path", "put", "values"}
    methods |= {path.rpartition(".")[2] for path, *_ in declared(type(part))}  # torchCompile too
    lines = [".".join(filter(None, ("opts", group, name))) for name in keys | methods]
    program = "import poptorch\nopts = poptorch.Options()\n" + "\n".join(sorted(lines))
    assert not names(tmp_path, program, "unknown")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("poptorch.Options()._popart.set('enableExplicitIR', True)", "Options._popart.set"),
        ("opts = poptorch.Options()\nopts._execution_strategy", "Options._execution_strategy"),
        ("poptorch.DataLoader(opts)._combined_batch_size", "DataLoader._combined_batch_size"),
        ("from poptorch._impl import unwrapModelIfNecessary", "_impl.unwrapModelIfNecessary"),
        ("poptorch._poplar_executor.PoplarExecutor", "_poplar_executor.PoplarExecutor"),
    ],
)
def test_private_names_that_public_programs_use_are_known(tmp_path, text, name):
    judged = {used: own for _, used, own in found(tmp_path, f"import poptorch\n{text}")}
    assert set(judged.values()) <= {"works", "accepted without effect"}
    assert any(name.startswith(used.removeprefix("poptorch.")) for used in judged if "_" in used)
    assert names(tmp_path, "from poptorch._impl import nonsense", "unknown")


@pytest.mark.parametrize(
    "text",
    [
        "opts = load()\nopts.nonsense",
        "poptorch = load()\npoptorch.nonsense",
        "import poptorch\nfor poptorch in []:\n  poptorch.nonsense",
        "import poptorch\ndef f(poptorch):\n  poptorch.nonsense",
        "from . import poptorch\npoptorch.nonsense",
        "import poptorch\nopts = poptorch.Options()\nopts = 3\nopts.nonsense",
        "import poptorch\nloader = poptorch.DataLoader(1)\nloader.batch_sampler",
        "import poptorch\npoptorch.__name__",
        "import tensorflow.compat.v1 as tf\ntf.Session()",
        "import numpy as np\nnp.bool_, np.float32",
    ],
)
def test_what_is_not_the_sdks_is_left_alone(tmp_path, text):
    assert not [own for _, _, own in found(tmp_path, text) if own != "works"]


@pytest.mark.parametrize(
    "caught", ["ImportError", "(KeyError, ModuleNotFoundError)", "Exception", ""]
)
def test_an_import_that_may_fail_keeps_nothing_from_running(tmp_path, caught):
    text = f"try:\n  import popxl\nexcept {caught}:\n  popxl = None"
    assert found(tmp_path, text) == [(2, "popxl", "look")]
    assert found(tmp_path, "try:\n  import popxl\nexcept KeyError:\n  pass")[0][2] == "refused"


def test_methods_that_the_launcher_forbids_are_refused(tmp_path):
    text = "import popdist.poptorch\no = popdist.poptorch.Options()\no.Distributed.disable()"
    assert names(tmp_path, text, "refused") == ["popdist.poptorch.Options.Distributed.disable"]
    assert not names(tmp_path, text.replace("popdist.", ""), "refused")


@pytest.mark.parametrize(
    ("text", "name", "status", "edit"),
    [
        (EAGER + "tf.Session()", "tensorflow.Session", "edit", "tf.compat.v1."),
        (
            EAGER + "from tensorflow import layers",
            "tensorflow.layers",
            "edit",
            "tf.compat.v1.layers",
        ),
        (EAGER + "tf.layers.dense(x)", "tensorflow.layers.dense", "edit", "v1.layers.dense"),
        ("import numpy as np\nnp.bool", "numpy.bool", "works", ""),
        ("import torch._six\ntorch._six.inf", "torch._six.inf", "works", ""),
        ("import torch\ntorch.load(f)", "torch.load", "look", "weights_only=False"),
        ("from collections import Mapping", "collections.Mapping", "works", ""),
        ("import popxl.ops", "popxl.ops", "refused", "popart.Builder"),
        ("d = f()\nd.make_one_shot_iterator()", ".make_one_shot_iterator", "look", "tf.compat"),
        (
            "import tensorflow as tf\ntf.keras.optimizers.SGD(decay=1)",
            "tensorflow.keras.optimizers.SGD(decay=...)",
            "edit",
            "InverseTimeDecay",
        ),
    ],
)
def test_idioms_of_old_libraries_get_their_edit(tmp_path, text, name, status, edit):
    (tmp_path / "program.py").write_text(text)
    verdicts = [one.verdict for one in examine(parse(str(tmp_path / "program.py")))]
    (verdict,) = [one for one in verdicts if one.name == name]
    assert verdict.status == status
    assert edit in verdict.instead


def test_names_of_tensorflow_1_are_found_beside_the_ipus(tmp_path):
    text = EAGER + "tf.ConfigProto, tf.app.run, tf.train.Saver, tf.nn.rnn_cell"
    elsewhere = "\ntf.summary.FileWriter, tf.contrib"
    assert len(names(tmp_path, text + elsewhere, "edit")) == 6
    text += elsewhere + "\nfrom tensorflow.python import ipu"
    left = ["tensorflow.contrib", "tensorflow.summary.FileWriter"]
    assert names(tmp_path, text, "edit") == left
    assert names(tmp_path, text + "\ntf.Session()", "look") == ["tensorflow.Session"]


def test_an_idiom_that_is_about_an_argument_needs_it():
    assert idiom_of("torch.load", None) is None
    assert idiom_of("torch.load", frozenset({"weights_only"})) is None
    assert idiom_of("torch.load", frozenset({"**"})) is None
    assert idiom_of("torch.load", frozenset()) is not None
    assert idiom_of("tensorflow.keras.optimizers.SGD", frozenset({"momentum"})) is None


def test_the_table_says_what_is_so():
    """What it calls refused is absent from the library, and TensorFlow 1's names have moved."""
    import importlib

    def has(name):
        module, _, last = name.rpartition(".")
        try:
            here = importlib.import_module(module.split(".")[0])
            for part in [*module.split(".")[1:], last]:
                here = getattr(here, part)
        except (AttributeError, ImportError):
            return False
        return True

    certain = [one for one in IDIOMS if one.certain and not one.keyword]
    # These are there still, and say themselves what to use.
    loud = {
        "torch.eig": 1,
        "torch.lstsq": 2,
        "torch.matrix_rank": 1,
        "torch.solve": 2,
        "torch.symeig": 1,
    }
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [one.name for one in certain if one.name not in loud and has(one.name)] == []
        moved = [one for one in certain if one.edit.startswith("tf.compat.v1.")]
        assert len(moved) > 100
        assert [one.edit for one in moved if not has(f"tensorflow{one.edit[2:]}")] == []
    import torch

    for name, arguments in loud.items():
        with pytest.raises(RuntimeError, match="deprecated"):
            getattr(torch, name.partition(".")[2])(*[torch.eye(2)] * arguments)


def test_folders_and_answers(tmp_path, capsys):
    (tmp_path / "a.py").write_text("import poptorch\npoptorch.Options()\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.py").write_text("import popart\npopart.Bilder()\n")
    for skipped in ("__pycache__", ".hidden", "venv"):
        (tmp_path / skipped).mkdir()
        (tmp_path / skipped / "c.py").write_text("import popxl")
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    assert main(["check", str(tmp_path / "a.py")]) == 0
    assert f"{tmp_path}/a.py:2: poptorch.Options: works" in capsys.readouterr().out
    assert main(["check", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert f"{tmp_path}/sub/b.py:2: popart.Bilder: unknown: " in shown
    assert "did you mean 'Builder'?" in shown
    assert "popxl" not in shown
    assert main(["check", "--json", str(tmp_path), str(tmp_path / "a.py")]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["counts"] == {"works": 3, "unknown": 1}
    assert {one["file"] for one in answer["names"]} == {
        f"{tmp_path}/a.py",
        f"{tmp_path}/sub/b.py",
    }
    assert answer["names"][1] == {
        "file": f"{tmp_path}/a.py", "line": 2, "name": "poptorch.Options", "status": "works",
        "reason": "", "instead": "",
    }  # fmt: skip


def test_bad_input_is_named_and_the_rest_is_checked(tmp_path, capsys):
    (tmp_path / "bad.py").write_text("x = 1\nprint 'old'\n")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "null.py").write_bytes(b"x = 1\0")
    (tmp_path / "good.py").write_text("import poptorch\n")
    assert main(["check", str(tmp_path)]) == 2
    output = capsys.readouterr()
    assert f"{tmp_path}/bad.py:2" in output.err
    assert "2to3" in output.err
    assert str(tmp_path / "binary.py") in output.err
    assert str(tmp_path / "null.py") in output.err
    assert f"{tmp_path}/good.py:1: poptorch: works" in output.out
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "absent.py", tmp_path / "empty"):
        assert main(["check", str(path)]) == 2
        assert "PD453" in capsys.readouterr().err
    with pytest.raises(SourceError):
        find([str(tmp_path / "absent.py")])


def test_a_source_may_be_any_python():
    """Every statement and expression there is, from the standard library's own sources."""
    import ast
    import textwrap

    for module in (ast, json, textwrap, pytest):
        assert isinstance(examine(parse(module.__file__)), list)
    tree = ast.parse("match x:\n  case {'a': 1}:\n    import popart\n    popart.SGD")
    assert [one.line for one in examine(Source("x", tree))] == [3, 4]


def test_a_tool_for_profiles_may_be_imported_and_used_where_nobody_calls(tmp_path):
    text = "import pva\ndef profile():\n  pva.openReport('p')\nclass A:\n  pva.open\n"
    assert found(tmp_path, text) == [
        (1, "pva", "look"), (3, "pva.openReport", "look"), (5, "pva.open", "refused"),
    ]  # fmt: skip


def test_a_name_that_raises_without_an_option_of_the_start_is_not_fine(tmp_path):
    text = "import poptorch\nassert poptorch.ipuHardwareVersion() == 2\n"
    assert (2, "poptorch.ipuHardwareVersion", "look") in found(tmp_path, text)


def test_a_name_that_the_sdk_lacks_too_may_be_in_a_branch_that_does_not_run(tmp_path):
    text = "import poptorch\nif x:\n  poptorch.a\nelse:\n  poptorch.b\n"
    text += "if __name__ == '__main__':\n  for y in x:\n    poptorch.c\n"
    text += "def f():\n  poptorch.d\n  if x:\n    poptorch.e\n"
    assert names(tmp_path, text, "look") == ["poptorch.a", "poptorch.b", "poptorch.e"]
    assert names(tmp_path, text, "unknown") == ["poptorch.c", "poptorch.d"]


def program_of(tmp_path, **files):
    """The statuses of all names of a program, by name."""
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    return {f.verdict.name: f.verdict.status for f in examine_program(str(tmp_path / "train.py"))}


def test_a_program_is_checked_once_however_its_path_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import popart\npopart.Bilder\n")
    assert main(["check", "./train.py"]) == 1
    assert capsys.readouterr().out.count("popart.Bilder: unknown") == 1


def test_a_program_is_checked_with_the_files_that_it_imports(tmp_path, capsys):
    files = {
        "train": "import model\n",
        "model": "import popart\npopart.Bilder\n",
        "other": "x = 1\n",
    }
    assert program_of(tmp_path, **files)["popart.Bilder"] == "unknown"
    assert main(["check", str(tmp_path / "train.py")]) == 1
    assert "model.py:2: popart.Bilder" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "other.py")]) == 0


def test_a_program_of_tensorflow_1_gets_its_names(tmp_path):
    model = "import tensorflow as tf\ntf.log(tf.contrib.rnn.LSTMCell(3))\n"
    model += "data.make_one_shot_iterator()\n"
    graph = "import model\nimport tensorflow as tf\ntf.placeholder(tf.float32)\n"
    statuses = program_of(tmp_path, train=graph, model=model)
    assert set(statuses.values()) == {"works"}, statuses
    assert "tensorflow.log" in statuses
    eager = (
        "import tensorflow as tf\ntf.log(tf.contrib.rnn.LSTMCell(3))\n@tf.function\ndef f(): ...\n"
    )
    statuses = program_of(tmp_path, train=eager)
    assert statuses["tensorflow.log"] == statuses["tensorflow.contrib.rnn.LSTMCell"] == "edit"


def test_a_missing_part_of_contrib_is_unknown(tmp_path):
    text = "import tensorflow as tf\ntf.contrib.rnn.Nothing()\ntf.contrib.slim\ntf.contrib.rnn\n"
    assert program_of(tmp_path, train=text) == {
        "tensorflow.contrib.rnn.Nothing": "unknown",
        "tensorflow.contrib.slim": "unknown",
        "tensorflow.contrib.rnn": "works",
    }


def test_names_of_tensorflow_1_are_found_where_another_file_imports_the_ipus(tmp_path):
    files = {
        "train": "import config\nimport tensorflow as tf\ntf.log(2.0)\n",
        "config": "from tensorflow.python import ipu\n",
    }
    assert program_of(tmp_path, **files)["tensorflow.log"] == "works"
