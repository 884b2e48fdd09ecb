"""The types of options: how a text becomes a value, and which texts are accepted."""

from __future__ import annotations

from popdist.contract import natural
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

TRUE = ("yes", "true", "on", "1")
FALSE = ("no", "false", "off", "0")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST_SECONDS = 366 * 86400.0
_HIGHEST_PORT = 65535
PREFIX = "POPRUN_"
"""Begins the names of environment variables that set options."""


class Kind(Record):
    """How the text of an option becomes a value.

    Attributes:
        convert: Text to value; raises ValueError where the text is not accepted.
        accepted: What is accepted, in words.
        metavar: The placeholder in the help text; empty for a flag without a value.
        choices: The texts that a shell may offer for completion, where there are few.
        completes: What else it may offer: "file", "directory" or "host"; empty for nothing.
    """

    convert: Callable[[str], object]
    accepted: str
    metavar: str = "arg"
    choices: tuple[str, ...] = ()
    completes: str = ""


class Option(Record):
    """One option of the launcher.

    Attributes:
        name: The long name without its dashes.
        kind: How its text becomes a value.
        help: What it does, one line.
        group: The heading it stands under.
        default: The value without the option.
        shown_default: The default in words, where the value does not say it.
        aliases: Other spellings with their dashes: one-letter names, names of other launchers.
        repeatable: Whether it may be given several times; its value is then a tuple.
        typed_only: Whether it means something on a command line only, and neither in a file nor
            in the environment.
        excludes: The name of an option that excludes it.
        takes_options: Whether its value is made of options of another program, so that one which
            looks like an option of the launcher is meant.
        words: Of a flag: the words that may follow it as its value, beside yes and no.
        ipu_only: Whether it is about IPUs, their links or their server, and so without effect on a
            host.
        since: The SDK that introduced it, or "popdist" for ours.
    """

    name: str
    kind: Kind
    help: str
    group: str
    default: object = None
    shown_default: str = ""
    aliases: tuple[str, ...] = ()
    repeatable: bool = False
    typed_only: bool = False
    excludes: str = ""
    takes_options: bool = False
    words: tuple[str, ...] = ()
    ipu_only: bool = False
    since: str = "1.4"

    def convert(self, text: str) -> object:
        """The value of a text: one of its words, or what its kind makes of it.

        Raises:
            ValueError: The text is not accepted.
        """
        return text if text in self.words else self.kind.convert(text)

    def takes(self, text: str) -> bool:
        """Whether a text is a value of this option."""
        try:
            self.convert(text)
        except ValueError:
            return False
        return True

    @property
    def accepted(self) -> str:
        """The accepted values, for an error or the help text."""
        return ", ".join([self.kind.accepted, *(("yes", "no", *self.words) if self.words else ())])

    @property
    def variable(self) -> str:
        """The environment variable that sets it; empty where there is none."""
        return "" if self.typed_only else f"{PREFIX}{self.name.upper().replace('-', '_')}"


def boolean(text: str) -> bool:
    """Reads one of the published truth words, in any case.

    Raises:
        ValueError: The text is another word.
    """
    lowered = text.lower()
    if lowered in TRUE:
        return True
    if lowered in FALSE:
        return False
    raise ValueError(text)


def one_of(*choices: str) -> Kind:
    """A kind that accepts a few words."""

    def convert(text: str) -> str:
        if text not in choices:
            raise ValueError(text)
        return text

    return Kind(convert, " or ".join(choices), choices=choices)


def _whole(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    def convert(text: str) -> int:
        number = natural(text)
        if number is None or number < minimum or (maximum is not None and number > maximum):
            raise ValueError(text)
        return number

    return convert


def _seconds(text: str) -> float:
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    if not number.isascii() or not number.replace(".", "", 1).isdecimal():
        raise ValueError(text)
    seconds = float(number) * _UNITS[unit]
    if seconds > _LONGEST_SECONDS:
        raise ValueError(text)
    return seconds


def _text(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise ValueError(text)
    return text


def _name(text: str) -> str:
    if not is_name(text):
        raise ValueError(text)
    return text


def is_name(text: str) -> bool:
    """Whether a text can name a partition, a cluster or the like.

    A name has letters, digits, ``_``, ``.`` and ``-``, and begins with a letter or a digit.
    """
    plain = text.replace("_", "a").replace(".", "a").replace("-", "a")
    return len(text) < 129 and plain.isascii() and plain.isalnum() and text[0].isalnum()  # noqa: PLR2004


FLAG = Kind(boolean, "no value", metavar="")


BOOLEAN = Kind(
    boolean, "yes, no, true, false, on, off, 1 or 0", choices=("yes", "no"), metavar="yes|no"
)


INSTANCES = Kind(_whole(1, 65536), "a whole number, 1 to 65536", metavar="n")


COUNT = Kind(_whole(1), "a whole number, 1 or more", metavar="n")


INDEX = Kind(_whole(0), "a whole number, 0 or more", metavar="n")


PORT = Kind(_whole(1, _HIGHEST_PORT), "a port, 1 to 65535", metavar="port")


SECONDS = Kind(_seconds, "seconds, or a number with s, m or h", metavar="seconds")


TEXT = Kind(_text, "a text that is not empty")


NAME = Kind(
    _name, "a name of letters, digits, '_', '.' and '-', at most 128 of them", metavar="name"
)


FILE = Kind(_text, "a path", metavar="file", completes="file")


DIRECTORY = Kind(_text, "a path", metavar="dir", completes="directory")


HOSTS = Kind(_text, "a host list", metavar="hosts", completes="host")
