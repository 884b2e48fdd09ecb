"""The variables that the user sets for instances: by ``-x``, or among the options for mpirun.

Values never stand on a command line, where every user of the machine could read them: they travel
in mpirun's environment under names of their own, are forwarded by those names, and get their real
names beside the program (`popdist.poprun.neighbours.adopt`). So they reach neither mpirun nor the
guards, which ``-x LD_PRELOAD=...`` could break.
"""

from __future__ import annotations

from popdist.errors import UsageError
from popdist.poprun.neighbours.adopt import PRIVATE
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Variables(Record):
    """Variables for instances.

    Attributes:
        forwarded: Names of those that are passed on with the launcher's own value.
        common: Those with a value for all instances.
        single: Those with a value for one instance, by its index.
    """

    forwarded: tuple[str, ...] = ()
    common: Mapping[str, str] = {}
    single: Mapping[int, Mapping[str, str]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """What mpirun's environment carries for them."""
        carried = {private_name(name): value for name, value in self.common.items()}
        for index, variables in self.single.items():
            carried |= {private_name(name, index): value for name, value in variables.items()}
        return carried

    def names(self, index: int) -> list[str]:
        """The variables that one instance is to be given by name.

        Args:
            index: The instance.

        Returns:
            Names in mpirun's environment.
        """
        return [
            *self.forwarded,
            *map(private_name, self.common),
            *(private_name(name, index) for name in self.single.get(index, ())),
        ]

    def sets(self, index: int) -> set[str]:
        """The real names of what the user gives an instance, one way or another."""
        return {*self.forwarded, *self.common, *self.single.get(index, ())}


def private_name(name: str, index: int | None = None) -> str:
    """Under which name a value travels.

    Args:
        name: The variable's real name.
        index: The instance that alone is to get it; None for all.

    Returns:
        A name that no other variable has.
    """
    return f"{PRIVATE}{name}" if index is None else f"{PRIVATE}{index}_{name}"


def read_variables(texts: Sequence[str], environ: Mapping[str, str]) -> Variables:
    """Reads the values of ``-x``.

    Args:
        texts: ``NAME`` or ``NAME=VALUE`` each; a later one wins.
        environ: The launcher's environment.

    Returns:
        The variables.

    Raises:
        UsageError: A name cannot be a variable's, or its variable is not set.
    """
    forwarded: dict[str, None] = {}
    common: dict[str, str] = {}
    for text in texts:
        name, equals, value = _split("-x", text)
        if not equals and name not in environ:
            raise UsageError(
                "PD100",
                "-x forwards a variable that is not set",
                value=name,
                accepted="a variable of this shell's environment, or NAME=VALUE",
                hint=f"export {name}=... first, or write -x {name}=VALUE",
            )
        forwarded.pop(name, None)
        common.pop(name, None)
        if equals:
            common[name] = value
        else:
            forwarded[name] = None
    return Variables(tuple(forwarded), common)


def take_variables(option: str, words: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Takes ``-x NAME=VALUE`` out of options for mpirun; ``-x NAME`` stays.

    Args:
        option: The launcher's option, for messages.
        words: The options for mpirun.

    Returns:
        The other words, and the variables with their values.

    Raises:
        UsageError: A name cannot be a variable's.
    """
    rest: list[str] = []
    found: dict[str, str] = {}
    pending = iter(words)
    for word in pending:
        text = next(pending, None) if word in ("-x", "--x") else None
        if text is None:
            rest.append(word)
            continue
        name, equals, value = _split(f"-x in {option}", text)
        if equals:
            found[name] = value
        else:
            rest += ["-x", text]
    return tuple(rest), found


def _split(what: str, text: str) -> tuple[str, str, str]:
    name, equals, value = text.partition("=")
    if not (name.isascii() and name.isidentifier()) or "\0" in value:
        raise UsageError(
            "PD100",
            f"{what} does not name an environment variable",
            value=text,
            accepted="NAME or NAME=VALUE",
        )
    return name, equals, value
