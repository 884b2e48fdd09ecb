"""The words of a command line to values, by the rules of the original launcher.

Written by hand because ``argparse`` refuses ``--mpi-global-args "--tag-output"`` (a value that
looks like an option), which published commands use. Options of other launchers are answered with
what to write here.
"""

from __future__ import annotations

import sys

from popdist.errors import UsageError
from popdist.poprun.options.table import BY_ALIAS, BY_NAME, OPTIONS
from popdist.poprun.options.types import BOOLEAN, FLAG
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from popdist.poprun.options.types import Option

    Given = dict[str, list[object]]
    "The values that were given for an option, by its name."

MODULE = ("-m", "--module")
"""Runs a module with this Python, as ``python -m`` does; the rest of the words are its own."""
_THROUGH = "mpirun takes it: --mpi-global-args="
_INSTEAD = {
    "check-build": "an option of horovodrun; with poprun: poprun doctor",
    "cycle-time-ms": "an option of horovodrun; with poprun: -x HOROVOD_CYCLE_TIME=...",
    "fusion-threshold-mb": "an option of horovodrun; with poprun: -x HOROVOD_FUSION_THRESHOLD=...",
    "gloo": "an option of horovodrun; leave it out, as poprun always uses MPI",
    "start-timeout": "an option of horovodrun; leave it out: poprun checks hosts first",
    "timeline-filename": "an option of horovodrun; with poprun: --timeline FILE",
    "master-addr": "an option of torchrun; leave it out: poprun finds an address and a free port",
    "master-port": "an option of torchrun; leave it out: poprun finds an address and a free port",
    "nnodes": "an option of torchrun; with poprun: --host HOST1,HOST2, on one of the hosts",
    "no-python": "an option of torchrun; leave it out: poprun starts the program as it is named",
    "node-rank": "an option of torchrun; leave it out: poprun starts the instances on all hosts",
    "nproc-per-node": "an option of torchrun; with poprun: -np N, for all hosts together",
    "rdzv-backend": "an option of torchrun; leave it out: mpirun brings the instances together",
    "rdzv-endpoint": "an option of torchrun; leave it out: mpirun brings the instances together",
    "rdzv-id": "an option of torchrun; leave it out: mpirun brings the instances together",
    "redirects": "an option of torchrun; with poprun: --output-filename DIR, or --log-dir DIR",
    "standalone": "an option of torchrun; leave it out",
    "tee": "an option of torchrun; with poprun: --output-filename DIR, or --log-dir DIR",
    "log-level": "an option of torchrun; with poprun: -v or -vv",
    "local-ranks-filter": "an option of torchrun; with poprun: --only-output-from-instance N",
    "monitor-interval": "an option of torchrun; leave it out: poprun hears of an end at once",
    "N": "an option of srun and mpirun; with poprun: --host HOST1,HOST2, or inside salloc",
    "nodes": "an option of srun; with poprun: --host HOST1,HOST2, or inside salloc",
    "ntasks": "an option of srun; with poprun: -np N",
    "ntasks-per-node": "an option of srun; with poprun: -np N, for all hosts together",
    "cpus-per-task": "an option of srun; leave it out: poprun divides the cores",
    "c": "an option of mpirun and srun; with poprun: -np N",
    "npernode": "an option of mpirun; with poprun: -np N, for all hosts together",
    "bind-to": f"{_THROUGH}'--bind-to ...'",
    "map-by": f"{_THROUGH}'--map-by ...'",
    "mca": f"{_THROUGH}'--mca NAME VALUE'",
    "oversubscribe": "an option of mpirun; leave it out: what you ask for is started",
}


class Source(Record):
    """One place that sets options.

    Attributes:
        name: What it is, in words.
        given: The values it gives.
        names: What sets an option there, where that is not the source itself.
    """

    name: str
    given: Given
    names: Mapping[str, str] = {}

    def origin(self, option: str) -> str:
        """The source of an option's value, in words."""
        return self.names.get(option, self.name)


