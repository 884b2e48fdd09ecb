"""Configuration files: read, refused, written and read again."""

import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from popdist.errors import UsageError
from popdist.poprun.options.parser import parse
from popdist.poprun.options.serialize import config_text, export_config
from popdist.poprun.secrets import HIDDEN, hide_words


@pytest.fixture
def config(tmp_path):
    def write(content):
        path = tmp_path / "job.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return f"--config={path}"

    return write


def test_types_of_toml(config):
    line = parse(
        [
            config(
                "num_replicas = 4\nprint-topology = true\nupdate-partition = 0\n"
                'timeout = 1.5\nmpi-local-args = "-x A"\nhost = "h[1-2]"\n'
                'program = ["python3", "train.py", "--lr", "0.1"]\n'
                '[env]\nA = "b c"\nN = 3\nHOME = true\n'
            )
        ]
    )
    assert line.program == ("python3", "train.py", "--lr", "0.1")
    values = line.values
    assert (values["num-replicas"], values["print-topology"], values["timeout"]) == (4, True, 1.5)
    assert values["update-partition"] is False
    assert (values["mpi-local-args"], values["host"]) == (("-x A",), "h[1-2]")
    assert set(values["env"]) == {"A=b c", "N=3", "HOME"}


def test_a_typed_program_replaces_the_files(config):
    assert parse([config('program = ["a"]\n'), "b", "c"]).program == ("b", "c")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("num-replicas = \n", "not TOML"),
        ("num-replicas = 'x'\n", "not accepted"),
        ("num-replicas = true\n", "not accepted"),
        ("num-replicas = [1]\n", "a type it cannot have"),
        ("num-replicas = 2026-01-01\n", "a type it cannot have"),
        ("num-replica = 1\n", "did you mean num-replicas"),
        ("num-replicas = 1\nnum_replicas = 2\n", "there twice"),
        ("[job]\nx = 1\n", "is not an option"),
        ("[env]\n[env.A]\nB = 1\n", "a type it cannot have"),
        ("config = 'x'\n", "cannot be set in a file"),
        ("help = true\n", "cannot be set in a file"),
        ("program = 'train.py'\n", "not a list of words"),
        ("program = []\n", "not a list of words"),
        ("program = ['a', 1]\n", "not a list of words"),
        ("a = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("num-replicas = " + "1" * 5000, "not"),
        (b"\xff\xfe", "not TOML"),
        ("#" * (1 << 20) + "\n", "larger than 1 MiB"),
    ],
)
def test_what_a_file_cannot_say(config, content, what):
    with pytest.raises(UsageError, match=what) as caught:
        parse([config(content), "p"])
    assert caught.value.code == "PD106"


@pytest.mark.parametrize("path", ["/no/such/file", "/", "/dev/null/x"])
def test_a_file_that_cannot_be_read(path):
    with pytest.raises(UsageError, match="cannot be read"):
        parse([f"--config={path}", "p"])


CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
WORDS = st.lists(st.text(CHARACTERS, min_size=1), min_size=1)


@given(WORDS, st.integers(1, 99), st.booleans(), st.text(max_size=20).filter(str.strip))
def test_what_is_written_reads_the_same(program, number, flag, text):
    text = text.replace("\0", "").strip() or "x"
    line = parse(
        [f"--num-replicas={number}", f"--tag-output={'yes' if flag else 'no'}", "-v",
         f"--executable-cache-path={text}", f"--mpi-local-args={text}", "--timeout=90",
         "--", *program]
    )  # fmt: skip
    assume(HIDDEN not in hide_words([*program, text]))
    content = config_text(line)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.toml"
        path.write_bytes(content.encode())
        again = parse([f"--config={path}"])
    assert again.program == line.program
    assert {n: again.values[n] for n in line.given} == {n: line.values[n] for n in line.given}


def test_secrets_are_not_written():
    line = parse(["-x", "A_TOKEN=s3cr3t", "-x", "B=1", "p"])
    assert config_text(line).splitlines() == [
        'env = ["A_TOKEN", "B=1"]',
        'program = ["p"]',
        "# The value of A_TOKEN looks like a secret: export it before using this.",
    ]
    for words in (["--mpi-local-args=-x A_TOKEN=s3cr3t", "p"], ["p", "--password", "s3cr3t"]):
        with pytest.raises(UsageError, match="secret") as caught:
            config_text(parse(words))
        assert "s3cr3t" not in str(caught.value)


def test_a_file_is_replaced_only_on_request(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text("precious")
    path.chmod(0o640)
    line = parse(["-np", "2", "p"])
    with pytest.raises(UsageError, match="--overwrite-config=yes"):
        export_config(line, str(path), overwrite=False)
    assert path.read_text() == "precious"
    export_config(line, str(path), overwrite=True)
    assert path.read_text() == 'num-instances = 2\nprogram = ["p"]\n'
    assert stat.S_ISREG(path.stat().st_mode)
    assert [one.name for one in tmp_path.iterdir()] == ["job.toml"]
    with pytest.raises(UsageError, match="cannot be written"):
        export_config(line, str(tmp_path / "no" / "file"), overwrite=True)
