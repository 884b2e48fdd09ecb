"""Options for mpirun inside the launcher's own: split, checked, and partly taken over."""

from __future__ import annotations

from popdist.contract import natural
from popdist.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Options of mpirun about output that the guards act on, because they carry the output.
_TAG = ("--tag-output", "-tag-output")
_FILES = ("--output-filename", "-output-filename")


def check_instance(option: str, index: int, instances: int) -> None:
    """Checks that an option names an instance of the job.

    Args:
        option: The option, for the message.
        index: The instance.
        instances: How many there are.

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


def split_words(option: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Splits options for mpirun into words, as a shell would, without running one.

    Args:
        option: The launcher's option, for messages.
        texts: Its values, which are merged.

    Returns:
        The words.

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
            # Callers that build the command in a program leave quotes inside: '"-x A=B -x C=D"'.
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


def take_output_options(words: tuple[str, ...]) -> tuple[tuple[str, ...], bool, str | None]:
    """Takes out the options of mpirun about output, which the guards carry out.

    Args:
        words: Options for mpirun.

    Returns:
        The other options, whether output is to be tagged, and the folder for it, if any.

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


def split_instance_args(texts: Sequence[str], instances: int) -> dict[int, tuple[str, ...]]:
    """Splits ``<index>:<options>`` into words by instance.

    Args:
        texts: The values of the option, which are merged.
        instances: How many instances there are.

    Returns:
        Words by instance.

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
