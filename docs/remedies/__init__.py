"""Cause and fix of every error code; docs/troubleshooting.md is made of them."""

from __future__ import annotations

from remedies import build, core, launcher, onnx, sdk, tensorflow, torch  # beside this script

FAMILIES = {
    "Job, communication and exchange": core.REMEDIES,
    "poprun": launcher.REMEDIES,
    "Building Horovod": build.REMEDIES,
    "PyTorch": torch.REMEDIES,
    "TensorFlow": tensorflow.REMEDIES,
    "Names of the SDK": sdk.REMEDIES,
    "ONNX": onnx.REMEDIES,
}
"""By family, by code: why it comes, and what to do."""
