"""What MkDocs does beyond its configuration: pages of programs, and the order of search results.

The pages link to ``../examples/NAME.py``, which works in the checkout. In the site the same link
leads to a page that shows the program.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, InclusionLevel

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
BOOSTS = {
    "checkpoints": 4,
    "quickstart": 2,
    # Long lists of names and files, in which nearly every word occurs.
    "compatibility": 0.5,
    "programs": 0.2,
    "public-tests": 0.2,
}
"""Pages that the search shows before or after others."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for every program of ``examples/``.

    Args:
        files: What the site is made of.
        config: The site's configuration.

    Returns:
        The same, with those pages.
    """
    for program in sorted((ROOT / "examples").glob("*.py")):
        page = File.generated(config, f"examples/{program.stem}.md", content=_shown(program))
        page.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Lets links to programs lead to their pages, and sets the page's place in search results.

    Args:
        markdown: The page's text.
        page: The page.

    Returns:
        The text with links of the site.
    """
    boost = BOOSTS.get(page.file.name)
    if boost is not None:
        page.meta["search"] = {"boost": boost}
    return re.sub(r"\]\(\.\./examples/(\w+)\.py\)", r"](examples/\1.md)", markdown)


_KEY, _CLEAR_KEY = "e=e+s+o.id}", 'e=e+s+o.id+";"}'
"""lunr takes a node with an edge "a" to node 123 for one with edges "a" to 1 and "2" to 3, as it
puts no mark between them. Then words are lost, and searches for their beginnings fail: here all for
words with a, p or u."""


def on_post_build(config: MkDocsConfig) -> None:
    """Mends the search's index.

    Args:
        config: The site's configuration.

    Raises:
        ValueError: The theme has another search by now.
    """
    [worker] = Path(config.site_dir).glob("assets/javascripts/workers/search.*.min.js")
    script = worker.read_text(encoding="utf-8")
    if script.count(_KEY) != 1:
        raise ValueError(f"{worker.name}: look whether lunr's TokenSet.toString still needs a mend")
    worker.write_text(script.replace(_KEY, _CLEAR_KEY), encoding="utf-8")


def _shown(program: Path) -> str:
    text = program.read_text(encoding="utf-8")
    summary = (ast.get_docstring(ast.parse(text)) or program.stem).partition("\n")[0]
    return f"# {program.name}\n\n{summary}\n\n```python\n{text}```\n"
