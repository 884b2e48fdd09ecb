"""The part of a session that starts and continues streams of random numbers."""

from __future__ import annotations

import logging

from popdist_onnx.errors import popart_exception
from popdist_onnx.session.prepared import Prepared

logger = logging.getLogger("popdist.onnx")


class RandomStreams(Prepared):
    """A session's random streams; they are keyed by a seed and by what has been computed."""

    def setRandomSeed(self, seedValue: int) -> None:
        """Restarts all random streams from a seed.

        Args:
            seedValue: The seed.

        Raises:
            popart_exception: The session is not prepared.
        """
        engine = self._require_prepared("setRandomSeed")
        if not len(engine.masks):
            logger.warning("setRandomSeed has no effect: the model has no random operators")
            return
        engine.seed = int(seedValue)
        engine.micro_batches = 0

    @property
    def is_random(self) -> bool:
        """Whether the model has random operators."""
        return bool(len(self._require_prepared("is_random").masks))

    def getRNGState(self) -> list[int]:
        """The state of all random streams.

        Returns:
            Numbers for `setRNGState`.

        Raises:
            popart_exception: The session is not prepared, or the option is off.
        """
        self._require_rng_option()
        engine = self._require_prepared("getRNGState")
        return [engine.seed, engine.micro_batches]

    def setRNGState(self, rngState: list[int]) -> None:
        """Continues random streams where another session left them.

        Args:
            rngState: What `getRNGState` returned.

        Raises:
            popart_exception: The session is not prepared, the option is off, or this is no state.
        """
        self._require_rng_option()
        engine = self._require_prepared("setRNGState")
        if len(rngState) != 2:  # noqa: PLR2004 - seed and position
            raise popart_exception(
                "PD575",
                "this is no state of random streams",
                value=rngState,
                accepted="what getRNGState returned",
            )
        engine.seed, engine.micro_batches = (int(number) for number in rngState)

    def _require_rng_option(self) -> None:
        if not self._options.enableLoadAndOffloadRNGState:
            raise popart_exception(
                "PD575",
                "SessionOption 'enableLoadAndOffloadRNGState' must be set to true to read or set "
                "the state of random streams",
            )
