"""Options about the launcher itself: help, configuration, what it says."""

from __future__ import annotations

from popdist.poprun.command.options.kinds import BOOLEAN, FILE, FLAG, NAME, TEXT, one_of
from popdist.poprun.command.options.option import Option

_GROUP = "General"
_CONFIGURATION = "Configuration and other forms of the job"

OPTIONS: tuple[Option, ...] = (
    Option(
        "help", FLAG, "Show this help and exit", _GROUP, default=0, aliases=("-h",), typed_only=True
    ),
    Option(
        "version",
        FLAG,
        "Show the version and exit",
        _GROUP,
        default=0,
        typed_only=True,
        since="3.0",
    ),
    Option(
        "version-format",
        one_of("text", "full-text", "full-json"),
        "How --version shows it; the full forms have what it depends on",
        _GROUP,
        default="text",
        typed_only=True,
        since="3.0",
    ),
    Option("verbose", FLAG, "Say what is done; -vv says everything", _GROUP, 0, aliases=("-v",)),
    Option("vv", FLAG, "Very verbose output, the same as -vv", _GROUP, 0, aliases=("-vv",)),
    Option(
        "dry-run",
        BOOLEAN,
        "Show the topology, where each value comes from and the command, and start nothing",
        _GROUP,
        default=False,
        since="popdist",
    ),
    Option(
        "allow-run-as-root",
        BOOLEAN,
        "Whether root may run a job; instances then run as root too",
        _GROUP,
        default=True,
        since="3.0",
    ),
    Option(
        "completion",
        one_of("bash", "zsh"),
        'Print a completion script and exit: eval "$(poprun --completion bash)"',
        _GROUP,
        typed_only=True,
        since="popdist",
    ),
    Option(
        "config",
        FILE,
        "Read options from a TOML file; the environment and the command line win over it",
        _CONFIGURATION,
        aliases=("--import-config",),
        since="3.0",
    ),
    Option(
        "export-config",
        FILE,
        "Write the options and the program to a TOML file for --config",
        _CONFIGURATION,
        typed_only=True,
        since="3.0",
    ),
    Option(
        "overwrite-config",
        BOOLEAN,
        "Whether --export-config may replace a file",
        _CONFIGURATION,
        default=False,
        typed_only=True,
        since="3.0",
    ),
    Option(
        "emit",
        one_of("mpijob"),
        "Print the job as a manifest for Kubernetes (a Kubeflow MPIJob), and start nothing",
        _CONFIGURATION,
        typed_only=True,
        since="popdist",
    ),
    Option(
        "emit-image",
        TEXT,
        "The container image that --emit names",
        _CONFIGURATION,
        since="popdist",
    ),
    Option(
        "emit-name",
        NAME,
        "The name of the job that --emit writes",
        _CONFIGURATION,
        shown_default="popdist-<program>",
        since="popdist",
    ),
)
