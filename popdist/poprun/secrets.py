"""Hides values that look like secrets in everything that the launcher shows or writes.

A value is judged by its name (``API_TOKEN=...``, ``--password ...``), or, without a name, by the
key formats of well-known services.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

HIDDEN = "<hidden>"

_NAME = re.compile(
    r"(?:^|[_.-]|(?<=[a-z0-9])(?=[A-Z]))"
    r"(?i:tokens?|secrets?|passw(?:or)?d|passphrase|pwd|credentials?|creds|auth|bearer|cookie"
    r"|(?:api|access|account|auth|private|secret|signing|encryption|license|wandb)[_.-]?key)"
    r"(?:$|[_.-]|(?<=[a-z0-9])(?=[A-Z]))"
)
# Names in which such a word has another meaning.
_PLAIN = re.compile(
    r"(?:num|max|min|len|length|count|size|special|pad|bos|eos|unk|mask|sep|cls)[_.-]?\w*tokens?"
    r"|tokens?[_.-]?(?:per|count|length|limit|type|budget)|tokenizer|_?PWD|OLDPWD",
    re.IGNORECASE,
)
_VALUE = re.compile(
    r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{16,}"
    r"|sk-[A-Za-z0-9_-]{16,}|xox[abprs]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
# A lookbehind prevents a new match attempt at each letter of a long word.
_NAMED = re.compile(r"(?<![\w.-])([\w.-]+)=(?=\S)")
_NAMED_VALUE = re.compile(r"'[^']*'|\"[^\"]*\"|[^\s'\"]+|\S+")
_URL = re.compile(r"(?<![A-Za-z0-9+.-])(?P<head>[A-Za-z0-9+.-]+://[^\s/:@]*):[^\s/@]+@")
_LONGEST_NAME = 200


def is_secret(name: str) -> bool:
    """Whether a variable's or option's name means a token, a password, a key or the like."""
    bare = name.lstrip("-")[-_LONGEST_NAME:]
    return bool(_NAME.search(bare)) and not _PLAIN.search(bare)


def hide(text: str) -> str:
    """Hides values of assignments to secret names, keys of known formats, and passwords in URLs."""
    kept, end = [], 0
    for match in _NAMED.finditer(text):
        if match.start() >= end and is_secret(match[1]):
            kept += [text[end : match.end()], HIDDEN]
            value = _NAMED_VALUE.match(text, match.end())
            end = value.end() if value else match.end()
    text = "".join([*kept, text[end:]])
    return _URL.sub(rf"\g<head>:{HIDDEN}@", _VALUE.sub(HIDDEN, text))


def hide_assignment(text: str) -> str:
    """Hides the value in ``NAME=VALUE`` where the name means a secret."""
    words = text.split("=", 2)
    # In --env=NAME=VALUE the name stands behind an option's.
    for count in range(1, len(words)):
        name = words[count - 1]
        if words[count] and " " not in name and is_secret(name):
            return "=".join([*words[:count], HIDDEN])
        if not name.startswith("-"):
            break
    return hide(text)


def hide_words(words: Iterable[str]) -> list[str]:
    """Hides secrets in a command line; an option's value follows ``=`` or is the next word."""
    shown: list[str] = []
    next_is_secret = False
    for word in words:
        if next_is_secret and not word.startswith("-"):
            shown.append(HIDDEN)
            next_is_secret = False
            continue
        next_is_secret = word.startswith("-") and "=" not in word and is_secret(word)
        shown.append(hide_assignment(word))
    return shown
