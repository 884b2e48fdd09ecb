"""The file that mpirun starts for every instance: finds popdist by path, and runs a guard.

mpirun runs this file with ``python -I -S``, whose module path is only the standard library.
"""

import os
import sys

_ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
sys.path.insert(0, os.path.normpath(_ROOT))

from popdist.poprun.guard.guard import main  # noqa: E402 - found by the path above

if __name__ == "__main__":
    # A regular exit of the interpreter costs milliseconds, and a guard has no work left.
    os._exit(main(sys.argv[1:]))
