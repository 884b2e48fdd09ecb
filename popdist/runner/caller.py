"""`popdist.run`: calls a function on every instance of a job, from any Python process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import overload

from popdist.errors import LaunchError, PopdistError, UsageError
from popdist.poprun.options.parser import parse
from popdist.poprun.options.table import BY_NAME, OPTIONS
from popdist.poprun.options.types import FLAG
from popdist.poprun.plan.job import make_job
from popdist.poprun.supervisor.job_folder import new_folder
from popdist.runner.messages import CONTACT, Server
from popdist.runner.pickles import load, pack
from popdist.runner.process import Streams, run_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeVar

    from typing_extensions import TypeVarTuple, Unpack

    from popdist.poprun.options.types import Option
    from popdist.poprun.plan.job import Job
    from popdist.runner.pickles import Parts

    T = TypeVar("T")
    Ts = TypeVarTuple("Ts")

_LAUNCHER = "import sys; sys.path.insert(0, sys.argv.pop(1)); from popdist.runner.launcher import main; main(sys.argv[1:])"  # noqa: E501 - one program
_INSTANCE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from popdist.runner.instance import main; main()"  # noqa: E501
_ROOT = str(Path(__file__).resolve().parents[2])

_ABOUT_THE_COMMAND = {
    "help",
    "version",
    "version-format",
    "compare-alone",
    "completion",
    "export-config",
    "overwrite-config",
    "emit",
    "emit-image",
    "emit-name",
    "nnodes",
    "node-rank",
    "master-addr",
    "master-port",
}
"""Options that only print a text, and those of a command that is started on several machines."""

_SHORT = {"n", "np", "nproc", "num_proc", "num_processes", "nproc_per_node", "world_size"}
"""Keywords of other packages for the number of instances."""


class JobError(PopdistError, RuntimeError):
    """A job that `popdist.run` started failed, or ended without the results of all instances.

    If the function raised an exception in an instance, and the exception can be pickled, it is the
    error's ``__cause__``.

    Attributes:
        exit_code: poprun's exit code: that of an instance, 128 + the number of a signal, or 124
            after ``timeout``.
        instance: The index of the instance that failed first; None if no single instance failed.
        traceback: The traceback of the exception in that instance, as text; empty if there was no
            exception.
    """

    def __init__(
        self,
        code: str,
        what: str,
        *,
        hint: str | None = None,
        exit_code: int,
        instance: int | None = None,
        traceback: str = "",
    ) -> None:
        self.exit_code = exit_code
        self.instance = instance
        self.traceback = traceback
        super().__init__(code, what, hint=hint)

    def _text(self) -> str:
        return "\n".join([super()._text(), *([self.traceback.rstrip()] if self.traceback else [])])


@overload
def run(
    function: Callable[[], T], *, args: tuple[()] = (), kwargs: None = None, **options: Any
) -> list[T]: ...


@overload
def run(
    function: Callable[[Unpack[Ts]], T],
    *,
    args: tuple[Unpack[Ts]],
    kwargs: None = None,
    **options: Any,
) -> list[T]: ...


@overload
def run(
    function: Callable[..., T], *, args: list[Any], kwargs: None = None, **options: Any
) -> list[T]: ...


@overload
def run(
    function: Callable[..., T],
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any],
    **options: Any,
) -> list[T]: ...


def run(
    function: Callable[..., T],
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_instances: int | None = None,
    num_replicas: int | None = None,
    **options: Any,
) -> list[T]:
    """Calls a function on every instance of a new job, and waits for the job's end.

    poprun starts the job, as from a command line. The output of the instances appears in this
    process's `sys.stdout` and `sys.stderr`. The function may come from a module, a script, another
    function (a closure) or a notebook; the call needs no ``if __name__ == "__main__"``. Arguments
    and results are pickled. Several threads may call `run` at the same time.

    A KeyboardInterrupt (Ctrl-C, or the kernel interrupt of a notebook) ends the job as Ctrl-C ends
    poprun; a second one ends it at once. No process of the job remains when `run` returns or
    raises, or when this process ends or is killed.

    Args:
        function: The function that every instance calls.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        num_instances: The number of instances (processes); None for one, or one on each host.
        num_replicas: The number of replicas over all instances; None for one in each instance.
        **options: Every other option of poprun's command line, with underscores in its name:
            ``host="a,b"``, ``timeout=600`` (seconds), ``print_topology=True``, ``max_restarts=2``.
            A switch takes a bool, an option that may be given several times takes a list, and
            ``env`` also takes a mapping. Options that only print a text (``help``, ``emit``) have
            no keyword.

    Returns:
        The results of the function, in the order of the instances; an empty list for
        ``dry_run=True``.

    Raises:
        UsageError: An option is unknown or malformed, options contradict each other, or there is
            nothing to call.
        ArgumentError: The function or its arguments cannot be pickled.
        LaunchError: The job cannot be started here.
        JobError: The function raised an exception in an instance (PD113), or the job ended without
            the results of all instances (PD114).
    """
    if not callable(function):
        raise UsageError(
            "PD111",
            "popdist.run calls a function, and this is not one",
            value=function,
            accepted="a function, a method or another callable",
            hint="poprun starts a program: poprun -np 2 python3 train.py",
        )
    if isinstance(args, str | bytes) or not isinstance(args, Iterable):
        raise _unaccepted("args", args, "a tuple or a list", f"args=({args!r},)")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise _unaccepted("kwargs", kwargs, "a mapping of names and values", 'kwargs={"name": 1}')
    sizes = {"num_instances": num_instances, "num_replicas": num_replicas}
    chosen = {name: value for name, value in sizes.items() if value is not None}
    words = to_words({**chosen, **options})
    return call(function, tuple(args), dict(kwargs or {}), words)


def call(
    function: Callable[..., T],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    words: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    cwd: str | None = None,
    streams: Streams | None = None,
    limit: float | None = None,
    python: Sequence[str] = (sys.executable,),
) -> list[T]:
    """Does the work of `run`, with options as command line words.

    ``limit`` is the number of seconds after which the job is ended in any case; None in
    ``environ``, ``cwd`` or ``streams`` means this process's own. ``python`` starts an instance's
    interpreter.

    Raises:
        TimeoutError: The job did not end within the limit.
    """
    import json

    environ = dict(os.environ if environ is None else environ)
    program = [*python, "-c", _INSTANCE, _ROOT]
    line = parse([*words, "--", *program], environ)
    job = make_job(line, environ)  # mistakes in the options are reported before the start
    others = [host.name for host in job.hosts if not host.is_local]
    payload = pack(function, args, kwargs)
    folder = new_folder()
    try:
        with Server(payload, folder.path, others) as server:
            environ[CONTACT] = server.contact
            start = [sys.executable, "-c", _LAUNCHER, _ROOT, str(os.getpid()), folder.path]
            kept = line.values["json"]
            result = str(kept or Path(folder.path, "result.json"))
            options = [*words, f"--env={CONTACT}", *([] if kept else [f"--json={result}"])]
            code, report = run_process(
                lambda fd: [*start, str(fd), result, *options, "--", *program],
                environ,
                cwd=cwd,
                streams=streams or Streams.of_this_process(),
                limit=limit,
            )
    finally:
        folder.remove()
    if job.dry_run and not code:
        return []
    return _answers(job, code, json.loads(report or b"{}"), server.answers)


def to_words(options: Mapping[str, Any]) -> list[str]:
    """Command line words for keyword options.

    Raises:
        UsageError: The option is unknown, or does not take such a value.
    """
    words: list[str] = []
    for keyword, value in options.items():
        name = keyword.replace("_", "-")
        option = BY_NAME.get(name)
        if option is None or name in _ABOUT_THE_COMMAND or "-" in keyword:
            raise _unknown(keyword, known=name in _ABOUT_THE_COMMAND)
        if value is None:
            continue
        words += _words_of(option, keyword, value)
    return words


def _words_of(option: Option, keyword: str, value: Any) -> list[str]:
    if value in option.words:
        return [f"--{option.name}={value}"]
    if option.kind is FLAG:
        if not isinstance(value, int) or value < 0:  # -v may be given twice
            raise _unaccepted(keyword, value, "True or False")
        return [f"--{option.name}"] * int(value)
    if option.name == "env" and hasattr(value, "items"):
        value = [f"{name}={text}" for name, text in value.items()]
    if isinstance(value, list | tuple):
        if option.repeatable:
            return [f"--{option.name}={_text(keyword, one)}" for one in value]
        if option.name in ("host", "host-subnet", "forward-signals"):
            value = ",".join(_text(keyword, one) for one in value)
    return [f"--{option.name}={_text(keyword, value)}"]


def _text(keyword: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    raise _unaccepted(keyword, value, "a text, a number, a bool or a path")


def _unaccepted(keyword: str, value: object, accepted: str, hint: str | None = None) -> UsageError:
    return UsageError(
        "PD111",
        f"{keyword} of popdist.run is not accepted",
        value=value,
        accepted=accepted,
        hint=hint,
    )


def _unknown(keyword: str, *, known: bool) -> UsageError:
    from popdist.nearest import did_you_mean

    names = [o.name.replace("-", "_") for o in OPTIONS if o.name not in _ABOUT_THE_COMMAND]
    meant = "num_instances" if keyword in _SHORT else keyword
    return UsageError(
        "PD111",
        f"popdist.run takes no keyword {keyword!r}",
        value=keyword,
        accepted="args, kwargs, and poprun's options of a job, with underscores",
        hint="it asks the command for a text: use poprun itself"
        if known
        else did_you_mean(meant, names) or "arguments of the function go into args and kwargs",
    )


def _answers(
    job: Job, code: int, facts: Mapping[str, Any], given: Mapping[int, Parts]
) -> list[Any]:
    if "refused" in facts:
        fields = dict(facts["refused"])
        kind = UsageError if fields.pop("kind") == "UsageError" else LaunchError
        raise kind(fields.pop("code"), fields.pop("what"), **fields)
    answers = {index: load(parts[:1]) for index, parts in sorted(given.items())}
    values = {index: parts[1:] for index, parts in given.items()}
    error = facts.get("result", {}).get("error") or {}
    if code:
        raised = [index for index, answer in answers.items() if "raised" in answer]
        blamed = [index for index in error.get("instances", []) if index in raised]
        if error.get("kind", "instance") == "instance" and raised:
            index = (blamed or raised)[0]
            raise _raised(job, index, answers[index], values[index], code)
        instances = error.get("instances") or [None]
        raise JobError(
            "PD114",
            error.get("message") or f"poprun ended with exit code {code}",
            exit_code=code,
            instance=instances[0] if error.get("kind") == "instance" else None,
            traceback="\n".join(error.get("details", [])),
        )
    # Fewer than at first where hosts were lost (--min-instances).
    number = facts.get("result", {}).get("job", {}).get("num_instances", job.num_instances)
    missing = [index for index in range(number) if "raised" in answers.get(index, {"raised": ""})]
    if missing:
        raise JobError(
            "PD114",
            f"instance {missing[0]} ended without an answer, with exit code 0",
            hint="let the function return, instead of os._exit()",
            exit_code=0,
            instance=missing[0],
        )
    return [_value(values.pop(index), index) for index in range(number)]


def _raised(job: Job, index: int, answer: Mapping[str, Any], pickled: Parts, code: int) -> JobError:
    who = f"instance {index} of {job.num_instances}"
    what = f"{who} raised {answer['raised']}".split("\n", 1)[0]
    if answer["unsent"]:
        what = f"{who} returned what cannot be carried back: {answer['unsent']}"
    error = JobError(
        "PD115" if answer["unsent"] else "PD113",
        what,
        hint="return what pickle takes: numbers, texts, arrays" if answer["unsent"] else None,
        exit_code=code,
        instance=index,
        traceback=answer["traceback"],
    )
    try:
        error.__cause__ = load(pickled) if pickled else None
    except Exception:  # noqa: BLE001 - its class cannot be had here; the text tells it all
        error.__cause__ = None
    return error


def _value(parts: Parts, index: int) -> Any:
    try:
        return load(parts)
    except Exception as error:
        raise JobError(
            "PD115",
            f"the answer of instance {index} cannot be read here: {type(error).__name__}: {error}",
            exit_code=0,
            instance=index,
        ) from error
