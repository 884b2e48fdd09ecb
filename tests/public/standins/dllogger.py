"""Takes the place of NVIDIA's dllogger, which is not on PyPI: nothing is logged."""

from enum import Enum


class Verbosity(Enum):
    """How much is logged."""

    DEFAULT = 0
    VERBOSE = 1


class JSONStreamBackend:
    """Takes the place of a log in a file."""

    def __init__(self, *_args, **_options):
        pass


StdOutBackend = JSONStreamBackend


def init(backends):
    """Begins nothing."""


def metadata(name, values):
    """Describes a value that is not logged."""


def log(step, data, verbosity=Verbosity.DEFAULT):
    """Logs nothing."""


def flush():
    """Writes nothing."""
