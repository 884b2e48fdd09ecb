"""What the porting command says of programs that run."""

from popdist.sdk.cli import main
from tests.distributed.jobs import ROOT
from tests.programs.launching import GUIDES, LARGER


def test_programs_that_run_use_nothing_that_is_refused(capsys):
    assert main(["check", str(GUIDES), str(LARGER), str(ROOT / "examples")]) == 0
    said = capsys.readouterr().out
    for name in ("popart.Builder", "poptorch.trainingModel", "tensorflow.ConfigProto"):
        assert f" {name}: works" in said
