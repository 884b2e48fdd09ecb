"""A picture as text: boxes, words and arrows."""

from __future__ import annotations

from html import escape

BLUE, GREEN, ORANGE, PURPLE, GREY = "#dbe7fb", "#dcf1dc", "#fde6c8", "#ead9f5", "#eeeeee"


class Picture:
    """An SVG picture that grows as things are drawn into it.

    Args:
        width: Its width in pixels.
        height: Its height in pixels.
        title: What it shows, for those who cannot see it.
    """

    def __init__(self, width: float, height: float, title: str) -> None:
        self._parts = [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
                f'width="{width:g}" font-family="sans-serif" font-size="12" role="img">'
            ),
            f"<title>{escape(title)}</title>",
            (
                '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
                'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#666"/>'
                "</marker></defs>"
            ),
        ]

    def box(self, x: float, y: float, width: float, height: float, fill: str = "white") -> None:
        """Draws a box with its upper left corner at (x, y)."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" '
            f'fill="{fill}" stroke="#888"/>'
        )

    def words(
        self, x: float, y: float, text: str, *, place: str = "middle", size: int = 12
    ) -> None:
        """Writes a line at (x, y); ``place`` is start, middle or end."""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{place}" font-size="{size}" fill="#222">'
            f"{escape(text)}</text>"
        )

    def labelled(
        self, x: float, y: float, width: float, height: float, text: str, fill: str = "white"
    ) -> None:
        """Draws a box with a word in its middle."""
        self.box(x, y, width, height, fill)
        self.words(x + width / 2, y + height / 2 + 4, text)

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """Draws an arrow from (x1, y1) to (x2, y2), bent where the way is long."""
        middle = (y1 + y2) / 2
        path = f"M{x1:g} {y1:g}C{x1:g} {middle:g} {x2:g} {middle:g} {x2:g} {y2:g}"
        self._parts.append(
            f'<path d="{path}" fill="none" stroke="#666" stroke-width="0.9" '
            'marker-end="url(#tip)"/>'
        )

    def text(self) -> str:
        """The picture."""
        return "\n".join([*self._parts, "</svg>", ""])
