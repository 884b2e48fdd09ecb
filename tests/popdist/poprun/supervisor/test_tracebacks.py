"""Errors that several instances print are shown once."""

from popdist.poprun.supervisor.tracebacks import Tracebacks

TRACE = (
    b"Traceback (most recent call last):\n"
    b'  File "train.py", line 3, in <module>\n'
    b"    step()\n"
    b"ValueError: %s\n"
)


def lines(text):
    return text.decode().splitlines()


def test_equal_errors_are_one_that_names_all_instances():
    errors = Tracebacks()
    for index in (0, 1, 2, 5):
        assert errors.feed(index, b"before\n" + TRACE % b"no", 1.0) == b"before\n"
    shown = errors.release(is_over=True)
    assert lines(shown) == [f"[0-2,5] {line}" for line in lines(TRACE % b"no")]
    assert errors.release(is_over=True) == b""


def test_a_copy_that_was_cut_short_counts_once_the_job_is_over():
    for is_over, first in ((True, "[0-1] "), (False, "[0] ")):
        errors = Tracebacks()
        errors.feed(0, TRACE[:50], 1.0)
        errors.feed(1, TRACE, 1.0)
        shown = lines(errors.release(is_over=is_over))
        assert shown[0] == f"{first}Traceback (most recent call last):"
        assert len(shown) == (4 if is_over else 6)


def test_instances_with_one_stack_and_own_messages_share_the_stack():
    errors = Tracebacks()
    for index in (0, 1):
        # An error comes in pieces, and what follows it stays behind it.
        head, tail = (TRACE % b"%d" % index).split(b"    step", 1)
        assert errors.feed(index, head, 1.0) == errors.feed(index, b"    step" + tail, 1.1) == b""
    shown = lines(errors.release(is_over=False))
    assert shown[:3] == [f"[0-1] {line}" for line in lines(TRACE)[:3]]
    assert shown[3:] == ["[0] ValueError: 0", "[1] ValueError: 1"]


def test_messages_of_several_lines_share_the_stack_as_well():
    errors = Tracebacks()
    message = b"[PD003] of no meaning\n  seen:     '%d of 5 are here'\n  hint:     do not"
    for index in (0, 1):
        errors.feed(index, TRACE % (message % (3 - index)), 1.0)
    shown = lines(errors.release(is_over=False))
    assert sum("Traceback" in line for line in shown) == 1
    assert shown[2] == "[0-1]     step()"
    assert shown[3:] == [
        f"[{index}] {line}"
        for index in (0, 1)
        for line in lines(b"ValueError: " + message % (3 - index))
    ]


def test_different_errors_and_other_words_stay():
    errors = Tracebacks()
    assert errors.feed(0, b"a warning with a Traceback (most recent call last)\n", 1.0)
    assert errors.feed(0, b"python: can't open file 'x'\n", 1.0) == b""
    assert errors.feed(1, TRACE % b"no", 1.0) == b""
    assert errors.feed(1, b"then this\n", 1.0) == b""
    first, *rest = lines(errors.release(is_over=False))
    assert first == "[0] python: can't open file 'x'"
    assert rest == [f"[1] {line}" for line in [*lines(TRACE % b"no"), "then this"]]


def test_tags_name_all_instances():
    errors = Tracebacks()
    for index in (1, 2):
        tag = b"\x1b[36m[1,%d]<stderr>:\x1b[0m" % index
        errors.feed(index, b"".join(tag + line for line in TRACE.splitlines(keepends=True)), 1.0)
    shown = lines(errors.release(is_over=True))
    assert shown == [f"\x1b[36m[1,1-2]<stderr>:\x1b[0m{line}" for line in lines(TRACE)]


def test_an_error_is_shown_soon_and_a_late_copy_only_named():
    errors = Tracebacks()
    assert errors.wait(1.0, is_over=False) is None
    errors.feed(0, TRACE, 1.0)
    errors.feed(0, b"more\n", 1.5)
    assert errors.wait(1.5, is_over=False) == 0.25
    assert errors.wait(1.5, is_over=True) == 0.5
    errors.feed(0, b"x" * (1 << 16) + b"\n", 1.6)
    assert errors.wait(1.6, is_over=True) < 0
    errors.release(is_over=False)
    errors.feed(0, TRACE, 3.0)  # a program that runs may repeat an error
    assert lines(errors.release(is_over=False))[0].startswith("[0] Traceback")
    errors.feed(1, TRACE, 3.0)
    late = "[1] (the same error as that of instance 0 above)"
    assert lines(errors.release(is_over=True)) == [late]
