"""The benchmarks of popdist, each beside its peers: ``python -m benchmarks --list``.

Not installed: a part of the checkout. How they measure, and why, is in ``docs/benchmarks.md``.
"""
