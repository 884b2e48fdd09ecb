"""`DataFlow`: how many batches a step takes, and which tensors a step returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from popdist_onnx.errors import ArgumentError, ValueRangeError
from popdist_onnx.types.enums import AnchorReturnTypeId


class AnchorReturnType:
    """The values of an anchored tensor that a step returns.

    Args:
        name: ``Final`` (of the last micro-batch), ``All``, ``Sum`` (over the step) or ``EveryN``,
            in any case.
        period: N, for ``EveryN`` only: the value of every N-th micro-batch is returned.

    Raises:
        ValueRangeError: The name is unknown, or the period is missing, not positive, or given to
            another type than ``EveryN``.
    """

    def __init__(self, name: str, period: int | None = None) -> None:
        known = {member.name.upper(): member for member in AnchorReturnTypeId}
        if not isinstance(name, str) or name.upper() not in known:
            raise ValueRangeError(
                "PD508",
                f"Invalid anchor return type ID supplied: {name}",
                accepted=", ".join(member.name for member in AnchorReturnTypeId),
            )
        self._id = known[name.upper()]
        if self._id is AnchorReturnTypeId.EveryN:
            if period is None:
                raise ValueRangeError(
                    "PD508",
                    "Must specify return period with option 'EVERYN'",
                    hint='write AnchorReturnType("EveryN", 4)',
                )
            if isinstance(period, bool) or not isinstance(period, int) or period <= 0:
                raise ValueRangeError(
                    "PD508",
                    "Anchor return period must be greater than zero",
                    value=period,
                    accepted="a whole number",
                )
        elif period is not None:
            raise ValueRangeError(
                "PD508",
                "A return period should not be supplied for this anchor return type",
                value=f"{self._id.name}, {period}",
                accepted="a period for EveryN",
            )
        self._period = period or 1

    def id(self) -> AnchorReturnTypeId:
        """The kind.

        Returns:
            One of `AnchorReturnTypeId`.
        """
        return self._id

    def rp(self) -> int:
        """The return period: the N of ``EveryN``, else 1.

        Returns:
            A number of micro-batches, 1 or more.
        """
        return self._period

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AnchorReturnType):
            return NotImplemented
        return (self._id, self._period) == (other._id, other._period)

    def __hash__(self) -> int:
        return hash((self._id, self._period))

    def __repr__(self) -> str:
        period = f", {self._period}" if self._id is AnchorReturnTypeId.EveryN else ""
        return f"AnchorReturnType({self._id.name!r}{period})"


class DataFlow:
    """How many batches a step takes, and which tensors a step returns.

    Args:
        batchesPerStep: Weight updates (in inference: batches) of one call of ``run``.
        anchorTensors: The tensors to return: a return type by id, or ids alone.
        anchorReturnType: The return type of ids given alone; `All` by default.

    Raises:
        ArgumentError: An argument is of the wrong type.
        ValueRangeError: The number of batches is not positive, or does not fit an ``EveryN``.
    """

    def __init__(
        self,
        batchesPerStep: int,
        anchorTensors: Mapping[str, AnchorReturnType] | Iterable[str] = (),
        anchorReturnType: AnchorReturnType | None = None,
    ) -> None:
        if isinstance(batchesPerStep, bool) or not isinstance(batchesPerStep, int):
            raise ArgumentError("PD508", "batchesPerStep is a whole number", value=batchesPerStep)
        if batchesPerStep <= 0:
            raise ValueRangeError(
                "PD508", "'batchesPerStep' must be greater than zero", value=batchesPerStep
            )
        self._batches_per_step = batchesPerStep
        self._arts = _by_id(anchorTensors, anchorReturnType)
        for tensor, art in self._arts.items():
            self._check_period(tensor, art)

    def _check_period(self, tensor: str, art: AnchorReturnType) -> None:
        if art.rp() > self._batches_per_step:
            raise ValueRangeError(
                "PD508",
                f"return period of anchor '{tensor}' is larger than the number of batches per step",
                value=art.rp(),
                accepted=f"a divisor of {self._batches_per_step}",
            )
        if self._batches_per_step % art.rp():
            raise ValueRangeError(
                "PD508",
                f"return period of anchor '{tensor}' must be a factor of the number of batches per"
                " step",
                value=art.rp(),
                accepted=f"a divisor of {self._batches_per_step}",
            )

    def batchesPerStep(self) -> int:
        """Weight updates of one call of ``run``.

        Returns:
            Their number, 1 or more.
        """
        return self._batches_per_step

    def anchors(self) -> list[str]:
        """The ids of the tensors to return, in the order given.

        Returns:
            The ids, each of them once.
        """
        return list(self._arts)

    def nAnchors(self) -> int:
        """The number of tensors to return.

        Returns:
            The length of `anchors`.
        """
        return len(self._arts)

    def isAnchored(self, tensor_id: str) -> bool:
        """Whether a step returns a tensor.

        Args:
            tensor_id: The tensor's id.

        Returns:
            True if the tensor is anchored.
        """
        return tensor_id in self._arts

    def art(self, tensor_id: str) -> AnchorReturnType:
        """The return type of an anchored tensor.

        Args:
            tensor_id: The tensor's id.

        Returns:
            Its return type.

        Raises:
            ValueRangeError: The tensor is not anchored.
        """
        if tensor_id not in self._arts:
            raise ValueRangeError(
                "PD508",
                f"tensor '{tensor_id}' is not anchored",
                accepted=", ".join(self._arts) or "nothing is anchored",
            )
        return self._arts[tensor_id]

    def __repr__(self) -> str:
        return f"DataFlow({self._batches_per_step}, {self._arts})"


def _by_id(
    anchors: Mapping[str, AnchorReturnType] | Iterable[str], default: AnchorReturnType | None
) -> dict[str, AnchorReturnType]:
    if isinstance(anchors, str):
        raise ArgumentError(
            "PD508", "the anchors are a list of ids", value=anchors, hint=f"write [{anchors!r}]"
        )
    if isinstance(anchors, Mapping):
        if default is not None:
            raise ArgumentError(
                "PD508", "anchorReturnType is for ids without a return type of their own"
            )
        arts = dict(anchors)
    else:
        arts = dict.fromkeys(anchors, default if default is not None else AnchorReturnType("All"))
    for tensor, art in arts.items():
        if not isinstance(tensor, str) or not isinstance(art, AnchorReturnType):
            raise ArgumentError(
                "PD508",
                "an anchor is a tensor's id with an AnchorReturnType",
                value={tensor: art},
            )
    return arts
