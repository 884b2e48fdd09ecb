"""Losses of programs that own them: ``poprun --compare-alone`` finds each that is another in a job.

Each program trains losses of a table, one model each. The program alone is the reference.
"""

import json
from pathlib import Path

import pytest

from tests.distributed.jobs import LAUNCHER, run_command
from tests.distributed.warm import framework_of, python
from tests.properties import keras_losses, torch_losses
from tests.properties.torch_losses import EQUAL, FEW, NAMED, OWN, SOME, SUMMED

PROGRAMS = Path(__file__).parent / "programs"
_FEW_OF_KERAS = {name: keras_losses.LOSSES[name] for name in FEW}
_SOME_OF_TORCH = {name: torch_losses.LOSSES[name] for name in SOME}
TABLES = {
    "plain_loop": torch_losses.LOSSES,
    "lightning_module": _SOME_OF_TORCH,
    "popart_session": _SOME_OF_TORCH,
    "strategy_run": keras_losses.LOSSES,
    "estimator": _FEW_OF_KERAS,
    "session": _FEW_OF_KERAS,
}
ROUNDING = 1e-12
"""Largest distance of float64 weights that are equal but for the order of additions."""

OF_SINGLE = 1e-5
"""The same for float32."""

ROWS = [(program, name) for program, table in TABLES.items() for name in table]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """What a comparison finds of each model of a program."""
    found = {}

    def compare(program):
        if program not in found:
            found[program] = ()  # a job that fails is not run once more for each row
            file = tmp_path_factory.mktemp(program) / "result.json"
            module = f"tests.properties.programs.{program}"
            words = [*python(framework_of(PROGRAMS / f"{program}.py")), "-m", module]
            options = ["-np", "2", "--compare-alone=2", f"--json={file}"]
            code, output = run_command([*LAUNCHER, *options, *words], timeout=290)
            assert code in (1, 2), output  # 2 where a loss draws its own samples
            updates = json.loads(file.read_text())["updates"]
            models = {one["model"]: [] for one in updates}
            for one in updates:
                models[one["model"]] += [one] if one["number"] == 1 else []
            found[program] = sorted(models.values(), key=lambda of: int(of[0]["model"].split()[1]))
        return found[program]

    return compare


@pytest.mark.parametrize(("program", "name"), ROWS)
def test_loss(compared, program, name):
    table = TABLES[program]
    found = compared(program)
    assert len(found) == len(table)
    (seen,) = found[[*table].index(name)]
    assert not seen["diverged"]
    is_summed = program == "strategy_run" and name in SUMMED
    verdict = EQUAL if is_summed else table[name][0]
    if verdict is EQUAL:
        limit = OF_SINGLE if program == "popart_session" else ROUNDING
        assert seen["distance"] < limit
        assert seen["result"] == "equal"
    elif verdict is NAMED:
        assert seen["result"].startswith("different: ")
    else:
        assert verdict is OWN
