"""``python -m popdist.poprun``, the same as the ``poprun`` command."""

from popdist.poprun.cli import run

run()
