import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popdist.horovod_build.compilation import Display, Progress, advance, clock, describe

NINJA = "[31/146] Building CXX object horovod/torch/CMakeFiles/pytorch.dir/__/common/half.cc.o"
MAKE = "[ 12%] Building CXX object third_party/gloo/gloo/CMakeFiles/gloo.dir/algorithm.cc.o"


def after(*lines):
    state = Progress()
    for line in lines:
        state = advance(state, line)
    return state


def test_the_phases_follow_the_output():
    assert after("running build").phase == "preparing"
    assert after("-- The CXX compiler identification is GNU 12.2.0").phase == "configuring"
    assert after(NINJA).phase == "compiling"
    assert after(NINJA, "-- late words of CMake").phase == "compiling"
    linked = "[146/146] Linking CXX shared library mpi_lib.so"
    assert after(linked, "creating build/bdist.linux-x86_64/wheel").phase == "packing"
    assert after(NINJA, "creating build/x").phase == "compiling"


def test_ninja_and_make_are_both_understood():
    assert after(NINJA) == Progress("compiling", 31 / 146, "31/146", "half.cc")
    assert after(MAKE) == Progress("compiling", 0.12, "", "algorithm.cc")


@given(st.text())
def test_no_output_breaks_it(line):
    state = advance(Progress(), line)
    assert state.done is None or state.done >= 0


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (65.9, "1:05"), (3600, "60:00")])
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_a_line_says_share_time_and_file():
    line = describe(after(NINJA), 65)
    assert line == "compiling   21% (31/146)  1:05 elapsed  half.cc"


def test_without_a_terminal_there_is_a_plain_line_now_and_then():
    stream = io.StringIO()
    display = Display(stream, live=False)
    for second in range(31):
        display.update(after(NINJA), second)
    display.finish()
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[2] for line in lines] == ["0:15 elapsed", "0:30 elapsed"]


def test_on_a_terminal_one_line_is_rewritten_and_then_removed():
    stream = io.StringIO()
    display = Display(stream, live=True)
    display.update(after(NINJA), 0)
    display.update(after(NINJA), 0.1)
    display.update(after(NINJA), 1)
    display.finish()
    assert stream.getvalue().count("\r") == 3
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")
