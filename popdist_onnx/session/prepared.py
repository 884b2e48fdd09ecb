"""What the parts of a session share: the compiled model, and whether there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.errors import popart_exception

if TYPE_CHECKING:
    from popdist_onnx.runtime.engine import Engine
    from popdist_onnx.runtime.reading import Reading
    from popdist_onnx.session.weights import HostTensors
    from popdist_onnx.types import SessionOptions


class Prepared:
    """The base of a session's parts; the session fills in what they share.

    Attributes:
        name: For messages.
    """

    name: str
    _options: SessionOptions
    _reading: Reading
    _host: HostTensors
    _engine: Engine | None
    _loaded: bool

    def _require_prepared(self, call: str) -> Engine:
        if self._engine is None:
            raise popart_exception(
                "PD577", f"prepareDevice must be called before {call}", value=self.name
            )
        return self._engine
