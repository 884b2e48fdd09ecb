"""Training over a slow link: how much of the exchange of gradients hides behind the backward pass.

`link` joins two network namespaces by a slowed cable; `job` measures on its two ends;
`comparison` starts the ranks and makes the rows.
"""

from __future__ import annotations

from benchmarks.onnx_link.comparison import AIMS, measure

__all__ = ["AIMS", "measure"]
