"""Turns of phrase that keep a reader from the meaning stay out of what users read.

A reader whose English is a second language knows "is not a number" and "resumes". The page about
contributing has the rule.
"""

import ast
import re

import pytest

from tests.distributed.jobs import ROOT

BANNED = {
    r"\b(?<!there )(is|are) no (?!longer|more|less|slower|faster|better|worse)": "is not a",
    r"\bknows? no\b": "does not support",
    r"\bgo(es)? on\b|\bwent on\b|\bgone on\b|\bgoing on\b": "resumes, or continues",
    r"\b(no|some)body\b": "no process, or the name of what does it",
    r"\btells? the truth\b|\b(say|says|said|saying) so\b": "reports",
    r"\b(is|are) PD\d{3}\b": "raises",
    r"\bbit (for|by) bit\b": "bit-identical",
    r"\b(come|comes|came|coming) back\b": "is returned",
    r"\btravel(s|led|ling)?\b": "is sent",
    r"\banew\b": "again",
    r"\ball the same\b": "nevertheless",
    r"\bwhoever\b": "the name of what does it",
    r"\bat hand\b|\bby (its|their) own words\b": "available, or as it has reported",
    r"\b(deal|deals|dealt) out\b": "divides among",
    r"\b(in turns|turn by turn)\b": "alternately",
    r"\b(stand|stands|stood) (behind|beside|there|outside|before|between)\b": "is, or comes",
    r"\blook(s|ed|ing)? (at|into)\b": "checks, or reads",
    r"\bknows? of\b": "has, or supports",
    r"\b(leave|leaves|left) (it |them )?alone\b": "does not change",
    r"\b(obey|obeys|obeyed)\b": "uses",
    r"\bwhat (there is|is there)\b": "the name of it",
}
CODE = re.compile(r"PD\d{3}")
PAGES = sorted(
    path
    for path in [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md")]
    # Made from the sources, or from names of the SDK.
    if path.name not in ("troubleshooting.md", "compatibility.md")
)
SOURCES = [
    *sorted(ROOT.glob("popdist*/**/*.py")),
    *sorted(ROOT.glob("docs/remedies/*.py")),
]


def found(text):
    """What is banned in a text, each with what to write."""
    joined = " ".join(text.split())
    return [
        f"'{joined[max(0, match.start() - 40) : match.end() + 20]}': {better}"
        for banned, better in BANNED.items()
        for match in re.finditer(banned, joined, re.IGNORECASE)
    ]


def shown(path):
    """The texts of a module that users read: those of errors, of remedies and of options."""
    texts = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        holds = isinstance(node, ast.Call) and any(
            isinstance(one, ast.Constant) and CODE.fullmatch(str(one.value)) for one in node.args
        )
        described = isinstance(node, ast.Dict) and any(
            isinstance(one, ast.Constant) and CODE.fullmatch(str(one.value)) for one in node.keys
        )
        option = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Option"
        if holds or described or option:
            texts += [
                one.value
                for one in ast.walk(node)
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
    return texts


def documented(path):
    """The docstrings of a module and of its public classes and functions."""
    texts = []
    left = [ast.parse(path.read_text(encoding="utf-8"))]
    while left:
        node = left.pop()
        texts.append(ast.get_docstring(node) or "")
        left += [
            one
            for one in ast.iter_child_nodes(node)
            if isinstance(one, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and not one.name.startswith("_")
        ]
    return texts


def prose(page):
    """A page without its code."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"`[^`]*`", "", text)


def said_otherwise(package, texts):
    """The turns that the texts of a package's files have, by file."""
    said = {
        str(path.relative_to(ROOT)): [one for text in texts(path) for one in found(text)]
        for path in SOURCES
        if path.relative_to(ROOT).parts[0] == package
    }
    return {name: words for name, words in said.items() if words}


@pytest.mark.parametrize("package", sorted({path.relative_to(ROOT).parts[0] for path in SOURCES}))
def test_errors_and_help_are_in_plain_english(package):
    assert not said_otherwise(package, shown)


@pytest.mark.parametrize("package", sorted({path.relative_to(ROOT).parts[0] for path in SOURCES}))
def test_docstrings_are_in_plain_english(package):
    assert not said_otherwise(package, documented)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_pages_are_in_plain_english(page):
    assert not found(prose(page))


@pytest.mark.parametrize(
    ("text", "is_banned"),
    [
        ("this is no optimizer", True),
        ("the job goes\non", True),
        ("it knows no such name", True),
        ("such a hook is PD314", True),
        ("results are the same bit for bit", True),
        ("gradients travel as float32", True),
        ("there is no such option", False),
        ("at step 3, which is no longer needed", False),
    ],
)
def test_what_is_banned_is_found(text, is_banned):
    assert bool(found(text)) is is_banned
