"""Options about what is shown and kept of a job."""

from __future__ import annotations

from popdist.poprun.command.options.kinds import BOOLEAN, DIRECTORY, FILE, INDEX, one_of
from popdist.poprun.command.options.option import Option

_GROUP = "Output"

OPTIONS: tuple[Option, ...] = (
    Option("print-topology", BOOLEAN, "Print the topology table", _GROUP, default=False),
    Option(
        "only-output-from-instance",
        INDEX,
        "Suppress the output of all other instances; a failing one is still shown",
        _GROUP,
    ),
    Option(
        "tag-output",
        BOOLEAN,
        "Put the instance and the stream before each line",
        _GROUP,
        default=False,
        since="popdist",
    ),
    Option(
        "output-filename",
        DIRECTORY,
        "A directory that also receives each instance's output, as 1/rank.<index>/{stdout,stderr}",
        _GROUP,
        since="popdist",
    ),
    Option(
        "log-dir",
        DIRECTORY,
        "A directory in which every run keeps a folder of its own with all logs",
        _GROUP,
        since="popdist",
    ),
    Option("json", FILE, "Write how the job went to this file, as JSON", _GROUP, since="popdist"),
    Option(
        "timeline",
        FILE,
        "Write one merged trace of Horovod's timelines to this file, for Perfetto",
        _GROUP,
        since="popdist",
    ),
    Option(
        "status",
        one_of("auto", "always", "never"),
        "The live status line while the job runs; auto shows it on a terminal",
        _GROUP,
        default="auto",
        since="popdist",
    ),
    Option(
        "color",
        one_of("auto", "always", "never"),
        "Coloured tags and messages; auto colours on a terminal",
        _GROUP,
        default="auto",
        since="popdist",
    ),
)
