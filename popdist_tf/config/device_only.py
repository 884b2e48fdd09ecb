"""Options of SDK 2.2 and before that concern an IPU alone: kept, without effect on a host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from popdist_tf.config.legacy import IpuOptions


def _keeps(name: str) -> Callable[..., IpuOptions]:
    def keep(opts: IpuOptions, *values: Any, **settings: Any) -> IpuOptions:
        opts.settings[name] = (values, settings)
        return opts

    keep.__name__ = keep.__qualname__ = name
    keep.__doc__ = f"Keeps what was given, without effect on a host, and returns ``opts`` ({name})."
    return keep


set_compilation_options = _keeps("set_compilation_options")
set_convolution_options = _keeps("set_convolution_options")
set_floating_point_behaviour_options = _keeps("set_floating_point_behaviour_options")
set_gcl_options = _keeps("set_gcl_options")
set_io_tile_options = _keeps("set_io_tile_options")
set_ipu_model_options = _keeps("set_ipu_model_options")
set_matmul_options = _keeps("set_matmul_options")
set_norm_options = _keeps("set_norm_options")
set_optimization_options = _keeps("set_optimization_options")
set_pooling_options = _keeps("set_pooling_options")
set_recomputation_options = _keeps("set_recomputation_options")
set_report_options = _keeps("set_report_options")
set_serialization_options = _keeps("set_serialization_options")
set_transfer_options = _keeps("set_transfer_options")
