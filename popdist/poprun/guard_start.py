"""What mpirun starts for every instance: finds popdist by its own place, and becomes a guard.

mpirun runs this file with ``python -I -S``, which knows no path but the standard library's.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from popdist.poprun.supervision.guard import main

if __name__ == "__main__":
    # Taking an interpreter down in order costs milliseconds, and a guard has nothing left to do.
    os._exit(main(sys.argv[1:]))
