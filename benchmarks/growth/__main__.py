"""Prints the model of the newest record: ``python -m benchmarks.growth [NETWORK ...]``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from benchmarks.growth.curves import NETWORKS, constants, predicted
from benchmarks.record import newest

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program.

    Args:
        arguments: The command line; None for that of this process.

    Returns:
        The exit code: 1 where growth was not recorded yet.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("network", nargs="*", help=f"of: {', '.join(NETWORKS)}; default: all")
    options = parser.parse_args(arguments)
    for network in options.network:
        if network not in NETWORKS:
            parser.error(f"no network is called {network!r}; there are: {', '.join(NETWORKS)}")
    found = newest()
    known = None if found is None else constants(found[1])
    if known is None:
        print("growth was not recorded yet: python -m benchmarks --record --only growth")
        return 1
    for network in options.network or NETWORKS:
        print(f"{network}: milliseconds of a step")
        print(f"{'instances':>9}  {'ring':>9}  {'hierarchical':>12}  {'overlapped':>10}")
        for instances, times in predicted(known, network):
            ring, hierarchical, overlapped = (seconds * 1e3 for seconds in times.values())
            print(f"{instances:9}  {ring:9.1f}  {hierarchical:12.1f}  {overlapped:10.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
