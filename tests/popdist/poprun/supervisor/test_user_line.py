"""The user's own line in tracebacks and stacks."""

import json
import traceback

from popdist.poprun.supervisor.user_line import Error, error_of, line_of_stacks

STACKS = """Thread 0x1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/home/me/loader.py", line 4 in read

Current thread 0x2 (most recent call first):
  File "/venv/lib/python3.11/site-packages/horovod/torch/mpi_ops.py", line 1285 in synchronize
  File "/home/me/train.py", line 12 in step
  File "/home/me/train.py", line 20 in <module>
"""


def test_the_main_thread_says_where_a_program_is():
    assert line_of_stacks(STACKS) == "/home/me/train.py, line 12, in step"
    assert line_of_stacks("(no Python stacks: the process has ended)") == ""


def test_a_real_traceback_ends_with_the_line_that_is_no_librarys():
    try:
        int("first\nsecond")
    except ValueError:
        text = traceback.format_exc()
    error = error_of(f"noise\n{text}\nW somebody warns")
    assert error.words == "ValueError: invalid literal for int() with base 10: 'first\\nsecond'"
    assert error.place.startswith(f"{__file__}, line ")
    assert error.place.endswith("in test_a_real_traceback_ends_with_the_line_that_is_no_librarys")
    assert error.code == 'int("first\\nsecond")'
    assert not error.is_inside
    try:
        json.loads("{")
    except ValueError:
        text = traceback.format_exc()
    assert error_of(text).is_inside
    assert error_of(text).code == 'json.loads("{")'


def test_of_several_errors_the_last_counts_and_without_one_nothing():
    first = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nKeyError: 1\n'
    second = first.replace("a.py", "b.py").replace("KeyError: 1", "ValueError")
    between = "\nDuring handling of the above exception, another exception occurred:\n\n"
    assert error_of(first + between + second) == Error("ValueError", "b.py, line 1, in f")
    assert error_of("Segmentation fault") == Error()
