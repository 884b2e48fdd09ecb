"""Pictures of the layers and of the launcher; each box is a file or folder of the tree."""

from __future__ import annotations

from pathlib import Path

from svg import BLUE, GREEN, GREY, ORANGE, PURPLE, Picture  # beside this script

ROOT = Path(__file__).resolve().parents[2]

LAYERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("layer 3: users of the packages", GREY, ("examples", "benchmarks", "docs")),
    (
        "layer 2: independent adapters, and their modules in popdist",
        GREEN,
        (
            "popdist_torch",
            "popdist_tf",
            "popdist_onnx",
            "popdist/poptorch.py",
            "popdist/tensorflow.py",
            "popdist/popart.py",
        ),
    ),
    (
        "layer 1: launching, building, exchanging and reporting",
        BLUE,
        (
            "popdist/exchange",
            "popdist/poprun",
            "popdist/runner",
            "popdist/horovod_build",
            "popdist/sdk",
            "popdist/report",
        ),
    ),
    (
        "layer 0: this process and its job; the standard library only",
        ORANGE,
        (
            "popdist/contract.py",
            "popdist/popdist_core.py",
            "popdist/backend.py",
            "popdist/agreement.py",
            "popdist/settings.py",
            "popdist/errors.py",
            "popdist/program_status.py",
        ),
    ),
)

_WIDTH = 980


def layers_picture() -> str:
    """The layers; an import points down, or stays inside a folder."""
    picture = Picture(_WIDTH, 90 * len(LAYERS) + 10, "The layers of popdist; imports point down")
    for row, (title, color, rooms) in enumerate(LAYERS):
        top = 8 + 90 * row
        picture.box(8, top, _WIDTH - 16, 78)
        picture.words(18, top + 18, title, place="start", size=13)
        width = (_WIDTH - 36) / len(rooms)
        for column, room in enumerate(rooms):
            name = _existing(room).removeprefix("popdist/")
            picture.labelled(18 + column * width, top + 28, width - 8, 40, name, color)
    return picture.text()


def launcher_picture() -> str:
    """The folders of the launcher by the process that their code runs in."""
    picture = Picture(_WIDTH, 250, "Which process runs which folder of popdist/poprun")
    picture.box(8, 8, 470, 234, GREY)
    picture.words(20, 28, "in poprun, before the job", place="start", size=13)
    for column, name in enumerate(("options", "machines", "plan")):
        picture.labelled(20 + 152 * column, 40, 130, 40, _folder(name), BLUE)
    picture.arrow(152, 60, 170, 60)
    picture.arrow(304, 60, 322, 60)
    picture.arrow(389, 82, 389, 100)
    picture.labelled(324, 102, 130, 40, _existing("popdist/poprun/launch.py")[15:], BLUE)
    picture.words(20, 168, "in poprun, while the job runs", place="start", size=13)
    picture.arrow(389, 144, 389, 178)
    picture.labelled(324, 180, 130, 40, _folder("supervisor"), PURPLE)
    picture.labelled(172, 180, 130, 40, _folder("output"), PURPLE)
    picture.arrow(322, 200, 304, 200)
    picture.arrow(456, 200, 522, 200)
    picture.labelled(524, 180, 110, 40, _folder("protocol"), ORANGE)
    picture.words(579, 150, "frames, signals,", size=11)
    picture.words(579, 164, "heartbeats, locks", size=11)
    picture.box(680, 8, 292, 234, GREY)
    picture.words(692, 28, "beside each program, on each host", place="start", size=13)
    picture.labelled(760, 180, 130, 40, _folder("guard"), GREEN)
    picture.arrow(758, 200, 636, 200)
    picture.arrow(825, 178, 825, 104)
    picture.labelled(760, 62, 130, 40, "the program", "white")
    return picture.text()


def _existing(name: str) -> str:
    if not (ROOT / name).exists() and name not in _EXPECTED:
        raise FileNotFoundError(f"{name} is in a picture of the architecture, and not in the tree")
    return name


_EXPECTED = frozenset({"popdist/agreement.py", "popdist/settings.py"})


def _folder(name: str) -> str:
    return _existing(f"popdist/poprun/{name}")[15:]


PICTURES = {"layers": layers_picture, "launcher": launcher_picture}
"""By the name of the file."""
