"""The adapter's errors; each inherits from the type that PopART programs expect as well.

PopART's programs and tests compare the beginning of a message, so unlike elsewhere the code follows
the sentence instead of leading it.
"""

from __future__ import annotations

from popdist.errors import PopdistError


# The published names of this family are what programs write in `except` clauses.
class popart_exception(PopdistError, RuntimeError):  # noqa: N801, N818
    """A model, an option or a call cannot be used as asked."""

    def _text(self) -> str:
        lead = f"[{self.code}] {self.what}"
        return super()._text().replace(lead, f"{self.what} [{self.code}]", 1)


class popart_internal_exception(popart_exception):  # noqa: N801
    """An invariant of the adapter does not hold: a mistake of ours."""


class popart_runtime_error(popart_exception):  # noqa: N801
    """A step failed while it ran."""


class poplar_exception(PopdistError, RuntimeError):  # noqa: N801, N818
    """What runs the graph (here ONNX Runtime) refused it."""


class poplar_runtime_error(poplar_exception):  # noqa: N801
    """What runs the graph failed while it ran."""


class poplar_recoverable_runtime_error(poplar_runtime_error):  # noqa: N801
    """A failure after which a restart may help; no host failure is known to be one."""


class poplar_unrecoverable_runtime_error(poplar_runtime_error):  # noqa: N801
    """A failure after which a restart does not help."""


class poplibs_exception(PopdistError, RuntimeError):  # noqa: N801, N818
    """An operator's kernel refused its operands."""


class OutOfMemoryException(popart_exception):
    """The model does not fit into memory."""


class ArgumentError(popart_exception, TypeError):
    """An argument is unknown, missing, or of a type that the call does not take."""


class ValueRangeError(popart_exception, ValueError):
    """An argument has the right type, but not an accepted value."""


class OptionError(popart_exception, AttributeError):
    """An option that does not exist was read or written."""


class NotOnHostError(popart_exception, NotImplementedError):
    """Something exists in PopART, but cannot be expressed for a host."""
