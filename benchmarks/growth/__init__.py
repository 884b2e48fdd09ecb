"""How step time grows with instances: on paper, simulated, and measured where it can be.

`formulas` is the paper and `simulation` its check, event by event; `job` measures on the ranks of
one host what the formulas need and predict; `comparison` makes the rows; `curves` puts a record and
the formulas together, for the page and its chart. ``python -m benchmarks.growth`` prints the model.
"""

from __future__ import annotations

from benchmarks.growth.comparison import measure

__all__ = ["measure"]
