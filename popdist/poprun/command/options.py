"""The launcher's options, each declared once: parser, help and documentation are made from here."""

from __future__ import annotations

from popdist.contract import natural
from popdist.poprun.record import Record

TYPE_CHECKING = False  # `typing` costs the launcher milliseconds; type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Callable

TRUE = ("yes", "true", "on", "1")
FALSE = ("no", "false", "off", "0")


class Kind(Record):
    """How the text of an option becomes a value.

    Attributes:
        convert: Text to value; raises ValueError where the text is not accepted.
        accepted: What is accepted, in words.
        metavar: The placeholder in the help text; empty for a flag without a value.
    """

    convert: Callable[[str], object]
    accepted: str
    metavar: str = "arg"


def _boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered in TRUE:
        return True
    if lowered in FALSE:
        return False
    raise ValueError(text)


def _whole(minimum: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        number = natural(text)
        if number is None or number < minimum:
            raise ValueError(text)
        return number

    return convert


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text


FLAG = Kind(bool, "no value", metavar="")
BOOLEAN = Kind(_boolean, "yes, no, true, false, on, off, 1 or 0")
COUNT = Kind(_whole(1), "a whole number, 1 or more")
INDEX = Kind(_whole(0), "a whole number, 0 or more")
TEXT = Kind(_text, "a text that is not empty")


class Option(Record):
    """One option of the launcher.

    Attributes:
        name: The long name without its dashes.
        kind: How its text becomes a value.
        help: What it does, one line.
        group: The heading it stands under.
        default: The value without the option.
        shown_default: The default in words, where the value does not say it.
        short: One-letter names, and names that other launchers use.
        repeatable: Whether it may be given several times; its value is then a tuple.
        since: The SDK that introduced it, or "popdist" for ours.
    """

    name: str
    kind: Kind
    help: str
    group: str
    default: object = None
    shown_default: str = ""
    short: tuple[str, ...] = ()
    repeatable: bool = False
    since: str = "1.4"


GENERAL = "General"
JOB = "Job"
HOSTS = "Hosts"
MPI = "MPI and environment"
OUTPUT = "Output"

OPTIONS: tuple[Option, ...] = (
    Option("help", FLAG, "Show this help and exit", GENERAL, short=("-h",)),
    Option("version", FLAG, "Show the version and exit", GENERAL, since="3.0"),
    Option("verbose", FLAG, "Say what is done; -vv says everything", GENERAL, short=("-v",)),
    Option("vv", FLAG, "Very verbose output, the same as -vv", GENERAL, short=("-vv",)),
    Option(
        "dry-run",
        BOOLEAN,
        "Show the topology and the command, and start nothing",
        GENERAL,
        default=False,
        since="popdist",
    ),
    Option(
        "num-instances",
        COUNT,
        "The number of instances (processes)",
        JOB,
        shown_default="one per host",
        short=("-np", "-n"),
    ),
    Option(
        "num-replicas",
        COUNT,
        "The total number of replicas",
        JOB,
        shown_default="one per instance",
    ),
    Option("ipus-per-replica", COUNT, "The number of devices per replica", JOB, default=1),
    Option(
        "offline-mode",
        BOOLEAN,
        "Run without requiring or attaching to any devices",
        JOB,
        default=False,
        since="2.0",
    ),
    Option(
        "executable-cache-path",
        TEXT,
        "A directory for compiled programs",
        JOB,
    ),
    Option(
        "host",
        TEXT,
        "A comma-separated list of hosts: name, name:slots or name[0-2,4]",
        HOSTS,
        shown_default="this machine",
        short=("-H",),
    ),
    Option(
        "hostfile",
        TEXT,
        "A file with one host a line: name, name:slots or name slots=n",
        HOSTS,
        since="3.0",
    ),
    Option(
        "mpirun",
        TEXT,
        "The mpirun to use",
        MPI,
        shown_default="the one beside this Python, else the first on PATH",
        since="popdist",
    ),
    Option(
        "mpi-global-args",
        TEXT,
        "Global options for mpirun; may be given several times",
        MPI,
        repeatable=True,
    ),
    Option(
        "mpi-local-args",
        TEXT,
        "Options for mpirun, per instance; may be given several times",
        MPI,
        repeatable=True,
    ),
    Option(
        "instance-mpi-local-args",
        TEXT,
        "Options for mpirun for one instance, as <index>:<options>; may be given several times",
        MPI,
        repeatable=True,
        since="2.1",
    ),
    Option(
        "env",
        TEXT,
        "Forward a variable to every instance, as NAME or NAME=VALUE; may be given several times",
        MPI,
        short=("-x",),
        repeatable=True,
        since="popdist",
    ),
    Option("print-topology", BOOLEAN, "Print the topology table", OUTPUT, default=False),
    Option(
        "only-output-from-instance",
        INDEX,
        "Suppress the output of all other instances; a failing one is still shown",
        OUTPUT,
    ),
    Option(
        "tag-output",
        BOOLEAN,
        "Put the instance and the stream before each line",
        OUTPUT,
        default=False,
        since="popdist",
    ),
    Option(
        "output-filename",
        TEXT,
        "A directory that also receives each instance's output, as 1/rank.<index>/{stdout,stderr}",
        OUTPUT,
        since="popdist",
    ),
)

BY_NAME = {option.name: option for option in OPTIONS}
BY_SHORT = {short: option for option in OPTIONS for short in option.short}
