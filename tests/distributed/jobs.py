"""Runs a function on every instance of a real job and returns what each of them answered.

Distributed tests go through `run_job`, which is `popdist.run` with a time limit: a real poprun over
a real mpirun, which shows the Python stacks of all ranks at the limit. Nothing is left running
afterwards: a second limit from outside ends what poprun has not ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np

from popdist.errors import PopdistError
from popdist.runner.caller import call
from popdist.runner.process import Streams
from tests.distributed.warm import framework_of, python

ROOT = Path(__file__).resolve().parents[2]
EXHAUSTIVE = bool(os.environ.get("POPDIST_EXHAUSTIVE"))
"""Whether the run is `make test-all`, with all layouts of replicas: else those that differ."""

LAUNCHER = [sys.executable, "-m", "popdist.poprun"]
_TIME_FOR_STACKS = 30
_LONGEST = 300  # below pytest's own limit, at which nothing would be shown


class JobFailedError(AssertionError):
    """The job did not end with exit code 0."""


def run_job(
    function, *, instances=2, replicas=None, options=(), env=None, timeout=120,
    framework="its own", **kwargs,
):  # fmt: skip
    """Calls ``function(**kwargs)`` on every instance of a job.

    Args:
        function: A module-level function of a test module; it returns a dict of JSON values and
            numpy arrays.
        instances: Number of instances.
        replicas: Total number of replicas; None for one an instance.
        options: More options for poprun.
        env: Variables that are added to the environment.
        timeout: Seconds after which poprun shows the stacks of all ranks, and ends the job.
        framework: What instances need not import, see `warm.python`; by default the one that the
            function's file imports.
        **kwargs: JSON values passed to the function.

    Returns:
        One dict per instance, in the order of their indices.
    """
    assert timeout <= _LONGEST, "pytest would end the test before poprun shows the stacks"
    replicas = instances if replicas is None else replicas
    said = bytearray()
    target = f"{function.__module__}:{function.__qualname__}"
    if framework == "its own":
        framework = framework_of(sys.modules[function.__module__].__file__)
    try:
        return call(
            _call_in_plain_values,
            (target, json.dumps(kwargs)),
            {},
            [
                f"--num-instances={instances}",
                f"--num-replicas={replicas}",
                f"--timeout={timeout}",
                # Functions train several models, some of which part to show what is said of it.
                "--check-weights=no",
                *map(str, options),
            ],
            environ=_environment(env),
            cwd=str(ROOT),
            streams=Streams(said.extend, said.extend),
            limit=timeout + _TIME_FOR_STACKS,
            python=python(framework),
        )
    except PopdistError as error:
        code = getattr(error, "exit_code", 2)
        output = said.decode(errors="replace")
        raise JobFailedError(f"exit code {code} from {target}\n{output}\n{error}") from None
    except TimeoutError:
        output = said.decode(errors="replace")
        raise JobFailedError(f"no end within {timeout} s: {target}\n{output}") from None


def _call_in_plain_values(target, kwargs):
    """Keeps answers to JSON and arrays, so that no test depends on what a pickle can carry."""
    module, name = target.split(":")
    answer = getattr(import_module(module), name)(**json.loads(kwargs))
    arrays = {key: value for key, value in answer.items() if isinstance(value, np.ndarray)}
    plain = {key: value for key, value in answer.items() if key not in arrays}
    return {**json.loads(json.dumps(plain)), **arrays}


def run_command(command, *, env=None, timeout=120, cwd=ROOT):
    """Runs a command in a session of its own with a time limit.

    Args:
        command: Its words.
        env: Variables that are added to the environment; None removes one.
        timeout: Seconds after which all of it is killed.
        cwd: The working directory.

    Returns:
        Its exit code and its standard output and error, together.
    """
    with subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd,
        env=_environment(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            raise JobFailedError(f"no end within {timeout} s: {command}\n{output}") from None
    return process.returncode, output


def _environment(extra):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **(extra or {})}
    return {name: value for name, value in environment.items() if value is not None}
