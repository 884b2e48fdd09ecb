"""What a host says of itself when the launcher looks at it: run there, over ssh, before a job."""

from __future__ import annotations

import json
import os
import sys
import time

from popdist._version import __version__
from popdist.poprun.machines.cpus import format_list, usable_cpus, usable_nodes

MARK = "POPDIST-HOST "
"""Starts the answer; what a login shell prints before it is not looked at."""


def main(mpirun: str) -> None:
    """Prints the answer, one line.

    Args:
        mpirun: The path of the mpirun that is going to start its part from here.
    """
    answer = {
        "version": __version__,
        "time": time.time(),
        "mpirun": os.access(mpirun, os.X_OK),
        "nodes": [
            [node.index, format_list(node.cpus), node.has_memory]
            for node in usable_nodes(usable_cpus())
        ],
    }
    sys.stdout.write(f"{MARK}{json.dumps(answer)}\n")
