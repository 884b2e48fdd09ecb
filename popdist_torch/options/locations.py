"""``Options.TensorLocations``: where an IPU keeps tensors; a host has one memory."""

from __future__ import annotations

from popdist_torch.errors import OptionError
from popdist_torch.options.checks import flag, whole_number
from popdist_torch.options.effects import stored_only
from popdist_torch.options.storage import OptionsDict

_IO_TILES = range(32, 193, 2)


class TensorLocationSettings(OptionsDict):
    """Where one kind of tensor lives."""

    def minElementsForOffChip(self, min_elements: int) -> TensorLocationSettings:
        """Stores the smallest size that may leave the chip.

        Args:
            min_elements: Elements.

        Returns:
            These settings.
        """
        value = whole_number("minElementsForOffChip", min_elements, least=0)
        self.createOrSet(minElementsForOffChip=value)
        return self

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> TensorLocationSettings:
        """Stores the smallest size that is sharded over replicas.

        Args:
            min_elements: Elements.

        Returns:
            These settings.
        """
        value = whole_number("minElementsForReplicatedTensorSharding", min_elements, least=0)
        self.createOrSet(minElementsForReplicatedTensorSharding=value)
        return self

    def useOnChipStorage(self, use: bool | None = True) -> TensorLocationSettings:
        """Stores whether tensors stay on the chip.

        Args:
            use: Whether they do; None leaves it to the device.

        Returns:
            These settings.
        """
        if use is None:
            self.deleteIfExists("onChip")
        else:
            self.createOrSet(onChip=flag("useOnChipStorage", use))
        return self

    def useReplicatedTensorSharding(self, use: bool = True) -> TensorLocationSettings:
        """Stores whether tensors are sharded over replicas.

        Args:
            use: Whether they are.

        Returns:
            These settings.
        """
        value = flag("useReplicatedTensorSharding", use)
        self.createOrSet(useReplicatedTensorSharding=value)
        return self

    def useIOTilesToLoad(self, use: bool = True) -> TensorLocationSettings:
        """Stores whether tiles set aside for transfer load the tensors.

        Args:
            use: Whether they do.

        Returns:
            These settings.
        """
        self.createOrSet(useIOTilesToLoad=flag("useIOTilesToLoad", use))
        return self

    def useIOTilesToStore(self, use: bool = True) -> TensorLocationSettings:
        """Stores whether tiles set aside for transfer store the tensors.

        Args:
            use: Whether they do.

        Returns:
            These settings.
        """
        self.createOrSet(useIOTilesToStore=flag("useIOTilesToStore", use))
        return self


class TensorLocationsOptions(OptionsDict):
    """Where each kind of tensor lives."""

    def setActivationLocation(self, location: TensorLocationSettings) -> TensorLocationsOptions:
        """Stores where activations live.

        Args:
            location: The settings.

        Returns:
            These options.
        """
        return self._store("setActivationLocation", "location_activation", location)

    def setWeightLocation(self, location: TensorLocationSettings) -> TensorLocationsOptions:
        """Stores where weights live.

        Args:
            location: The settings.

        Returns:
            These options.
        """
        return self._store("setWeightLocation", "location_weight", location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> TensorLocationsOptions:
        """Stores where optimizer state lives.

        Args:
            location: The settings.

        Returns:
            These options.
        """
        return self._store("setOptimizerLocation", "location_optimizer", location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> TensorLocationsOptions:
        """Stores where gradient accumulators live.

        Args:
            location: The settings.

        Returns:
            These options.
        """
        return self._store("setAccumulatorLocation", "location_accumulator", location)

    def numIOTiles(self, num_tiles: int) -> TensorLocationsOptions:
        """Stores how many tiles are set aside for transfer.

        Args:
            num_tiles: An even number from 32 to 192.

        Returns:
            These options.

        Raises:
            OptionError: Another number.
        """
        if num_tiles not in _IO_TILES:
            raise OptionError(
                "PD300", "numIOTiles", value=num_tiles, accepted="an even number from 32 to 192"
            )
        stored_only("TensorLocations.numIOTiles")
        self.createOrSet(numIOTiles=num_tiles)
        return self

    def _store(
        self, method: str, key: str, location: TensorLocationSettings
    ) -> TensorLocationsOptions:
        if not isinstance(location, TensorLocationSettings):
            raise OptionError("PD300", f"{method} takes TensorLocationSettings", value=location)
        stored_only(f"TensorLocations.{method}")
        self.createOrSet(**{key: location.toDict()})
        return self
