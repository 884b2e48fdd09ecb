"""The ssh command that mpirun uses to reach other hosts, for the launcher to use too. Pure."""

from __future__ import annotations

import os

from popdist.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

CONNECT_SECONDS = 10

# ssh never prompts, and never connects to a host whose key is unknown.
QUIET = ("-o", "BatchMode=yes")
STRICT = ("-o", "StrictHostKeyChecking=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}")

_SETTERS = ("--mca", "-mca", "--gmca", "-gmca", "--prtemca", "-prtemca")
_ARGS = ("plm_rsh_args", "plm_ssh_args")
_AGENT = ("plm_rsh_agent", "plm_ssh_agent")
_PREFIXES = ("OMPI_MCA_", "PRTE_MCA_")


def ssh_words(global_args: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The words that start a command on a host, up to the host's name.

    The user's settings win, in ``global_args`` first and then in ``environ``; ssh never prompts.

    Raises:
        UsageError: A setting has quotes that do not match.
    """
    # Alternatives are separated by colons; mpirun takes the first that is installed.
    agent = _split((_setting(_AGENT, global_args, environ) or "ssh").partition(":")[0].strip())
    more = _split(_setting(_ARGS, global_args, environ) or "")
    if os.path.basename(agent[0] if agent else "") != "ssh":
        return [*agent, *more]  # options of another agent are unknown
    # ssh takes the first of contradicting options.
    return [agent[0], *QUIET, *agent[1:], *more, *STRICT]


def is_ssh_set(global_args: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether the user has set mpirun's ssh program or the options for ssh."""
    return _setting((*_ARGS, *_AGENT), global_args, environ) is not None


def _setting(
    names: Sequence[str], global_args: Sequence[str], environ: Mapping[str, str]
) -> str | None:
    for name, value in _settings(global_args):
        if name in names:
            return value
    for name in names:
        for prefix in _PREFIXES:
            if environ.get(prefix + name):
                return environ[prefix + name]
    return None


def _settings(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for position, word in enumerate(words[:-2]):
        if word in _SETTERS:
            yield words[position + 1], words[position + 2]


def _split(text: str) -> list[str]:
    import shlex

    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            "PD100",
            f"mpirun's setting for ssh has quotes that do not match: {error}",
            value=text,
            accepted="words as in a shell",
        ) from None
