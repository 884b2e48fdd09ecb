"""What is shown of bars and messages that several instances write, as tqdm and TensorFlow do."""

import io

from popdist.poprun.guard.output import LineCutter
from popdist.poprun.supervisor.repeated_output import RepeatedOutput

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
    bars, text = RepeatedOutput(), bar_of_tqdm()
    assert shown(bars, 0, text) == text
    assert shown(bars, 1, text) == ""
    assert shown(bars, 1, "epoch 1 is over\n") == "epoch 1 is over\n"
    assert shown(bars, 1, text) == ""


def test_a_bar_that_another_instance_alone_has_is_shown():
    bars, text = RepeatedOutput(), bar_of_tqdm()
    assert shown(bars, 1, text) == text
    assert shown(bars, 0, text) == text  # the lower index takes over
    assert shown(bars, 1, text) == ""
    assert shown(bars, 1, text, now=60.0) == text  # the other has had none for long


def test_lines_and_what_begins_behind_a_bar_stay():
    bars = RepeatedOutput()
    shown(bars, 0, bar_of_tqdm())
    assert shown(bars, 1, "a line\r\nanother\n") == "a line\r\nanother\n"
    assert shown(bars, 1, bar_of_tqdm(end=ERROR)).endswith(ERROR)
    assert shown(bars, 1, "ValueError: no\n") == "ValueError: no\n"


# As TensorFlow 2.15 and 2.18 print them.
TENSORFLOW = (
    "2026-11-28 13:30:0{0}.12345{0}: I tensorflow/core/util/port.cc:153] oneDNN custom operations"
    " are on. You may see slightly different numerical results\n"
)
ABSEIL = "I0000 00:00:176433300{0}.123456    471{0} cpu_feature_guard.cc:210] This binary is\n"
ERROR_OF_LIBRARY = "2026-11-28 13:30:0{0}.1: E tensorflow/core/a.cc:1] cannot register\n"
OWN = "epoch {0}: [1, 2] done\n"


def test_messages_of_libraries_are_shown_once_and_errors_and_own_lines_always():
    repeated = RepeatedOutput()
    for form in (TENSORFLOW, ABSEIL):
        assert shown(repeated, 1, form.format(1)) == form.format(1)
        assert shown(repeated, 0, form.format(0)) == ""
        assert shown(repeated, 1, form.format(2)) == form.format(2)  # its own again
        other = form.format(0).replace("is", "was").replace("are", "were")
        assert shown(repeated, 0, other) == other
    for form in (ERROR_OF_LIBRARY, OWN):
        for index in (0, 1):
            assert shown(repeated, index, form.format(1)) == form.format(1)


def test_messages_behind_tags_are_known():
    repeated, line = RepeatedOutput(), TENSORFLOW.format(1)
    assert shown(repeated, 0, f"[1,0]<stderr>:{line}") != ""
    assert shown(repeated, 1, f"[1,1]<stderr>:{line}") == ""
