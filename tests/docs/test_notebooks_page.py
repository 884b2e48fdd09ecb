"""The page about notebooks is one: its blocks run as cells of a real kernel."""

import os
import signal
import threading
import time
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.distributed.jobs import ROOT
from tests.docs.blocks import blocks_of, shows

PAGE = ROOT / "docs" / "notebooks.md"
WAITING = """
import popdist
def wait(folder):
    import os, pathlib, time
    (pathlib.Path(folder) / str(os.getpid())).touch()
    time.sleep(600)
popdist.run(wait, args=(FOLDER,), num_instances=2)
"""


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def make(cells):
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
        return NotebookClient(book, timeout=200, resources={"metadata": {"path": str(tmp_path)}})

    return make


def text_of(cell):
    """What stands under a cell."""
    return "".join(
        one["text"] if one.output_type == "stream" else one["data"]["text/plain"] + "\n"
        for one in cell.outputs
    )


def test_the_page_runs_as_a_notebook_and_shows_what_it_says(notebook):
    blocks = blocks_of(PAGE)
    cells = [one.text for one in blocks if one.language == "python"]
    wanted = [one.text.splitlines() for one in blocks if one.language == "text"]
    client = notebook(cells)
    client.execute()
    shown = [text_of(cell) for cell in client.nb.cells]
    assert len(cells) == len(wanted) == 3
    for expected, text in zip(wanted, shown, strict=True):
        assert shows(expected, text), text
    assert "poprun topology" in shown[0]
    # The bar has moved in its place, and has come to its end.
    assert shown[1].count("\r") > 2
    assert "60/60" in shown[1]


def test_an_interrupt_of_the_kernel_ends_the_job(notebook, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    client = notebook([f"FOLDER = {str(marks)!r}{WAITING}", "print('the kernel lives')"])

    def interrupt():
        until = time.monotonic() + 60
        while len(list(marks.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(client.km.provisioner.process.pid, signal.SIGINT)

    with client.setup_kernel():
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(CellExecutionError, match="KeyboardInterrupt"):
            client.execute_cell(client.nb.cells[0], 0)
        thread.join()
        assert text_of(client.execute_cell(client.nb.cells[1], 1)) == "the kernel lives\n"
    pids = [path.name for path in marks.iterdir()]
    assert len(pids) == 2
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
