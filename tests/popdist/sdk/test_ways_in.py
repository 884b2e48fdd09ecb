"""The three ways to the names leave a program as it is, but for the names."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from popdist import program_status
from popdist.errors import PopdistError
from popdist.sdk import permanent
from popdist.sdk.cli import main, run_program
from popdist.startup.environment import FOLDER
from tests.popdist.sdk.pythons import NAMES, ROOT, environment, passed, python, with_names

PLAIN = """
import atexit, multiprocessing, os, sys
def work(number):
    return number + 1
if __name__ == "__main__":
    print(sys.argv, sys.path[0], __name__, __spec__ and __spec__.name, __file__, __package__)
    print([path for path in sys.path if "popdist" in path and "startup" in path])
    print("sitecustomize" in sys.modules, sys.flags.dont_write_bytecode, sys.warnoptions)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [1, 2]))
    atexit.register(print, "at exit", work.__module__)
    if sys.argv[-1] == "fail":
        1 / 0
    sys.exit(7)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "program.py").write_text(PLAIN)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "tool.py").write_text(PLAIN)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["program.py", "a", "fail"],
        ["-m", "package.tool", "--flag"],
        ["-m", "package.nothing"],
        ["absent.py"],
    ],
    ids=["script", "module", "no-module", "no-script"],
)
def test_a_program_runs_as_under_python(folder, words):
    own, plain = (python("-B", *way, *words, cwd=folder) for way in (NAMES, ()))
    assert (own.returncode, own.stdout) == (plain.returncode, plain.stdout)
    assert own.stderr == plain.stderr


def test_the_names_reach_what_a_program_starts(tmp_path):
    code = """if True:
        import multiprocessing, subprocess, sys
        def name(_):
            import popart
            return popart.__name__
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(name, [0]), flush=True)
            child = [sys.executable, "-c", "import popart; print(popart.__name__)"]
            subprocess.run(child, check=True)
    """
    (tmp_path / "program.py").write_text(code)
    found = passed(python(*NAMES, "program.py", cwd=tmp_path))
    assert found == "['popdist_onnx']\npopdist_onnx\n"


def test_the_environments_own_sitecustomize_runs_as_before(tmp_path):
    executable, site = environment(tmp_path / "venv")
    (site / "sitecustomize.py").write_text("import sys; sys.mine = __name__, __file__")
    code = "import popart, sitecustomize, sys; print(sys.mine, sitecustomize.__file__, *sys.path)"
    found = passed(python("-c", code, executable=executable, env=with_names()))
    file = str(site / "sitecustomize.py")
    assert found.startswith(f"('sitecustomize', '{file}') {file} ")
    assert FOLDER not in found
    (site / "sitecustomize.py").write_text("raise ValueError('mine')")
    plain = python("-c", "print(3)", executable=executable)
    own = python("-c", "print(3)", executable=executable, env=with_names())
    assert (own.stdout, own.stderr) == (plain.stdout, plain.stderr)


def test_names_that_nobody_uses_change_nothing():
    # absl puts a finder of its own before the last one.
    code = """if True:
        import json, sys, absl.flags, torch, tensorflow
        finders = [getattr(one, "__name__", type(one).__name__) for one in sys.meta_path]
        print(json.dumps([sorted(sys.modules), sys.path, finders]))
    """
    with ThreadPoolExecutor() as pool:
        both = pool.map(lambda env: passed(python("-c", code, env=env)), [None, with_names()])
        (modules, path, finders), (modules2, path2, finders2) = map(json.loads, both)
    assert set(modules2) ^ set(modules) == {
        "popdist.sdk.finder",
        "popdist.sdk.removed",
        "popdist.startup.imports",
        "torch._six",  # which torch had
    }
    assert path2 == path
    assert [one for one in finders2 if one != "Finder"] == finders
    assert finders2.count("Finder") == 2  # of the SDK's modules, and of those that are completed


