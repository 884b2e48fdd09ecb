"""The part of a session that moves weights and optimizer states between host and device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.session.prepared import Prepared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from popdist_onnx.graph.load import Source
    from popdist_onnx.runtime.cells import Array
    from popdist_onnx.session.weights import PyWeightsIO


class Variables(Prepared):
    """A session's variables: the device's, the host's, and what was fetched last."""

    @property
    def host_tensors(self) -> Mapping[str, Array]:
        """The host's tensor data, by variable."""
        return self._host.data

    @property
    def fetched(self) -> Mapping[str, Array]:
        """What `weightsToHost` fetched, by variable."""
        return self._host.fetched

    def weightsFromHost(self) -> None:
        """Loads the host's tensor data onto the device.

        Raises:
            popart_exception: The session is not prepared.
        """
        engine = self._require_prepared("weightsFromHost")
        for name, array in self._host.data.items():
            engine.state.write(name, array)
        self._loaded = True

    def weightsToHost(self) -> None:
        """Fetches all variables from the device, for `readWeights`.

        The host's tensor data, which `weightsFromHost` loads, stay as they are.

        Raises:
            popart_exception: The session is not prepared.
        """
        engine = self._require_prepared("weightsToHost")
        self._host.fetched = {name: engine.state.read(name).copy() for name in engine.state.names}

    def readWeights(self, weightsIo: PyWeightsIO) -> None:
        """Copies what `weightsToHost` fetched into arrays; ids of no weight are ignored.

        Args:
            weightsIo: The arrays.

        Raises:
            popart_exception: An array does not fit.
        """
        self._host.read_fetched(weightsIo.weights)

    def writeWeights(self, weightsIo: PyWeightsIO) -> None:
        """Replaces the host's tensor data; `weightsFromHost` then loads them.

        Args:
            weightsIo: The arrays; ids of no weight are ignored.

        Raises:
            popart_exception: An array does not fit.
        """
        self._host.write(weightsIo.weights)

    def resetHostWeights(
        self,
        modelProtoOrFilename: Source,
        ignoreWeightsInModelWithoutCorrespondingHostWeight: bool = False,
    ) -> None:
        """Replaces the host's tensor data by a model's initializers.

        Args:
            modelProtoOrFilename: The model.
            ignoreWeightsInModelWithoutCorrespondingHostWeight: Whether initializers that this
                session does not have are passed over.

        Raises:
            popart_exception: An initializer is unknown or does not fit.
        """
        self._host.reset(
            modelProtoOrFilename,
            self._reading.constants,
            ignore_unknown=ignoreWeightsInModelWithoutCorrespondingHostWeight,
        )
        self._loaded = False
