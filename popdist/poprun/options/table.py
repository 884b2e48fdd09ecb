"""Options about the launcher itself: help, configuration, what it says."""

from __future__ import annotations

from popdist.poprun.options.types import (
    BOOLEAN,
    COUNT,
    DIRECTORY,
    FILE,
    FLAG,
    HOSTS,
    INDEX,
    INSTANCES,
    NAME,
    PORT,
    SECONDS,
    TEXT,
    Option,
    one_of,
)

_GENERAL_GROUP = "General"
_CONFIGURATION = "Configuration and other forms of the job"

_GENERAL: tuple[Option, ...] = (
    Option(
        "help",
        FLAG,
        "Show this help and exit",
        _GENERAL_GROUP,
        default=0,
        aliases=("-h",),
        typed_only=True,
    ),
    Option(
        "version",
        FLAG,
        "Show the version and exit",
        _GENERAL_GROUP,
        default=0,
        typed_only=True,
        since="3.0",
    ),
    Option(
        "version-format",
        one_of("text", "full-text", "full-json"),
        "How --version shows it; the full forms have what it depends on",
        _GENERAL_GROUP,
        default="text",
        typed_only=True,
        since="3.0",
    ),
    Option(
        "verbose", FLAG, "Say what is done; -vv says everything", _GENERAL_GROUP, 0, aliases=("-v",)
    ),
    Option("vv", FLAG, "Very verbose output, the same as -vv", _GENERAL_GROUP, 0, aliases=("-vv",)),
    Option(
        "dry-run",
        BOOLEAN,
        "Show the topology, where each value comes from and the command, and start nothing",
        _GENERAL_GROUP,
        default=False,
        since="popdist",
    ),
    Option(
        "allow-run-as-root",
        BOOLEAN,
        "Whether root may run a job; instances then run as root too",
        _GENERAL_GROUP,
        default=True,
        since="3.0",
    ),
    Option(
        "completion",
        one_of("bash", "zsh"),
        'Print a completion script and exit: eval "$(poprun --completion bash)"',
        _GENERAL_GROUP,
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


# Options about machines: which, how they are reached, and where instances are bound on them.


_HOSTS_GROUP = "Hosts"
_PLACEMENT = "Placement on a host"

_HOSTS: tuple[Option, ...] = (
    Option(
        "host",
        HOSTS,
        "A comma-separated list of hosts: name, name:slots or name[0-2,4]",
        _HOSTS_GROUP,
        shown_default="the hosts of the Slurm allocation, else this machine",
        aliases=("-H",),
        excludes="hostfile",
    ),
    Option(
        "hostfile",
        FILE,
        "A file with one host a line: name, name:slots or name slots=n",
        _HOSTS_GROUP,
        excludes="host",
        since="3.0",
    ),
    Option(
        "host-subnet",
        TEXT,
        "The network by which hosts reach each other, as 10.1.0.0/16; several with commas",
        _HOSTS_GROUP,
        shown_default="mpirun's choice",
        since="3.0",
    ),
    Option(
        "preflight",
        BOOLEAN,
        "Whether other hosts are looked at over ssh before the job starts",
        _HOSTS_GROUP,
        default=True,
        since="popdist",
    ),
    Option(
        "distribute-ssh-key",
        BOOLEAN,
        "Run ssh-copy-id first for the hosts that deny access; it may ask for passwords",
        _HOSTS_GROUP,
        default=False,
        since="3.0",
    ),
    Option(
        "synchronise-python-venv",
        BOOLEAN,
        "Copy this Python's virtual environment to the same path on the other hosts first",
        _HOSTS_GROUP,
        default=False,
        since="3.0",
    ),
    Option(
        "synchronise-poplar-sdk",
        BOOLEAN,
        "Copy the Poplar SDK to the other hosts first",
        _HOSTS_GROUP,
        default=False,
        ipu_only=True,
        since="3.0",
    ),
    Option(
        "numa-aware",
        BOOLEAN,
        "Bind instances to NUMA nodes in a round-robin fashion",
        _PLACEMENT,
        shown_default="yes where a host has several instances",
    ),
    Option(
        "process-placement",
        one_of("spreadnuma", "disabled"),
        "How a host's NUMA nodes are divided among its instances; the newer form of --numa-aware",
        _PLACEMENT,
        shown_default="spreadnuma where a host has several instances",
        since="3.0",
    ),
)


# Options about the size of the job.


_JOB_GROUP = "Job"

_JOB: tuple[Option, ...] = (
    Option(
        "num-instances",
        INSTANCES,
        "The number of instances (processes)",
        _JOB_GROUP,
        shown_default="one per host",
        aliases=("-np", "-n"),
    ),
    Option(
        "num-replicas",
        COUNT,
        "The total number of replicas",
        _JOB_GROUP,
        shown_default="one per instance",
    ),
    Option("ipus-per-replica", COUNT, "The number of devices per replica", _JOB_GROUP, default=1),
    Option(
        "num-ilds",
        COUNT,
        "The number of link domains, over which instances are divided evenly",
        _JOB_GROUP,
        default=1,
    ),
    Option(
        "offline-mode",
        BOOLEAN,
        "Run without requiring or attaching to any devices",
        _JOB_GROUP,
        default=False,
        since="2.0",
    ),
    Option("executable-cache-path", DIRECTORY, "A directory for compiled programs", _JOB_GROUP),
    Option(
        "sdk-names",
        FLAG,
        "Let the program import popart, poptorch, horovod.popart and tensorflow.python.ipu",
        _JOB_GROUP,
        since="popdist",
    ),
)


# Options about mpirun and about the environment of instances.


_MPI_GROUP = "MPI and environment"

_MPI: tuple[Option, ...] = (
    Option(
        "mpirun",
        FILE,
        "The mpirun to use",
        _MPI_GROUP,
        shown_default="the one beside this Python, else the first on PATH",
        since="popdist",
    ),
    Option(
        "mpi-global-args",
        TEXT,
        "Global options for mpirun; may be given several times",
        _MPI_GROUP,
        repeatable=True,
        takes_options=True,
    ),
    Option(
        "mpi-local-args",
        TEXT,
        "Options for mpirun, per instance; may be given several times",
        _MPI_GROUP,
        repeatable=True,
        takes_options=True,
    ),
    Option(
        "instance-mpi-local-args",
        TEXT,
        "Options for mpirun for one instance, as <index>:<options>; may be given several times",
        _MPI_GROUP,
        repeatable=True,
        takes_options=True,
        since="2.1",
    ),
    Option(
        "env",
        TEXT,
        "Forward a variable to every instance, as NAME or NAME=VALUE; may be given several times",
        _MPI_GROUP,
        aliases=("-x",),
        repeatable=True,
        since="popdist",
    ),
    Option(
        "tf-config",
        BOOLEAN,
        "Set TF_CONFIG for MultiWorkerMirroredStrategy",
        _MPI_GROUP,
        default=False,
        since="popdist",
    ),
)


# Options about what is shown and kept of a job.


_OUTPUT_GROUP = "Output"

_OUTPUT: tuple[Option, ...] = (
    Option("print-topology", BOOLEAN, "Print the topology table", _OUTPUT_GROUP, default=False),
    Option(
        "only-output-from-instance",
        INDEX,
        "Suppress the output of all other instances; a failing one is still shown",
        _OUTPUT_GROUP,
    ),
    Option(
        "tag-output",
        BOOLEAN,
        "Put the instance and the stream before each line",
        _OUTPUT_GROUP,
        default=False,
        since="popdist",
    ),
    Option(
        "output-filename",
        DIRECTORY,
        "A directory that also receives each instance's output, as 1/rank.<index>/{stdout,stderr}",
        _OUTPUT_GROUP,
        since="popdist",
    ),
    Option(
        "log-dir",
        DIRECTORY,
        "A directory in which every run keeps a folder of its own with all logs",
        _OUTPUT_GROUP,
        since="popdist",
    ),
    Option(
        "json", FILE, "Write how the job went to this file, as JSON", _OUTPUT_GROUP, since="popdist"
    ),
    Option(
        "timeline",
        FILE,
        "Write one merged trace of Horovod's timelines to this file, for Perfetto",
        _OUTPUT_GROUP,
        since="popdist",
    ),
    Option(
        "status",
        one_of("auto", "always", "never"),
        "The live status line while the job runs; auto shows it on a terminal",
        _OUTPUT_GROUP,
        default="auto",
        since="popdist",
    ),
    Option(
        "color",
        one_of("auto", "always", "never"),
        "Coloured tags and messages; auto colours on a terminal",
        _OUTPUT_GROUP,
        default="auto",
        since="popdist",
    ),
)


# Options about partitions of devices.


_PARTITIONS_GROUP = "Partitions"

_PARTITIONS: tuple[Option, ...] = (
    Option(
        "vipu-server-host",
        TEXT,
        "The host of the V-IPU server; this machine's own devices stand in for another's",
        _PARTITIONS_GROUP,
        default="localhost",
    ),
    Option(
        "vipu-server-port",
        PORT,
        "The port number of the V-IPU server",
        _PARTITIONS_GROUP,
        default=8090,
        ipu_only=True,
    ),
    Option(
        "vipu-server-timeout",
        SECONDS,
        "How long to wait for devices of a partition",
        _PARTITIONS_GROUP,
        default=10.0,
        shown_default="10",
        since="2.0",
    ),
    Option("vipu-partition", NAME, "Create or use this partition", _PARTITIONS_GROUP),
    Option(
        "vipu-partition-attempts",
        COUNT,
        "How often a partition that is not ready is tried",
        _PARTITIONS_GROUP,
        default=1,
        since="3.0",
    ),
    Option(
        "vipu-allocation",
        NAME,
        "The devices of a new partition: gpus, cores (one per core) or cores-<n>",
        _PARTITIONS_GROUP,
        shown_default="the GPUs, or the cores where there are none",
        excludes="vipu-cluster",
        since="3.0",
    ),
    Option(
        "vipu-cluster",
        NAME,
        "The older name of --vipu-allocation",
        _PARTITIONS_GROUP,
        excludes="vipu-allocation",
    ),
    Option(
        "update-partition",
        BOOLEAN,
        "Update the partition if needed",
        _PARTITIONS_GROUP,
        default=False,
    ),
    Option(
        "reset-partition",
        BOOLEAN,
        "Reset the partition before the job",
        _PARTITIONS_GROUP,
        shown_default="no, as partitions of this machine are reconfigurable",
    ),
    Option(
        "remove-partition",
        BOOLEAN,
        "Remove the partition afterwards, if --vipu-partition created it",
        _PARTITIONS_GROUP,
        default=True,
    ),
    Option(
        "ipu-link-routing-type",
        NAME,
        "The routing of links within a partition, which an existing one is checked against",
        _PARTITIONS_GROUP,
        ipu_only=True,
        since="2.1",
    ),
    Option(
        "gw-link-routing-type",
        NAME,
        "The routing of links between gateways, which an existing partition is checked against",
        _PARTITIONS_GROUP,
        ipu_only=True,
        since="2.1",
    ),
    Option(
        "sync-type",
        NAME,
        "The kind of synchronisation, which an existing partition is checked against",
        _PARTITIONS_GROUP,
        ipu_only=True,
        since="2.1",
    ),
)


# Options about how a job may end.


_SUPERVISION_GROUP = "Supervision"

_SUPERVISION: tuple[Option, ...] = (
    Option(
        "timeout",
        SECONDS,
        "End the job after this time, with exit code 124",
        _SUPERVISION_GROUP,
        shown_default="none",
        since="popdist",
    ),
    Option(
        "stall-warning",
        SECONDS,
        "Say who waits for whom when a collective has made no progress for this time; 0 for never",
        _SUPERVISION_GROUP,
        default=60.0,
        shown_default="60",
        since="popdist",
    ),
    Option(
        "stall-timeout",
        SECONDS,
        "End the job when no instance has made progress in a collective for this time",
        _SUPERVISION_GROUP,
        shown_default="none",
        since="popdist",
    ),
    Option(
        "max-restarts",
        INDEX,
        "How often a failed job is started again, from the program's own checkpoint",
        _SUPERVISION_GROUP,
        default=0,
        since="popdist",
    ),
    Option(
        "grace-period",
        SECONDS,
        "The time between asking a program to end and killing it",
        _SUPERVISION_GROUP,
        default=5.0,
        shown_default="5",
        since="popdist",
    ),
    Option(
        "forward-signals",
        TEXT,
        "Signals that poprun passes on to every instance, separated by commas",
        _SUPERVISION_GROUP,
        default="USR1,USR2",
        since="popdist",
    ),
    Option(
        "host-timeout",
        SECONDS,
        "End a job over several hosts when one of them has been silent for this time",
        _SUPERVISION_GROUP,
        default=30.0,
        shown_default="30",
        since="popdist",
    ),
    Option(
        "allow-daemons",
        BOOLEAN,
        "Let processes that a program has detached outlive the job, instead of killing them",
        _SUPERVISION_GROUP,
        default=False,
        since="popdist",
    ),
)


# The launcher's options, each declared once.
#
# Parser, help, documentation, completion, configuration files and environment variables are made
# from these tables.


OPTIONS: tuple[Option, ...] = (
    *_GENERAL,
    *_JOB,
    *_HOSTS,
    *_MPI,
    *_PARTITIONS,
    *_SUPERVISION,
    *_OUTPUT,
)
"""Every option, in the order of the help text."""

BY_NAME = {option.name: option for option in OPTIONS}
BY_ALIAS = {alias: option for option in OPTIONS for alias in option.aliases}