@pytest.mark.parametrize("words", [["-I"], ["-BE"], ["-W", "ignore", "-S"]])
def test_a_python_that_would_ignore_the_names_is_refused(words):
    for order in ([*words, *NAMES, "-c", "0"], [*NAMES, *words, "-c", "0"]):
        if words == ["-I"] and order[0] == "-I":
            continue  # it does not find this checkout
        ended = python(*order)
        assert ended.returncode == 2
        assert "PD452" in ended.stderr
        assert "Traceback" not in ended.stderr
    assert passed(python(*NAMES, "-c", "import sys; print(sys.argv)", "-I")) == "['-c', '-I']\n"


def test_the_guard_sees_the_program_and_not_what_starts_it():
    fd = os.memfd_create(program_status.NAME, 0)
    code = "import os, sys; print(os.pread(int(sys.argv[1]), 256, 0).strip(b'\\0'))"
    env = {program_status.VARIABLE: str(fd)}
    found = passed(python(*NAMES, "-c", code, str(fd), env=env, pass_fds=[fd]))
    assert found == "b''\n"
    os.close(fd)


def test_help_where_nothing_is_asked(capsys):
    assert main([]) == run_program([]) == run_program(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "popdist-sdk" in shown
    assert "program.py" in shown


def command(executable, *words):
    code = "import sys; from popdist.sdk.cli import main; sys.exit(main())"
    return python("-c", code, *words, executable=executable)


def test_the_names_can_be_made_permanent_and_taken_back(tmp_path):
    executable, site = environment(tmp_path / "venv")
    before = sorted(site.iterdir())
    asking = ["-I", "-c", "import popart; print(popart.__name__)"]
    assert command(executable, "status").returncode == 1
    assert python(*asking, executable=executable).returncode == 1

    written = passed(command(executable, "enable"))
    file = site / permanent.FILE
    assert str(file) in written
    assert passed(command(executable, "enable")) == f"enabled already, by {file}\n"
    status = passed(command(executable, "status"))
    assert "poptorch is popdist_torch" in status
    assert passed(python(*asking, executable=executable)) == "popdist_onnx\n"
    both = passed(
        python(
            "-c",
            "import sys; print(sum('.finder.Finder' in str(one) for one in sys.meta_path))",
            executable=executable,
            env=with_names(),
        )
    )
    assert both == "1\n"

    assert str(file) in passed(command(executable, "disable"))
    assert sorted(site.iterdir()) == before
    assert "not enabled" in passed(command(executable, "disable"))
    assert python(*asking, executable=executable).returncode == 1


def test_nothing_is_enabled_where_it_would_not_work(tmp_path):
    executable, site = environment(tmp_path / "venv", knows_popdist=False)
    ended = command(executable, "enable")
    assert ended.returncode == 2
    assert "pip install" in ended.stderr
    assert not (site / permanent.FILE).exists()

    (site / "popdist-checkout.pth").write_text(f"{ROOT}\n")
    (site / "poptorch").mkdir()
    (site / "poptorch" / "__init__.py").write_text("")
    ended = command(executable, "enable")
    assert ended.returncode == 2
    assert "the SDK itself is installed" in ended.stderr
    assert str(site / "poptorch") in ended.stderr
    assert "the SDK's own" in command(executable, "status").stdout


def test_enable_says_why_it_cannot(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(permanent, "place", lambda: tmp_path / "absent" / permanent.FILE)
    assert main(["enable"]) == 2
    assert "cannot be changed" in capsys.readouterr().err
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    with pytest.raises(PopdistError, match="the system's"):
        permanent.enable()


def test_a_real_module_below_a_real_package_is_found(tmp_path, monkeypatch):
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("raise ValueError('never imported')")
    (tmp_path / "horovod" / "popart.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert permanent.real_modules() == {"horovod.popart": str(tmp_path / "horovod" / "popart.py")}
