"""Runs a function on every instance of a real job and returns what each of them answered.

Every distributed test goes through `run_job`: a real poprun over a real mpirun, a hard time limit,
and nothing left running afterwards. Answers travel as JSON and ``.npz`` files, never as pickles.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = [sys.executable, "-m", "popdist.poprun"]


class JobFailedError(AssertionError):
    """The job did not end with exit code 0."""


def run_job(function, *, instances=2, replicas=None, options=(), env=None, timeout=120, **kwargs):
    """Calls ``function(**kwargs)`` on every instance of a job.

    Args:
        function: A module-level function of a test module; it returns a dict of JSON values and
            numpy arrays.
        instances: Number of instances.
        replicas: Total number of replicas; None for one an instance.
        options: More options for poprun.
        env: Variables that are added to the environment.
        timeout: Seconds after which the whole job is killed.
        **kwargs: JSON values passed to the function.

    Returns:
        One dict per instance, in the order of their indices.
    """
    replicas = instances if replicas is None else replicas
    with tempfile.TemporaryDirectory() as folder:
        target = f"{function.__module__}:{function.__qualname__}"
        command = [
            *LAUNCHER,
            f"--num-instances={instances}",
            f"--num-replicas={replicas}",
            *options,
            *[sys.executable, __file__, target, json.dumps(kwargs), folder],
        ]
        code, output = run_command(command, env=env, timeout=timeout)
        if code != 0:
            raise JobFailedError(f"exit code {code} from {target}\n{output}")
        return [_load(Path(folder) / str(index)) for index in range(instances)]


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
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **(env or {})}
    environment = {name: value for name, value in environment.items() if value is not None}
    with subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
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


def _load(stem):
    answer = json.loads(stem.with_suffix(".json").read_text())
    with np.load(stem.with_suffix(".npz"), allow_pickle=False) as arrays:
        return {**answer, **{name: arrays[name] for name in arrays.files}}


def _run_instance(target, kwargs, folder):
    sys.path[0] = str(ROOT)
    module, name = target.split(":")
    answer = getattr(import_module(module), name)(**json.loads(kwargs))
    arrays = {key: value for key, value in answer.items() if isinstance(value, np.ndarray)}
    plain = {key: value for key, value in answer.items() if key not in arrays}
    stem = Path(folder) / os.environ["POPDIST_INSTANCE_INDEX"]
    np.savez(stem.with_suffix(".npz"), **arrays)
    stem.with_suffix(".json").write_text(json.dumps(plain))


if __name__ == "__main__":
    _run_instance(*sys.argv[1:])
