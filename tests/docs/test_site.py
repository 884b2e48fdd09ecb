"""The site builds without a warning, needs nothing from elsewhere, and its search finds errors."""

import ast
import re
import shutil
import sys
from html import unescape
from pathlib import Path

import pytest

from tests.distributed.jobs import run_command

ROOT = Path(__file__).parents[2]
# popdist_onnx is not among them: its part of the page is made from its list of names.
PAGES = {
    "popdist": "api",
    "popdist.exchange": "api",
    "popdist_torch": "api-torch",
    "popdist_torch.optim": "api-torch",
    "popdist_torch.horovod": "api-torch",
    "popdist_tf.keras": "api-tensorflow",
}
NOT_DESCRIBED = {
    "popdist.__version__": "a text",
    "popdist_torch.enums": "its names stand under the shorter paths",
    "popdist_torch.options": "its names stand under the shorter paths",
    "popdist_tf.keras.Average": "Horovod's",
    "popdist_tf.keras.Sum": "Horovod's",
    "popdist_tf.keras.shutdown": "Horovod's",
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    code, output = run_command(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", place],
        env={"NO_MKDOCS_2_WARNING": "1"},
    )
    assert (code, output) == (0, "")
    return place


def test_pages_load_nothing_from_elsewhere(site):
    loaded = r'<(?:script|img|iframe)[^>]+src="?(\w+:)?//|<link[^>]+href="?(\w+:)?//'
    for page in site.rglob("*.html"):
        assert not re.search(loaded, page.read_text()), page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(\w+:)?//|@import", style.read_text()), style


def test_links_to_programs_lead_to_pages_that_show_them(site):
    assert "class" in (site / "examples" / "torch_digits.html").read_text()
    assert 'href="examples/torch_digits.html"' in (site / "torch.html").read_text()


@pytest.mark.parametrize("package", PAGES)
def test_every_public_name_is_described(site, package):
    tree = ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text())
    (names,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    page = (site / f"{PAGES[package]}.html").read_text()
    described = set(re.findall(r'\bid="?([\w.]+)', page))
    assert {f"{package}.{name}" for name in names} - described <= NOT_DESCRIBED.keys()


@pytest.mark.skipif(BROWSER is None, reason=f"NO BROWSER: none of {', '.join(BROWSERS)} is on PATH")
@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("Couldn't find a loss in graph", "troubleshooting.html#pd303"),
        ("pd303", "troubleshooting.html#pd303"),
        ("scatterreduce", "onnx-operators.html"),
        ("not enough slots available", "troubleshooting.html#there-are-not-enough-slots"),
    ],
)
def test_the_search_of_pages_opened_as_files_finds_errors(site, tmp_path, words, page):
    found = search(site, tmp_path, words)
    assert any(page in one for one in found), found


@pytest.mark.skipif(BROWSER is None, reason=f"NO BROWSER: none of {', '.join(BROWSERS)} is on PATH")
@pytest.mark.parametrize(
    ("word", "page"),
    [("checkpoint", "checkpoints"), ("install", "install"), ("sbatch", "slurm")],
)
def test_the_search_shows_the_page_about_a_subject_first(site, tmp_path, word, page):
    assert Path(search(site, tmp_path, word)[0].partition("#")[0]).stem == page


def search(site, folder, words):
    """The addresses that the search of the site shows, in its order."""
    address = f"{Path(site / 'index.html').as_uri()}?q={words.replace(' ', '%20')}"
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}"]
    _, output = run_command(
        [BROWSER, *options, "--virtual-time-budget=10000", "--dump-dom", address]
    )
    links = re.findall(r'<a [^>]*class="md-search-result__link"[^>]*>', output)
    found = [re.search(r'href="([^"?]+)[^"#]*(#[\w-]+)?"', link) for link in links]
    return [unescape(one[1] + (one[2] or "")) for one in found if one]


@pytest.mark.skipif(BROWSER is None, reason=f"NO BROWSER: none of {', '.join(BROWSERS)} is on PATH")
def test_the_box_of_the_page_of_compatibility_finds_names(site, tmp_path):
    address = f"{Path(site / 'compatibility.html').as_uri()}?names=lambipu%20optimizers"
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    _, output = run_command(
        [BROWSER, *options, "--virtual-time-budget=5000", "--dump-dom", address]
    )
    assert re.search(r'role="status">3 of \d{4}<', output)
    opened = re.findall(r"<details[^>]*open[^>]*>", output)
    assert len(opened) == 2
    assert not any("names-hidden" in one for one in opened)
    groups = re.findall(r"<details[^>]*open.*?</details>", output, re.DOTALL)
    shown = re.findall(r'<tr(?: class="")?>\s*<td><code>([\w.]+)', "".join(groups))
    name = "LAMBIpuOptimizer"
    assert set(shown) == {f"keras.optimizers.{name}", f"keras.optimizers.lamb_optimizer.{name}"}
