"""``python -m popdist.sdk program.py ...``."""

from __future__ import annotations

import sys

from popdist.sdk.cli import run_program

if __name__ == "__main__":
    sys.exit(run_program(sys.argv[1:]))
