"""What looks like a secret is hidden, and what does not is left alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from popdist.poprun.secrets import HIDDEN, hide, hide_assignment, hide_words, is_secret

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "password", "--db-password", "apiKey",
     "accessToken", "MY_CREDENTIALS", "SSH_PASSPHRASE", "token", "private-key", "NPM_AUTH",
     "MYSQL_PWD", "PG_PASSWORD", "OPENAI_KEY", "ANTHROPIC_API_KEY",
     "DB_PASS", "--pass", "SMTP_PASS", "SSH_KEY", "AZURE_STORAGE_KEY", "GITHUB_TOKEN",
     "GOOGLE_API_KEY", "REDIS_PASSWORD", "JWT_SECRET", "DJANGO_SECRET_KEY", "SLACK_BOT_TOKEN",
     "TWILIO_AUTH_TOKEN", "NGC_API_KEY", "COMET_API_KEY", "NEPTUNE_API_TOKEN",
     "HUGGING_FACE_HUB_TOKEN",
     "VAULT_TOKEN", "AWS_SESSION_TOKEN", "SERVICE_KEY", "STRIPE_KEY",
     "clientSecret", "--auth", "--hf-token", "--access-key", "docker_passwd", "MASTER_KEY",
     "SESSION_COOKIE"],
)  # fmt: skip
def test_names_of_secrets(name):
    assert is_secret(name)
    assert hide_assignment(f"{name}=x y") == f"{name}={HIDDEN}"


@pytest.mark.parametrize(
    "name",
    ["PATH", "PWD", "OLDPWD", "--max-tokens", "NUM_TOKENS", "TOKENIZER", "--tokens-per-batch",
     "KEYBOARD", "author", "--num-replicas", "POPDIST_DEVICE_ID", "monkey", "_PWD",
     "--pass-through",
     "two_pass", "--max-pass", "sort_key", "primary_key", "--key", "bypass", "compass",
     "SSH_KEY_FILE",
     "--passes", "authors", "MAX_NEW_TOKENS", "pad_token", "token_type_ids"],
)  # fmt: skip
def test_other_names(name):
    assert not is_secret(name)
    assert hide_assignment(f"{name}=12") == f"{name}=12"


def test_keys_of_known_forms_are_hidden_wherever_they_stand():
    for key in ("ghp_" + "a1" * 18, "hf_" + "Ab" * 17, "AKIA" + "Z" * 16, "sk-" + "9a" * 20):
        assert hide(f"use {key} now") == f"use {HIDDEN} now"
    assert hide("https://me:pa55@host/x") == f"https://me:{HIDDEN}@host/x"
    assert hide("[PD100] seen: 'DB_PASSWORD=x'") == f"[PD100] seen: 'DB_PASSWORD={HIDDEN}'"
    assert hide("http://host:8080/x@y") == "http://host:8080/x@y"


def test_secrets_in_urls_and_headers():
    assert hide("git clone https://glsometoken@host/x") == f"git clone https://{HIDDEN}@host/x"
    assert hide("ssh://git@github.com/x") == "ssh://git@github.com/x"
    assert hide("-H 'Authorization: Bearer abc.def'") == f"-H 'Authorization: Bearer {HIDDEN}'"
    assert hide("authorization: s3cr3t") == f"authorization: {HIDDEN}"
    assert hide("Bearer abcdefgh12") == f"Bearer {HIDDEN}"
    assert hide("the bearer of news") == "the bearer of news"


def test_the_command_line_of_this_process_loses_its_secrets():
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1));"
        "from popdist.poprun.secrets import hide_own_arguments; hide_own_arguments();"
        "print(open('/proc/self/cmdline').read().replace(chr(0), '|'), sys.argv[1:])"
    )
    words = ["-x", "A_TOKEN=s3cr3t", "--password", "hunter2", "-np", "2", "https://me:pa55@host/x"]
    done = subprocess.run(
        [sys.executable, "-c", program, str(ROOT), *words],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    seen, _, own = done.stdout.partition(" [")
    assert seen.endswith("|-x|A_TOKEN=******|--password|*******|-np|2|https://me:***********|")
    assert "A_TOKEN=s3cr3t" in own  # what the program itself reads


def test_a_variable_behind_an_option_is_hidden_with_all_its_words():
    assert hide_assignment("--env=A_TOKEN=s3 cr=et") == f"--env=A_TOKEN={HIDDEN}"
    assert hide_assignment("-x=A=b c") == "-x=A=b c"
    assert hide("--env=A_TOKEN='s3 cret' B=1") == f"--env=A_TOKEN={HIDDEN} B=1"
    assert hide("A_TOKEN=") == "A_TOKEN="


def test_long_texts_take_no_more_than_their_length():
    for text in (
        "x" * 10**6,
        "num" * 10**5 + "=1",
        "a.b-c=" * 10**5,
        "eyJ-" * 10**5,
        "h://" * 10**5,
        "-" * 10**6,
    ):
        assert hide_words([text, text])[0] == text


def test_command_lines():
    words = [
        "train.py",
        "--api-key",
        "abc",
        "--lr=1",
        "--password=x",
        "-x A_TOKEN=b C=d",
        "--token",
    ]
    assert hide_words(words) == [
        "train.py", "--api-key", HIDDEN, "--lr=1", f"--password={HIDDEN}",
        f"-x A_TOKEN={HIDDEN} C=d", "--token",
    ]  # fmt: skip


def test_a_switch_with_a_secret_sounding_name_does_not_hide_the_next_option():
    assert hide_words(["--use-auth", "--epochs", "3"]) == ["--use-auth", "--epochs", "3"]