def read_words(arguments: Sequence[str]) -> tuple[Given, tuple[str, ...]]:
    """The typed values, and the program with its arguments.

    Options end at the first word that is neither an option nor an option's value, or after ``--``.
    The following words belong to the program.

    Raises:
        UsageError: An option is unknown, ambiguous, without its value, or malformed.
    """
    typed: Given = {}
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word == "--":
            position += 1
            break
        if word in MODULE:
            return typed, _module(arguments[position:])
        if not word.startswith("-") or word == "-":
            break
        option, text = _split(word)
        position += 1
        if option.kind is FLAG:
            if text is not None:
                raise _malformed(option, text, hint=f"write --{option.name} alone")
            typed.setdefault(option.name, []).append(True)
            continue
        if text is None:
            if position == len(arguments):
                raise UsageError(
                    "PD100",
                    f"--{option.name} needs a value",
                    accepted=option.kind.accepted,
                    hint=f"--{option.name}=VALUE",
                )
            text = arguments[position]
            position += 1
            if not option.takes_options and _names_option(text):
                raise UsageError(
                    "PD100",
                    f"--{option.name} needs a value, and another option follows",
                    value=text,
                    accepted=option.kind.accepted,
                    hint=f"--{option.name}=VALUE; --{option.name}={text} if that is the value",
                )
        typed.setdefault(option.name, []).append(_convert(option, text))
    return typed, tuple(arguments[position:])


def _module(words: Sequence[str]) -> tuple[str, ...]:
    """The program for ``-m package.module args``, which ends the options as it does Python's."""
    if len(words) == 1:
        raise UsageError(
            "PD100",
            f"{words[0]} needs the name of a module",
            accepted="a module that this Python can import, and then its arguments",
            hint=f"{words[0]} package.module",
        )
    return (sys.executable, "-m", *words[1:])


def _names_option(text: str) -> bool:
    """Whether a word names an option of the launcher, or ends the options."""
    name = text.partition("=")[0]
    if text == "--" or name in BY_ALIAS or name in MODULE:
        return True
    wanted = name[2:]
    return (
        name.startswith("--")
        and bool(wanted)
        and any(option.name.startswith(wanted) for option in OPTIONS)
    )


def _split(word: str) -> tuple[Option, str | None]:
    """The option that a word names, and the value that is attached to it, if any."""
    name, equals, text = word.partition("=")
    attached = text if equals else None
    if name in BY_ALIAS:
        return BY_ALIAS[name], attached
    if not word.startswith("--"):
        # -Hhost0,host1: a short option with its value attached, as in getopt.
        option = BY_ALIAS.get(word[:2])
        if option is None or option.kind is FLAG:
            raise _unknown(name)
        return option, word[2:]
    return _by_prefix(name), attached


def _by_prefix(name: str) -> Option:
    wanted = name[2:]
    if wanted in BY_NAME:
        return BY_NAME[wanted]
    matches = [option for option in OPTIONS if wanted and option.name.startswith(wanted)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(
            "PD100",
            f"{name} could be any of several options",
            value=name,
            accepted=", ".join(f"--{option.name}" for option in matches),
            hint="write more of the name",
        )
    raise _unknown(name)


def _unknown(name: str) -> UsageError:
    from popdist.nearest import did_you_mean

    return UsageError(
        "PD100",
        "the option is unknown",
        value=name,
        accepted="the options that poprun --help lists, before the program",
        hint=instead_of(name)
        or (f"did you mean {name[1:]}?" if name[1:] in BY_ALIAS else None)
        or did_you_mean(name, [f"--{known}" for known in BY_NAME])
        or "options of the program go after its name",
    )


def _convert(option: Option, text: str) -> object:
    try:
        return option.kind.convert(text)
    except ValueError:
        # mpirun's --tag-output, and flags of other tools, stand alone.
        hint = f"--{option.name} yes, and then the program" if option.kind is BOOLEAN else None
        raise _malformed(option, text, hint) from None


def _malformed(option: Option, text: str, hint: str | None = None) -> UsageError:
    return UsageError(
        "PD100",
        f"the value of --{option.name} is not accepted",
        value=text,
        accepted=option.kind.accepted,
        hint=hint,
    )


def instead_of(name: str) -> str | None:
    """A hint about an option of another launcher; None for an unknown option."""
    return _INSTEAD.get(name.lstrip("-").replace("_", "-"))
