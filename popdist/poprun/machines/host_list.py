"""Reads host lists (``host0,host1:4``, ``host[0-2,4]``, ``node[0001-1024]``) and host files."""

from __future__ import annotations

import re

from popdist.contract import natural
from popdist.errors import UsageError
from popdist.poprun.machines.hosts import Host

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?")
_RANGES = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(?P<first>[0-9]{1,9})(-(?P<last>[0-9]{1,9}))?")
_MOST_HOSTS = 65536
_SLOTS = ("slots", "slot", "count", "max-slots", "max_slots")


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Hosts of a comma-separated list, in the order of first mention.

    A name that occurs twice gets the sum of its slots, as in mpirun.

    Raises:
        UsageError: The list is malformed.
    """
    return _merge([host for item in _split(text) for host in _expand(item, text)])


def parse_hostfile(text: str, path: str) -> tuple[Host, ...]:
    """Hosts of a host file's content, in the order of first mention.

    A line is ``name``, ``name:slots``, or ``name slots=n max-slots=m`` as in Open MPI; ``#`` starts
    a comment.

    Raises:
        UsageError: A line is malformed, or there is no host.
    """
    hosts: list[Host] = []
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        words = _with_slots(words)
        if len(words) > 1:
            raise _malformed(line, f"a line of {path} is not a host")
        hosts += [host for word in words for item in _split(word) for host in _expand(item, word)]
    if not hosts:
        raise _malformed(path, "the host file names no host")
    return _merge(hosts)


def _split(text: str) -> list[str]:
    """Splits at the commas outside brackets."""
    items, depth = [""], 0
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    return items


def _expand(item: str, text: str) -> list[Host]:
    name, colon, slots_text = item.strip().partition(":")
    slots = None
    if colon:
        slots = natural(slots_text)
        if slots is None or not 0 < slots < 10**6:
            raise _malformed(item, "the slots of a host are not a whole number, 1 or more")
    names = _expand_ranges(name, text)
    for each in names:
        if not _NAME.fullmatch(each):
            raise _malformed(each or text, "a host name is empty or has characters it cannot have")
    return [Host(each, slots) for each in names]


def _expand_ranges(name: str, text: str) -> list[str]:
    # Every second part is the content of brackets: rack[1-2]node[01-16].
    parts = _RANGES.split(name)
    names = [parts[0]]
    for ranges, tail in zip(parts[1::2], parts[2::2], strict=True):
        middles = [number for part in ranges.split(",") for number in _numbers(part, text)]
        if len(names) * len(middles) > _MOST_HOSTS:
            raise _malformed(text, f"the list is longer than {_MOST_HOSTS} hosts")
        names = [head + middle + tail for head in names for middle in middles]
    return names


def _numbers(part: str, text: str) -> list[str]:
    bounds = _RANGE.fullmatch(part.strip())
    if bounds is None:
        raise _malformed(text, f"'{part}' is not a range of host numbers")
    first, last = bounds["first"], bounds["last"] or bounds["first"]
    # node[0001-1024] keeps its zeros, as in Slurm.
    width = len(first) if first.startswith("0") else 0
    if int(last) < int(first) or int(last) - int(first) >= _MOST_HOSTS:
        raise _malformed(text, f"the range '{part}' runs backwards or is too long")
    return [str(number).zfill(width) for number in range(int(first), int(last) + 1)]


def _with_slots(words: list[str]) -> list[str]:
    """The words of a line with the number of slots behind the name, where they are of that form.

    Without slots, the largest number of instances that may run there is all that is known.
    """
    pairs = [word.partition("=") for word in words[1:]]
    sizes = {name: number for name, equals, number in pairs if equals}
    if not pairs or len(sizes) < len(pairs) or not sizes.keys() <= {*_SLOTS}:
        return words
    return [f"{words[0]}:{next(sizes[name] for name in _SLOTS if name in sizes)}"]


def _merge(hosts: list[Host]) -> tuple[Host, ...]:
    merged: dict[str, Host] = {}
    for host in hosts:
        if host.name in merged:
            slots = (merged[host.name].slots or 1) + (host.slots or 1)
            merged[host.name] = Host(host.name, slots)
        else:
            merged[host.name] = host
    return tuple(merged.values())


def _malformed(value: str, what: str) -> UsageError:
    return UsageError(
        "PD103",
        what,
        value=value,
        accepted="names or IPv4 addresses: host0,host1 or host0:4,host1:4 or host[0-2,4]",
        hint="write the list without blanks, in quotes where it has brackets",
    )
