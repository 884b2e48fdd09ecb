"""Hides values that look like secrets in everything that the launcher shows or writes.

A value is judged by its name (``API_TOKEN=...``, ``--password ...``), or, without a name, by the
key formats of well-known services.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

HIDDEN = "<hidden>"

_NAME = re.compile(
    r"(?:^|[_.-]|(?<=[a-z0-9])(?=[A-Z]))"
    r"(?:(?i:tokens?|secrets?|passw(?:or)?d|passwd|passphrase|pwd|credentials?|creds|auth|bearer"
    r"|cookie|(?:api|access|account|auth|private|secret|signing|encryption|license|wandb)[_.-]?key)"
    r"(?:$|[_.-]|(?<=[a-z0-9])(?=[A-Z]))"
    # At the end of a name only: --pass-through and SSH_KEY_FILE have another meaning.
    r"|(?i:pass|(?:openai|anthropic|mistral|cohere|pinecone|langsmith|hf|ngc|nvidia|comet|neptune"
    r"|github|gitlab|slack|stripe|sendgrid|twilio|datadog|aws|azure|gcp|google|storage|ssh|gpg|rsa"
    r"|hmac|jwt|aes|tls|ssl|vault|kms|master|root|admin|service|session|db)[_.-]?key)$)"
)
# Names in which such a word has another meaning.
_PLAIN = re.compile(
    r"(?:num|max|min|len|length|count|size|special|pad|bos|eos|unk|mask|sep|cls)[_.-]?\w*tokens?"
    r"|tokens?[_.-]?(?:per|count|length|limit|type|budget)|tokenizer|^(?:_?PWD|OLDPWD)$"
    r"|(?:num|max|min|multi|single|one|two|first|second|forward|backward|low|high|band)[_.-]?pass$",
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
_HEADER = re.compile(r"(?i)(?<!\w)(authorization:\s*(?:\w+\s+)?|bearer\s+(?=\S{8}))[^\s'\"]+")
_URL_USER = re.compile(r"(?<![A-Za-z0-9+.-])(https?://)[^\s/:@]+@")
_URL = re.compile(r"(?<![A-Za-z0-9+.-])(?P<head>[A-Za-z0-9+.-]+://[^\s/:@]*):[^\s/@]+@")
_LONGEST_NAME = 200
_ARGUMENTS = 45  # the field of /proc/<pid>/stat, counted from the state, with their address


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
    text = _URL.sub(rf"\g<head>:{HIDDEN}@", _VALUE.sub(HIDDEN, text))
    return _HEADER.sub(rf"\g<1>{HIDDEN}", _URL_USER.sub(rf"\g<1>{HIDDEN}@", text))


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


def hide_own_arguments() -> None:
    """Overwrites secrets in this process's command line, as process lists show it.

    The kernel keeps these words in the process's own memory; later children inherit the new ones.
    """
    with open("/proc/self/cmdline", "rb") as file:
        words = file.read().split(b"\0")[:-1]
    shown = [os.fsencode(word) for word in hide_words(map(os.fsdecode, words))]
    if shown == words:
        return
    with open("/proc/self/stat", "rb") as file:
        begin = int(file.read().rpartition(b")")[2].split()[_ARGUMENTS])
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        for word, new in zip(words, shown, strict=True):
            if word != new:
                memory.seek(begin)
                memory.write(_masked(word, new))
            begin += len(word) + 1


def _masked(word: bytes, shown: bytes) -> bytes:
    """A word of the same length, with stars from the hidden part on."""
    pairs = zip(word, shown, strict=False)
    kept = next((at for at, (one, other) in enumerate(pairs) if one != other), len(shown))
    return word[:kept] + b"*" * (len(word) - kept)


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
