"""Which progress bars are shown; what the bars are is tqdm's own output."""

import io

from popdist.poprun.guard.output import LineCutter
from popdist.poprun.supervisor.progress_bars import ProgressBars

ERROR = "Traceback (most recent call last):\n"


def bar_of_tqdm(end=""):
    """What tqdm writes for three steps, in the pieces that a guard sends."""
    from tqdm import tqdm

    file = io.StringIO()
    bar = tqdm(range(3), desc="epoch 1", file=file, mininterval=0, ascii=True)
    for step in bar:
        bar.refresh()
        if end and step == 1:
            return file.getvalue() + end
    return file.getvalue()


def units(text):
    cutter = LineCutter()
    return [piece for piece in (cutter.feed(bytes([byte])) for byte in text.encode()) if piece]


def shown(bars, index, text, now=0.0):
    return b"".join(bars.feed(index, 2, unit, now) for unit in units(text)).decode()


def test_the_first_instances_bar_is_shown_and_the_others_are_not():
    bars, text = ProgressBars(), bar_of_tqdm()
    assert shown(bars, 0, text) == text
    assert shown(bars, 1, text) == ""
    assert shown(bars, 1, "epoch 1 is over\n") == "epoch 1 is over\n"
    assert shown(bars, 1, text) == ""


def test_a_bar_that_another_instance_alone_has_is_shown():
    bars, text = ProgressBars(), bar_of_tqdm()
    assert shown(bars, 1, text) == text
    assert shown(bars, 0, text) == text  # the lower index takes over
    assert shown(bars, 1, text) == ""
    assert shown(bars, 1, text, now=60.0) == text  # the other has had none for long


def test_lines_and_what_begins_behind_a_bar_stay():
    bars = ProgressBars()
    shown(bars, 0, bar_of_tqdm())
    assert shown(bars, 1, "a line\r\nanother\n") == "a line\r\nanother\n"
    assert shown(bars, 1, bar_of_tqdm(end=ERROR)).endswith(ERROR)
    assert shown(bars, 1, "ValueError: no\n") == "ValueError: no\n"
