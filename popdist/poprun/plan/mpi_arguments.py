"""The user's options for mpirun, and the user's variables for instances.

A variable's value is never on a command line, where every user of the machine could read it. Values
are in mpirun's environment under private names, are forwarded by those names, and get their real
names beside the program (`popdist.poprun.guard.program`). So a value such as ``LD_PRELOAD`` affects
neither mpirun nor the guards.
"""

from __future__ import annotations

from popdist.contract import natural
from popdist.errors import UsageError
from popdist.poprun.protocol.guard_argv import PRIVATE
from popdist.poprun.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Options of mpirun about output that the guards act on, because they carry the output.
_TAG = ("--tag-output", "-tag-output")
_FILES = ("--output-filename", "-output-filename")


class Variables(Record):
    """Variables for instances.

    Attributes:
        forwarded: Names of the variables that keep the launcher's own value.
        common: Variables with one value for all instances.
        single: Variables with a value for one instance, by instance index.
    """

    forwarded: tuple[str, ...] = ()
    common: Mapping[str, str] = {}
    single: Mapping[int, Mapping[str, str]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """The variables for mpirun's environment, under private names."""
        carried = {private_name(name): value for name, value in self.common.items()}
        for index, variables in self.single.items():
            carried |= {private_name(name, index): value for name, value in variables.items()}
        return carried

    def names(self, index: int) -> list[str]:
        """The names in mpirun's environment that are forwarded to one instance."""
        return [
            *self.forwarded,
            *map(private_name, self.common),
            *(private_name(name, index) for name in self.single.get(index, ())),
        ]

    def sets(self, index: int) -> set[str]:
        """The real names of all variables that the user sets for an instance."""
        return {*self.forwarded, *self.common, *self.single.get(index, ())}


def private_name(name: str, index: int | None = None) -> str:
    """The private name of a variable for one instance, or for all with None."""
    return f"{PRIVATE}{name}" if index is None else f"{PRIVATE}{index}_{name}"


def read_variables(texts: Sequence[str], environ: Mapping[str, str]) -> Variables:
    """Reads the values of ``-x``, each ``NAME`` or ``NAME=VALUE``; a later value wins.

    Raises:
        UsageError: A name is not a valid variable name, or the variable is not set.
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
    """Splits ``-x NAME=VALUE`` from options for mpirun; ``-x NAME`` remains an option.

    Raises:
        UsageError: A name is not a valid variable name.
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


def split_words(option: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Splits options for mpirun into words with shell quoting rules, without a shell.

    Raises:
        UsageError: Quotes do not match, or mpirun would take a word for a program.
    """
    if not texts:
        return ()
    import shlex

    words: list[str] = []
    for text in texts:
        try:
            split = shlex.split(text)
            # Programs that build the command may leave quotes inside: '"-x A=B -x C=D"'.
            if len(split) == 1 and split[0].startswith("-") and " " in split[0]:
                split = shlex.split(split[0])
        except ValueError as error:
            raise UsageError(
                "PD100",
                f"the value of {option} has quotes that do not match: {error}",
                value=text,
                accepted="words as in a shell",
            ) from None
        if split and not split[0].startswith("-"):
            raise UsageError(
                "PD100",
                f"the value of {option} does not start with an option of mpirun, "
                "which would take it for the program",
                value=text,
                accepted="options of mpirun, such as '-x NAME=VALUE'",
                hint=f"{option}='-x {text.strip()}'" if "=" in split[0] else None,
            )
        words += split
    if ":" in words:
        raise UsageError(
            "PD100",
            f"{option} has a lone colon, which for mpirun starts another program",
            value=" ".join(texts),
        )
    return tuple(words)


def split_instance_args(texts: Sequence[str], instances: int) -> dict[int, tuple[str, ...]]:
    """Splits ``<index>:<options>`` into words by instance; repeated values are merged.

    Raises:
        UsageError: A value is malformed, or names an instance that does not exist.
    """
    option = "--instance-mpi-local-args"
    found: dict[int, tuple[str, ...]] = {}
    for text in texts:
        index_text, colon, rest = text.partition(":")
        index = natural(index_text)
        if not colon or index is None:
            raise UsageError(
                "PD100",
                f"the value of {option} has no instance before its colon",
                value=text,
                accepted="<index>:<options of mpirun>",
                hint=f'{option}="0:-x NAME=VALUE"',
            )
        check_instance(option, index, instances)
        found[index] = found.get(index, ()) + split_words(option, (rest,))
    return found


def check_instance(option: str, index: int, instances: int) -> None:
    """Checks that an option names an instance of the job.

    Raises:
        UsageError: There is no such instance.
    """
    if index >= instances:
        raise UsageError(
            "PD101",
            f"{option} names an instance that the job does not have",
            value=index,
            accepted=f"0 to {instances - 1} with --num-instances {instances}",
        )


def take_output_options(words: tuple[str, ...]) -> tuple[tuple[str, ...], bool, str | None]:
    """Splits off mpirun's options about output, which the guards carry out.

    The result is the other options, whether output is tagged, and the folder for output.

    Raises:
        UsageError: The folder is missing.
    """
    rest: list[str] = []
    tag, folder = False, None
    pending = iter(words)
    for word in pending:
        name, equals, attached = word.partition("=")
        if word in _TAG:
            tag = True
        elif name in _FILES:
            folder = attached if equals else next(pending, None)
            if not folder:
                raise UsageError(
                    "PD100", f"{name} in --mpi-global-args needs a directory", value=word
                )
        else:
            rest.append(word)
    return tuple(rest), tag, folder
