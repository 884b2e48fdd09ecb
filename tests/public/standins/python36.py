"""Runs a program of the time of Python 3.6: ``python -m python36 program.py arguments``.

Classes of `typing.NamedTuple` have ``_field_types`` again, which Python 3.9 removed, and numpy has
the names of Python's types, which numpy 1.24 removed.
"""

import runpy
import sys
import typing

import numpy as np

for _kind in (bool, int, float, object):
    setattr(np, _kind.__name__, _kind)

_meta: typing.Any = typing.NamedTupleMeta  # type: ignore[attr-defined]
_new = _meta.__new__


def _with_types(*given: typing.Any, **named: typing.Any) -> typing.Any:
    made = _new(*given, **named)
    made._field_types = dict(made.__annotations__)
    return made


_meta.__new__ = _with_types
sys.argv = sys.argv[1:]
sys.path[0] = ""
runpy.run_path(sys.argv[0], run_name="__main__")
