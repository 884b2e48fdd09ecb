"""`DeviceManager` and `DeviceInfo`: the devices that run sessions, all of them on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from popdist.popdist_core import topology
from popdist_onnx.errors import ValueRangeError, popart_exception
from popdist_onnx.types.enums import (
    DeviceConnectionType,
    DeviceSelectionCriterion,
    DeviceType,
    SyncPattern,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

_CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"
_MODEL_TILES = 1216


class DeviceInfo:
    """A device, and whether this process has attached to it.

    Args:
        kind: The kind that the program asked for.
        device_id: The device's number.
        num_ipus: The number of IPUs that the device stands for.
        tiles: Tiles of each IPU.
        connection: When the process attaches.
        providers: ONNX Runtime's execution providers, in order of preference.
    """

    def __init__(
        self,
        kind: DeviceType,
        device_id: int = 0,
        *,
        num_ipus: int = 1,
        tiles: int = _MODEL_TILES,
        connection: DeviceConnectionType = DeviceConnectionType.Always,
        providers: tuple[str, ...] = (_CPU,),
    ) -> None:
        self.type = kind
        self.id = device_id
        self.numIpus = num_ipus
        self.tilesPerIPU = tiles
        self.connectionType = connection
        self.providers = providers
        self.version = "host"
        self.driverIds = [device_id]
        self.numWorkerContexts = 1
        self._attached = connection is DeviceConnectionType.Always

    @property
    def isAttached(self) -> bool:
        """Whether this process has attached to the device."""
        return self._attached

    @property
    def runs_on_processor(self) -> bool:
        """Whether ONNX Runtime computes on the processor first."""
        return self.providers[0] == _CPU

    @property
    def gpu(self) -> int:
        """Which of the GPUs that this process sees runs sessions; devices beyond them share."""
        return 0 if self.runs_on_processor else self.id % _gpus()

    @property
    def offline(self) -> bool:
        """Whether models can be compiled for the device, but not run."""
        return self.connectionType is DeviceConnectionType.Never

    def attach(self) -> bool:
        """Attaches to the device.

        Returns:
            Whether this process is attached now.
        """
        self._attached = not self.offline
        return self._attached

    def detach(self) -> None:
        """Detaches from the device."""
        self._attached = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.detach()

    def __repr__(self) -> str:
        return f"DeviceInfo({self.type.name}, id={self.id}, numIpus={self.numIpus})"


class DeviceManager:
    """Finds devices.

    A host has one processor and perhaps GPUs that ONNX Runtime can use. A GPU stands for any
    number of IPUs where the installed ONNX Runtime has its CUDA provider; else the processor does.
    """

    def createCpuDevice(self) -> DeviceInfo:
        """This host's processor.

        Returns:
            The device for a session.
        """
        return DeviceInfo(DeviceType.Cpu)

    def createIpuModelDevice(self, options: Mapping[str, Any] | None = None) -> DeviceInfo:
        """The processor, in the place of PopART's model of an IPU.

        Args:
            options: ``numIPUs`` and ``tilesPerIPU`` are remembered; the others have no meaning.

        Returns:
            The device.
        """
        return self._modelled(DeviceType.IpuModel, options)

    def createSimDevice(self, options: Mapping[str, Any] | None = None) -> DeviceInfo:
        """The processor, in the place of PopART's simulator.

        Args:
            options: As for `createIpuModelDevice`.

        Returns:
            The device.
        """
        return self._modelled(DeviceType.Sim, options)

    def createOfflineIPUDevice(self, options: Mapping[str, Any] | None = None) -> DeviceInfo:
        """A device for which models are compiled, but on which none is run.

        Args:
            options: As for `createIpuModelDevice`.

        Returns:
            The device.
        """
        device = self._modelled(DeviceType.Ipu, options)
        device.connectionType = DeviceConnectionType.Never
        device.detach()
        return device

    def acquireAvailableDevice(
        self,
        numIpus: int = 1,
        tilesPerIpu: int = 0,
        pattern: SyncPattern = SyncPattern.Full,
        connectionType: DeviceConnectionType = DeviceConnectionType.Always,
        selectionCriterion: DeviceSelectionCriterion = DeviceSelectionCriterion.First,
    ) -> DeviceInfo | None:
        """A free device of some size.

        Args:
            numIpus: IPUs that it stands for; a power of two.
            tilesPerIpu: Remembered.
            pattern: Has no meaning here.
            connectionType: When it is attached.
            selectionCriterion: Has no meaning here.

        Returns:
            The device.

        Raises:
            ValueRangeError: The number is not a power of two, or the connection type is Never.
        """
        del pattern, selectionCriterion
        _check(numIpus, connectionType)
        return self._host(0, numIpus, tilesPerIpu, connectionType)

    def acquireDeviceById(
        self,
        id: int = 0,  # noqa: A002 - published name
        pattern: SyncPattern = SyncPattern.Full,
        connectionType: DeviceConnectionType = DeviceConnectionType.Always,
    ) -> DeviceInfo | None:
        """The device of a number; in a job it has the IPUs of this instance's replicas.

        Args:
            id: The number; with GPUs, which of them.
            pattern: Has no meaning here.
            connectionType: When it is attached.

        Returns:
            The device.

        Raises:
            ValueRangeError: The number is negative, or the connection type is Never.
        """
        del pattern
        _check(1, connectionType)
        if id < 0:
            raise ValueRangeError("PD570", "a device's number is not negative", value=id)
        here = topology()
        # Alone in a comparison, a program has the devices of the whole job.
        replicas = here.num_local_replicas * here.compare_replicas
        ipus = here.num_ipus_per_replica * replicas
        return self._host(id, ipus, 0, connectionType)

    tryAcquireAvailableDevice = acquireAvailableDevice
    tryAcquireDeviceById = acquireDeviceById

    def enumerateDevices(
        self,
        pattern: SyncPattern = SyncPattern.Full,
        numIpus: int = 1,
        deviceType: DeviceType = DeviceType.Ipu,
        connectionType: DeviceConnectionType = DeviceConnectionType.Always,
        tilesPerIPU: int = 0,
    ) -> list[DeviceInfo]:
        """All devices of some size.

        Args:
            pattern: Has no meaning here.
            numIpus: IPUs that each stands for.
            deviceType: Has no meaning here: there is one kind.
            connectionType: When they are attached.
            tilesPerIPU: Remembered.

        Returns:
            One device.
        """
        del pattern, deviceType
        return [self._host(0, numIpus, tilesPerIPU, connectionType)]

    def setOnDemandAttachTimeout(self, attachTimeout: int) -> None:
        """Sets how long to wait for a device; a host's device is always available.

        Args:
            attachTimeout: Seconds.
        """
        del attachTimeout

    def _modelled(self, kind: DeviceType, options: Mapping[str, Any] | None) -> DeviceInfo:
        given = options or {}
        return DeviceInfo(
            kind,
            num_ipus=int(given.get("numIPUs", 1)),
            tiles=int(given.get("tilesPerIPU", _MODEL_TILES)),
        )

    def _host(
        self, device_id: int, num_ipus: int, tiles: int, connection: DeviceConnectionType
    ) -> DeviceInfo:
        return DeviceInfo(
            DeviceType.Ipu,
            device_id,
            num_ipus=num_ipus,
            tiles=tiles or _MODEL_TILES,
            connection=connection,
            providers=_providers(),
        )


def _providers() -> tuple[str, ...]:
    import onnxruntime

    available = onnxruntime.get_available_providers()
    return (_CUDA, _CPU) if _CUDA in available else (_CPU,)


def _gpus() -> int:
    """The number of GPUs that ONNX Runtime sees, at least 1."""
    import onnxruntime

    found = [device for device in onnxruntime.get_ep_devices() if device.ep_name == _CUDA]
    return max(1, len(found))


def _check(num_ipus: int, connection: DeviceConnectionType) -> None:
    if num_ipus < 1 or num_ipus & (num_ipus - 1):
        raise ValueRangeError("PD570", "the number of IPUs must be a power of two", value=num_ipus)
    if connection is DeviceConnectionType.Never:
        raise ValueRangeError(
            "PD570",
            "a device cannot be acquired with the connection type Never",
            hint="createOfflineIPUDevice() gives a device to compile for",
        )


def require(device: object) -> DeviceInfo:
    """Checks a session's device.

    Raises:
        popart_exception: The argument is not a device.
    """
    if not isinstance(device, DeviceInfo):
        raise popart_exception(
            "PD570",
            "Must pass a valid deviceInfo to a session",
            value=device,
            hint="DeviceManager().createCpuDevice(), or popdist.popart.getDevice()",
        )
    return device
