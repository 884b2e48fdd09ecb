"""Modules of the SDK for which there is nothing on a host, as a whole."""

from __future__ import annotations

from popdist.sdk.surface.vocabulary import refused

ABSENT = (
    *refused(
        "graphs of its own intermediate representation run on IPUs only",
        "popxl",
        "popxl_addons",
        "popart.ir",
        instead="write the model with popart.Builder, export it to ONNX, or use poptorch",
    ),
    *refused(
        "it drives the hardware",
        "poplar",
        "poputil",
        "poplin",
        "popnn",
        "popops",
        "poprand",
        "popsparse",
        "popsys",
        "gcipuinfo",
        "pva",
        instead="leave it out on a host: popdist describes devices with popdist.getDeviceId and "
        "poprun --print-topology, and profiles with popdist_torch.profiling or ONNX Runtime's own",
    ),
    *refused(
        "executables of the Poplar compiler do not run on a host",
        "popef",
        "model_runtime",
        "poprt",
        instead="export the model to ONNX and serve it with ONNX Runtime",
    ),
    *refused(
        "it is a library of its own beside the SDK, and it is not installed",
        "poptorch_experimental_addons",
        instead="install it from its repository; its operators are functions of a host here",
    ),
)
"""By the module's name. Sub-modules of the listed ones are refused with them."""
