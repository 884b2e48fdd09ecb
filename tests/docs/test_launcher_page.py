"""What the pages about the launcher show is accepted."""

import re
import shlex

from popdist.poprun.options.parser import parse
from popdist.poprun.plan.job import make_job
from tests.distributed.jobs import ROOT

OPTIONS, LAUNCHER = (
    (ROOT / "docs" / name).read_text() for name in ("poprun-options.md", "launcher.md")
)
ENVIRON = {"PATH": "/usr/bin:/bin", "HF_TOKEN": "x", "B": "y"}


def test_the_configuration_file_makes_a_job(tmp_path):
    [text] = re.findall(r"```toml.*?\n(.*?)```", OPTIONS, re.DOTALL)
    path = tmp_path / "job.toml"
    path.write_text(text)
    job = make_job(parse([f"--config={path}"]), ENVIRON)
    assert (job.num_instances, job.num_replicas) == (2, 8)
    assert job.variables.common == {"TF_CPP_MIN_LOG_LEVEL": "2"}
    assert job.variables.forwarded == ("HF_TOKEN",)


def test_the_commands_of_the_launch_modes_make_jobs():
    commands = re.findall(r"\| `(poprun [^`]+)` \|", LAUNCHER)
    assert len(commands) == 4
    made = [make_job(parse(shlex.split(command)[1:]), ENVIRON) for command in commands]
    assert [(job.num_instances, len(job.hosts), job.num_ilds) for job in made] == [
        (1, 0, 1), (2, 0, 1), (8, 4, 1), (8, 4, 2),
    ]  # fmt: skip
