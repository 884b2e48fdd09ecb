"""Whether a new optimizer fits the graph that an old one was built into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from popdist_onnx.optimizers.errors import OptimizerReplacementError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from popdist_onnx.optimizers.optimizer import Optimizer
    from popdist_onnx.optimizers.values import OptimizerValue

_HINT = "make what changes non-constant from the start, as (value, False), or build a new session"


def check_replacement(old: Optimizer, new: Optimizer) -> None:
    """Refuses an optimizer that would need another graph.

    It may differ in the numbers of non-constant settings only: kind, structure, constness, weights
    with settings of their own, constant numbers and clipping stay.

    Args:
        old: The optimizer that the graph was made with.
        new: The one to take its place.

    Raises:
        OptimizerReplacementError: The first difference that matters.
    """
    for what, before, after in _differences(old, new):
        raise OptimizerReplacementError(
            "PD542",
            f"New optimizer is not a valid replacement. {what}",
            value=after,
            accepted=str(before),
            hint=_HINT,
        )


def _differences(old: Optimizer, new: Optimizer) -> Iterator[tuple[str, object, object]]:
    if old.published != new.published:
        yield "It is of another type", old.published, new.published
        return
    for name, before in old.form().items():
        if (after := new.form()[name]) != before:
            yield f"Its {name} differs", before, after
    if old.getClipNormSettings() != new.getClipNormSettings():
        yield (
            "Its clip norm settings differ",
            old.getClipNormSettings(),
            new.getClipNormSettings(),
        )
    for setting in old.settings:
        before_map, after_map = old.value_map(setting.key), new.value_map(setting.key)
        yield from _unlike(f"default {setting.key}", before_map.default, after_map.default)
        own, others = set(before_map.specifics), set(after_map.specifics)
        if own != others:
            yield (
                f"Other weights have a {setting.key} of their own",
                sorted(own),
                sorted(others),
            )
            return
        for weight in sorted(own):
            yield from _unlike(
                f"{setting.key} of {weight}", before_map.get(weight), after_map.get(weight)
            )


def _unlike(
    name: str, before: OptimizerValue, after: OptimizerValue
) -> Iterator[tuple[str, object, object]]:
    if before.isConst() != after.isConst():
        words = {True: "constant", False: "not constant"}
        yield f"The constness of {name} differs", words[before.isConst()], words[after.isConst()]
    elif not before.validReplacement(after):
        yield f"The constant {name} differs", before.val(), after.val()
