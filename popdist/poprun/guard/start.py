"""The file that mpirun starts for an instance of a job on several hosts: a guard for one program.

mpirun runs this file with ``python -I -S``, whose module path is only the standard library. A job
on this machine alone takes `popdist.poprun.guard.host`.
"""

import os
import sys

_ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
sys.path.insert(0, os.path.normpath(_ROOT))

from popdist.poprun.guard.proxy import main  # noqa: E402 - found by the path above

if __name__ == "__main__":
    # A regular exit of the interpreter costs milliseconds, and a guard has no work left.
    os._exit(main(sys.argv[1:]))
