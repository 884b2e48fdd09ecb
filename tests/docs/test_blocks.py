"""Every block of code of every page runs, in the order of the page, or says why it cannot."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from popdist.errors import PopdistError
from popdist.poprun.options.parser import parse
from popdist.poprun.plan.job import make_job
from tests.distributed.jobs import ROOT, run_command
from tests.distributed.warm import folder_of_python, framework_in
from tests.docs.blocks import PAGES, blocks_of, commands_of, indented, shows
from tests.docs.checked import BESIDE_PYTHON, ENVIRON, check

# Tests of their own run the programs of these, and look at what they print.
ELSEWHERE = {"README.md", "notebooks.md"}
RUNNING = [page for page in PAGES if page.name not in ELSEWHERE]
NEEDS = {"from-tf-estimator": "tensorflow_estimator"}
LANGUAGES = {"python", "console", "toml", "text"}
SHELL = {
    "PATH": f"{BESIDE_PYTHON}:{os.environ['PATH']}",
    "PYTHONPATH": f"{ROOT}",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",  # a machine of one core has one slot
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "PYTHONUNBUFFERED": "",  # else ranks that print at once end their lines late, and share them
}


def names(pages):
    return [page.stem for page in pages]


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_every_block_has_a_fence_and_a_language(page):
    assert not indented(page)
    assert {block.language for block in blocks_of(page)} <= LANGUAGES


@pytest.mark.parametrize("page", RUNNING, ids=names(RUNNING))
def test_the_page_runs(page, tmp_path, monkeypatch):
    if page.stem in NEEDS and find_spec(NEEDS[page.stem]) is None:
        pytest.skip(f"{page.name} needs {NEEDS[page.stem]}, which ended with TensorFlow 2.15")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}  # a page's blocks continue each other
    for block in blocks_of(page):
        if block.file is not None:
            Path(block.file).write_text(block.text)
            if block.language == "toml":
                make_job(parse([f"--config={block.file}"]), ENVIRON)
        elif block.not_run is not None:
            continue
        elif block.language == "python":
            exec(compile(block.text, block.place, "exec"), namespace)  # noqa: S102
        elif block.language == "console":
            run(block)


def environment_of(words):
    """The environment of a command, whose programs need not import their framework."""
    framework = framework_in(*texts_of(words))
    first = [] if framework is None else [folder_of_python(framework)]
    return {**SHELL, "PATH": os.pathsep.join([*first, SHELL["PATH"]])}


def texts_of(words):
    """The programs of a command that the page has written."""
    programs = [Path(word) for word in words.split() if word.endswith(".py")]
    return [program.read_text() for program in programs if program.exists()]


# What a process says, rarely, when gloo tears its threads down after the program's last line. That
# is PyTorch's own, under torchrun and in programs of accelerate and transformers, so these have a
# second try. Programs that use Horovod have none.
TORN_DOWN = "terminate called without an active exception"


def run(block):
    for command in commands_of(block):
        environ = environment_of(command.words)
        code, output = start(command.words, environ)
        if code and TORN_DOWN in output and uses_gloo(command.words):
            code, output = start(command.words, environ)
        assert code == 0, f"{block.place}: {command.words}\n{output}"
        assert shows(command.output, output), f"{block.place}: {command.words}\n{output}"


def uses_gloo(words):
    return words.startswith("torchrun ") or any(
        f"from {name} import" in text
        for name in ("accelerate", "transformers")
        for text in texts_of(words)
    )


def start(words, environ):
    return run_command(["bash", "-c", words], env=environ, cwd=Path.cwd(), timeout=240)


def test_what_does_not_run_is_understood_and_has_a_reason(capsys):
    told = []
    for page in PAGES:
        blocks = blocks_of(page)
        files = {block.file for block in blocks}
        for block in blocks:
            if block.not_run is not None:
                told.append(f"  {block.place}: {block.not_run}")
                if block.language == "console":
                    for command in commands_of(block):
                        check(command.words, files)
                elif block.language == "python":
                    compile(block.text, block.place, "exec")
    with capsys.disabled():
        print("\nblocks that do not run here:", *told, sep="\n")  # noqa: T201 - for people


def test_a_shown_output_is_compared():
    assert shows(("a", "b ... d"), "0\na\n1\nb c d\n2")
    assert not shows(("a", "b"), "b\na")
    assert not shows(("a.c",), "abc")


@pytest.mark.parametrize(
    "command",
    [
        "poprun --num-replica-count 2 true",
        "poprun doctor --jsn",
        "python -m popdist_nothing",
        "python -m benchmarks --onyl torch",
        "python nowhere.py",
        "make nothing",
        "pip install 'popdist[nothing]'",
        "mpirun --nope 2 python train.py",
        "no-such-program",
    ],
)
def test_a_wrong_command_is_found(command):
    with pytest.raises((AssertionError, PopdistError, SystemExit)):
        check(command, {"train.py"})
