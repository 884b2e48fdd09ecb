"""Runs whole programs as their users do: by a launcher, or in terminals of their own."""

import json
import os
import re
import socket
import sys
import sysconfig
import venv
from pathlib import Path

from tests.distributed.jobs import LAUNCHER, ROOT, run_command
from tests.distributed.warm import folder_of_python, framework_of

HERE = Path(__file__).parent
GUIDES = HERE / "guides"
LARGER = HERE / "larger"
OBSERVER = HERE / "observer"
BIN = Path(sys.executable).parent

# What the guides print; "python" is what PATH has.
LAUNCHERS = {
    "horovodrun": ["horovodrun", "-np", "2", "-H", "localhost:2"],
    "horovodrun over gloo": ["horovodrun", "--gloo", "-np", "2", "-H", "localhost:2"],
    "mpirun": ["mpirun", "-np", "2", "-H", "localhost:2"],
    "poprun": LAUNCHER,
    "poprun with names": [*LAUNCHER, "--sdk-names"],
    "alone with names": ["python", "-m", "popdist.sdk"],
}
TWO_INSTANCES = ("--num-instances=2", "--num-replicas=2")


def enabled_environment(folder):
    """Makes a virtual environment with the packages of this one, and the SDK's names enabled.

    Returns:
        Its folder of programs.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    # As a .pth file of this environment's packages may be that of an editable popdist.
    paths = [path for path in sys.path if path.endswith("site-packages")]
    packages.joinpath("a-packages.pth").write_text("\n".join([*paths, str(ROOT)]) + "\n")
    python = Path(folder) / "bin" / "python"
    enable = "import sys; from popdist.sdk.cli import main; sys.exit(main(['enable']))"
    code, output = run_command([python, "-c", enable], env={"PYTHONPATH": None}, cwd=folder)
    assert code == 0, output
    return python.parent


def run(launcher, program, *arguments, environment=None, env=None, options=TWO_INSTANCES):
    """Runs a program that prints JSON objects.

    Args:
        launcher: A key of `LAUNCHERS`.
        program: Its file.
        *arguments: Its arguments.
        environment: Folder of programs of an environment with the SDK's names.
        env: More variables.
        options: Of poprun.

    Returns:
        The objects, in the order of their ranks, and all output.
    """
    words = [*LAUNCHERS[launcher], *(options if "poprun" in launcher else ())]
    words += [program] if "alone" in launcher else ["python", program]
    if environment is None and (framework := framework_of(program)):
        environment = folder_of_python(framework)
    code, output = run_command([*words, *arguments], env=variables(environment, env), timeout=280)
    assert code == 0, output
    # Launchers put marks before lines, and two ranks may share one.
    starts = [found.start() for found in re.finditer(r'{"rank": ', output)]
    answers = [json.JSONDecoder().raw_decode(output, start)[0] for start in starts]
    return sorted(answers, key=lambda answer: answer["rank"]), output


def variables(environment, env):
    """The variables with which programs start."""
    folders = [environment] if environment else []
    return {
        "PATH": os.pathsep.join(map(str, [*folders, BIN, "/usr/local/bin:/usr/bin:/bin"])),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        **(env or {}),
    }


def observing(folder, **env):
    """The variables that make programs leave their answers in a folder (see `observer`)."""
    return {"PYTHONPATH": f"{OBSERVER}:{ROOT}", "OBSERVED": str(folder), **env}


def observed(folder):
    """What the processes of a job left there."""
    return [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]


def free_ports(count):
    """Ports that nobody listens at."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
