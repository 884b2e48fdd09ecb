"""Which settings of an optimizer are compiled into the model, and which may change later."""

from __future__ import annotations

from popdist_torch.errors import OptimizerError


class VariableAttributes:
    """``optimizer.variable_attrs``.

    By the published rule attributes are variable where the program gave them to the constructor,
    and constant otherwise. A host can change them all; what it refuses to change are attributes
    that the program itself marked as constant.

    Args:
        constant: Whether each attribute is constant.
    """

    def __init__(self, constant: dict[str, bool]) -> None:
        self._constant = constant
        self._marked: set[str] = set()

    @property
    def marked(self) -> frozenset[str]:
        """What the program marked as constant."""
        return frozenset(self._marked)

    def isConstant(self, attr: str) -> bool:
        """Whether an attribute is constant.

        Args:
            attr: Its name.

        Returns:
            True if so.

        Raises:
            OptimizerError: There is no such attribute.
        """
        return self._constant[self._known(attr)]

    def markAsConstant(self, attr: str) -> None:
        """Makes an attribute constant: changing it later is an error.

        Args:
            attr: Its name.

        Raises:
            OptimizerError: There is no such attribute.
        """
        self._constant[self._known(attr)] = True
        self._marked.add(attr)

    def markAsVariable(self, attr: str) -> None:
        """Makes an attribute variable.

        Args:
            attr: Its name.

        Raises:
            OptimizerError: There is no such attribute.
        """
        self._constant[self._known(attr)] = False
        self._marked.discard(attr)

    def _known(self, attr: str) -> str:
        if attr not in self._constant:
            raise OptimizerError(
                "PD306",
                "the optimizer has no such attribute",
                value=attr,
                accepted=", ".join(sorted(self._constant)),
            )
        return attr
