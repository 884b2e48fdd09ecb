"""``python -m popdist.horovod_build``."""

from __future__ import annotations

import sys

from popdist.horovod_build.session import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
