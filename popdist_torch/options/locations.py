"""``Options.TensorLocations``: where an IPU keeps tensors; a host has one memory."""

from __future__ import annotations

from typing import Any

from popdist_torch.errors import OptionError
from popdist_torch.options.checks import at_least, flag
from popdist_torch.options.settings import Setting
from popdist_torch.options.storage import OptionsDict

_IO_TILES = range(32, 193, 2)


class TensorLocationSettings(OptionsDict):
    """Where one kind of tensor lives."""

    path = "TensorLocationSettings."

    minElementsForOffChip = Setting(
        "Smallest tensor that may leave the chip, in elements.",
        "min_elements",
        "minElementsForOffChip",
        at_least(0),
    )
    minElementsForReplicatedTensorSharding = Setting(
        "Smallest tensor that is sharded over replicas, in elements.",
        "min_elements",
        "minElementsForReplicatedTensorSharding",
        at_least(0),
    )
    useOnChipStorage = Setting(
        "Whether tensors stay on the chip; None leaves it to the device.",
        "use",
        "onChip",
        flag,
        default=True,
        clears=True,
    )
    useReplicatedTensorSharding = Setting(
        "Whether tensors are sharded over replicas.",
        "use",
        "useReplicatedTensorSharding",
        flag,
        default=True,
    )
    useIOTilesToLoad = Setting(
        "Whether tiles set aside for transfer load the tensors.",
        "use",
        "useIOTilesToLoad",
        flag,
        default=True,
    )
    useIOTilesToStore = Setting(
        "Whether tiles set aside for transfer store the tensors.",
        "use",
        "useIOTilesToStore",
        flag,
        default=True,
    )


def _settings(name: str, location: Any) -> dict[str, Any]:
    if not isinstance(location, TensorLocationSettings):
        raise OptionError("PD300", f"{name} takes TensorLocationSettings", value=location)
    return location.toDict()


def _io_tiles(name: str, tiles: Any) -> int:
    if tiles not in _IO_TILES:
        raise OptionError("PD300", name, value=tiles, accepted="an even number from 32 to 192")
    return int(tiles)


class TensorLocationsOptions(OptionsDict):
    """Where each kind of tensor lives."""

    path = "TensorLocations."

    setActivationLocation = Setting(
        "Where activations live.", "location", "location_activation", _settings
    )
    setWeightLocation = Setting("Where weights live.", "location", "location_weight", _settings)
    setOptimizerLocation = Setting(
        "Where optimizer state lives.", "location", "location_optimizer", _settings
    )
    setAccumulatorLocation = Setting(
        "Where gradient accumulators live.", "location", "location_accumulator", _settings
    )
    numIOTiles = Setting(
        "How many tiles are set aside for transfer.", "num_tiles", "numIOTiles", _io_tiles
    )
