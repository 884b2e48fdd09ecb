"""What mpirun starts for every instance: finds popdist by its own place, and becomes a guard.

mpirun runs this file with ``python -I -S``, which knows no path but the standard library's.
"""

import os
import sys

_ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
sys.path.insert(0, os.path.normpath(_ROOT))

from popdist.poprun.guard.guard import main  # noqa: E402 - found by the path above

if __name__ == "__main__":
    # Taking an interpreter down in order costs milliseconds, and a guard has nothing left to do.
    os._exit(main(sys.argv[1:]))
