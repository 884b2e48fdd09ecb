"""What to write here in place of options of mpirun, srun, torchrun, horovodrun and others.

A table, which the errors about unknown options are made from.
"""

from __future__ import annotations

_NOT_NEEDED = "leave it out"
_COUNT = "with poprun: -np N"
_FOR_ALL = "with poprun: -np N, for all hosts together"
_HOSTS = "with poprun: --host HOST1,HOST2"
_INSIDE = "with poprun: --host HOST1,HOST2, or inside salloc"
_FILES = "with poprun: --output-filename DIR, or --log-dir DIR"
_MEETS = "leave it out: mpirun brings the instances together"
_FINDS = "leave it out: poprun finds an address and a free port"
_CORES = "leave it out: poprun divides the cores"
_NETWORK = "with poprun: --host-subnet NAME, an interface or a subnet"
_SSH = "write it into ~/.ssh/config, for the host"
_AGAIN = "with poprun: --max-restarts N --min-instances N"
_FOLDER = "change the folder first: cd DIR && poprun ..."
_SALLOC = "give it to salloc or sbatch, and call poprun inside"
_DEBUG = "with poprun: --stall-timeout SECONDS shows where instances wait"
_VARIABLE = "with poprun: -x HOROVOD_...=VALUE, the variable of that option"
_PROGRAMS = "set it in the program, or in the variable that accelerate reads: -x ACCELERATE_..."
_BOUND = "with poprun: --print-topology yes"

# The launchers, the options without dashes, and what to do; one letter stands for a short option.
_TABLE = (
    ("horovodrun", "check-build cb", "with poprun: poprun doctor"),
    ("horovodrun", "cycle-time-ms", "with poprun: -x HOROVOD_CYCLE_TIME=..."),
    ("horovodrun", "fusion-threshold-mb", "with poprun: -x HOROVOD_FUSION_THRESHOLD=..."),
    ("horovodrun", "cache-capacity", "with poprun: -x HOROVOD_CACHE_CAPACITY=..."),
    ("horovodrun", "autotune", "with poprun: -x HOROVOD_AUTOTUNE=1"),
    ("horovodrun", "autotune-log-file", "with poprun: -x HOROVOD_AUTOTUNE_LOG=..."),
    ("horovodrun", "hierarchical-allreduce", "with poprun: -x HOROVOD_HIERARCHICAL_ALLREDUCE=1"),
    ("horovodrun", "hierarchical-allgather", "with poprun: -x HOROVOD_HIERARCHICAL_ALLGATHER=1"),
    ("horovodrun", "gloo jsrun", "leave it out, as poprun always uses MPI"),
    ("horovodrun and srun", "mpi", "leave it out, as poprun always uses MPI"),
    ("horovodrun", "mpi-args binding-args", "with poprun: --mpi-global-args='...'"),
    ("horovodrun", "start-timeout", "leave it out: poprun checks hosts first"),
    ("horovodrun", "disable-cache", "leave it out: poprun checks hosts at each start"),
    ("horovodrun", "timeline-filename", "with poprun: --timeline FILE"),
    ("horovodrun", "timeline-mark-cycles", "with poprun: -x HOROVOD_TIMELINE_MARK_CYCLES=1"),
    ("horovodrun", "no-stall-check", "with poprun: --stall-warning 0"),
    ("horovodrun", "stall-check-warning-time-seconds", "with poprun: --stall-warning SECONDS"),
    ("horovodrun", "stall-check-shutdown-time-seconds", "with poprun: --stall-timeout SECONDS"),
    ("horovodrun", "min-np min-num-proc max-np max-num-proc slots-per-host", _AGAIN),
    ("horovodrun", "host-discovery-script reset-limit elastic-timeout", _AGAIN),
    ("horovodrun", "network-interfaces network-interface nics", _NETWORK),
    ("horovodrun", "ssh-port ssh-identity-file i", _SSH),
    ("horovodrun", "num-proc", _COUNT),
    ("horovodrun", "log-with-timestamp prefix-output-with-timestamp", "with poprun: --log-dir DIR"),
    ("torchrun", "no-python", "leave it out: poprun starts the program as it is named"),
    ("torchrun", "nproc-per-node", _FOR_ALL),
    ("torchrun", "rdzv-backend rdzv-endpoint rdzv-id rdzv-conf local-addr", _MEETS),
    ("torchrun", "redirects r tee", _FILES),
    ("torchrun", "standalone start-method role virtual-local-rank", _NOT_NEEDED),
    ("torchrun", "log-level", "with poprun: -v or -vv"),
    ("torchrun", "local-ranks-filter", "with poprun: --only-output-from-instance N"),
    ("torchrun", "monitor-interval", "leave it out: poprun hears of an end at once"),
    ("torchrun", "run-path", "name the program: poprun -np N python FILE"),
    ("accelerate", "num-processes", _FOR_ALL),
    ("accelerate", "num-machines", "with poprun: --nnodes N, on each of them"),
    ("accelerate", "machine-rank", "leave it out: poprun starts the instances on all hosts"),
    ("accelerate", "main-process-ip main-process-port", "with poprun: --master-addr HOST"),
    ("accelerate", "multi-gpu multi-cpu cpu", _NOT_NEEDED),
    ("accelerate", "mixed-precision", "with poprun: -x ACCELERATE_MIXED_PRECISION=..."),
    ("accelerate and horovodrun", "config-file", "with poprun: --config FILE, a file of poprun's"),
    ("deepspeed", "num-gpus", _FOR_ALL),
    ("deepspeed", "num-nodes include", _HOSTS),
    ("srun and mpirun", "N", _INSIDE),
    ("srun", "nodes nodelist w", _INSIDE),
    ("srun", "ntasks", _COUNT),
    ("srun", "ntasks-per-node ntasks-per-socket", _FOR_ALL),
    ("srun", "cpus-per-task cpu-bind threads-per-core", _CORES),
    ("srun", "gpus gpus-per-node gpus-per-task gres mem mem-per-cpu account A", _SALLOC),
    ("srun", "partition p job-name J exclusive overlap qos q", _SALLOC),
    ("srun and torchrun", "t", "with poprun: --timeout 10m, or --log-dir DIR"),
    ("srun", "time", "with poprun: --timeout 10m"),
    ("srun and mpirun", "output", f"{_FILES}, or --tag-output yes"),
    ("srun", "error o e", _FILES),
    ("srun and mpiexec", "label l prepend-rank", "with poprun: --tag-output yes"),
    ("srun", "unbuffered u", "leave it out: poprun shows each line at once"),
    ("srun", "kill-on-bad-exit K", "leave it out: poprun ends a job whose instance fails"),
    ("srun", "export", "with poprun: -x NAME or -x NAME=VALUE"),
    ("srun", "chdir D", _FOLDER),
    ("srun", "multi-prog", "start one program, which asks popdist.getInstanceIndex()"),
    ("srun", "pty", "leave it out: standard input goes to instance 0"),
    ("mpirun and srun", "c", _COUNT),
    ("mpirun", "npernode npersocket", _FOR_ALL),
    ("mpiexec", "ppn perhost", _FOR_ALL),
    ("mpiexec", "hosts", _HOSTS),
    ("mpiexec", "f", "with poprun: --hostfile FILE"),
    ("mpiexec", "genv env-list", "with poprun: -x NAME=VALUE"),
    ("mpiexec", "genvall envall", "leave it out on one host; else: -x NAME"),
    ("mpiexec", "iface", _NETWORK),
    ("mpirun", "machinefile default-hostfile", "with poprun: --hostfile FILE"),
    ("mpirun", "wdir wd", _FOLDER),
    ("mpirun", "app", "start one program, which asks popdist.getInstanceIndex()"),
    ("mpirun", "report-bindings display-map display-allocation display", _BOUND),
    ("mpirun", "oversubscribe", "leave it out: what you ask for is started"),
    ("mpirun", "timestamp-output", "with poprun: --log-dir DIR"),
    ("mpirun", "quiet", "leave it out: poprun is silent without -v"),
    ("mpirun", "stdin", "leave it out: standard input goes to instance 0"),
    ("mpirun", "pernode", f"{_HOSTS}: without -np, each host gets one instance"),
    ("mpirun", "V", "with poprun: --version"),
    ("mpirun", "bynode bycore byslot bysocket bynuma byboard loadbalance", _CORES),
    ("mpirun", "bind-to-core bind-to-socket bind-to-none cpus-per-proc cpus-per-rank", _CORES),
    ("mpirun", "display-topo display-devel-map", _BOUND),
    ("mpirun", "display-diffable-map display-devel-allocation", _BOUND),
    ("mpirun", "merge-stderr-to-stdout xml xml-file output-directory parsable parseable", _FILES),
    ("mpirun", "do-not-launch", "with poprun: --dry-run yes"),
    ("mpirun", "debug debugger debug-devel tv debug-daemons debug-daemons-file", _DEBUG),
    ("mpirun", "stop-on-exec stop-in-init stop-in-app leave-session-attached", _DEBUG),
    ("mpirun", "get-stack-traces", "with poprun: --timeout shows the stacks"),
    ("mpirun", "report-state-on-timeout", "with poprun: --timeout shows the stacks"),
    ("mpirun", "enable-recovery disable-recovery continuous with-ft recovery", _AGAIN),
    ("mpirun", "add-host add-hostfile dash-host", _HOSTS),
    ("mpirun", "preload-binary preload-files s", "put the program where all hosts find it"),
    ("mpirun", "ompi-server server-wait-time wait-for-server", _NOT_NEEDED),
    ("mpirun", "report-uri dvm dvm-uri hnp", _NOT_NEEDED),
    ("mpirun", "daemonize keepalive system-server pidfile personality staged novm", _NOT_NEEDED),
    ("mpirun", "report-pid show-progress", "with poprun: -v"),
    ("mpirun", "report-events report-child-jobs-separately", "with poprun: -v"),
    ("mpirun", "noprefix do-not-resolve set-cwd-to-session-dir set-sid use-regexp", _NOT_NEEDED),
    ("mpirun", "max-vm-size index-argv-by-rank fwd-mpirun-port pset memory", _NOT_NEEDED),
    ("horovodrun", "autotune-warmup-samples autotune-steps-per-sample", _VARIABLE),
    ("horovodrun", "autotune-bayes-opt-max-samples autotune-gaussian-process-noise", _VARIABLE),
    ("horovodrun", "no-hierarchical-* torus-allreduce no-torus-allreduce", _VARIABLE),
    ("horovodrun", "num-nccl-streams thread-affinity mpi-threads-disable", _VARIABLE),
    ("horovodrun", "gloo-timeout-seconds tcp", "leave it out, as poprun always uses MPI"),
    ("horovodrun", "blacklist-cooldown-range", _AGAIN),
    ("horovodrun", "log-without-timestamp prefix-timestamp", "with poprun: --log-dir DIR"),
    ("horovodrun", "verbose-level", "with poprun: -v or -vv"),
    ("torchrun", "use-env", "leave it out: programs read LOCAL_RANK from the environment"),
    ("torchrun", "duplicate-stdout-filters duplicate-stderr-filters logs-specs", _FILES),
    ("torchrun", "numa-binding", "leave it out: poprun binds to NUMA nodes; see --numa-aware"),
    ("torchrun", "signals-to-handle", "with poprun: --forward-signals"),
    ("torchrun", "shutdown-timeout", "with poprun: --grace-period SECONDS"),
    ("torchrun", "event-log-handler", "with poprun: --json FILE"),
    ("accelerate", "main-training-function gpu-ids same-network debug", _NOT_NEEDED),
    ("accelerate", "num-cpu-threads-per-process enable-cpu-affinity", _CORES),
    ("accelerate", "mpirun-hostfile", "with poprun: --hostfile FILE"),
    ("accelerate", "gradient-accumulation-steps gradient-clipping", _PROGRAMS),
    ("accelerate", "use-fsdp use-deepspeed use-megatron-lm use-parallelism-config", _PROGRAMS),
    ("accelerate", "fsdp-* megatron-lm-* parallelism-config-* dynamo-* fp8-*", _PROGRAMS),
    ("accelerate", "deepspeed-* zero-stage zero3-* offload-* downcast-bf16", _PROGRAMS),
    ("accelerate", "tpu tpu-*", "leave it out: poprun starts CPUs and GPUs"),
    ("accelerate", "no-tpu-cluster vm aws-*", "leave it out: poprun starts CPUs and GPUs"),
    ("deepspeed", "exclude", f"{_HOSTS}, without those"),
    ("deepspeed", "launcher launcher-args force-multi no-ssh no-local-rank", _NOT_NEEDED),
    ("deepspeed", "bind-cores-to-rank bind-core-list", _CORES),
    ("deepspeed", "save-pid enable-each-rank-log", "with poprun: --json FILE or --log-dir DIR"),
    ("deepspeed", "elastic-training min-elastic-nodes max-elastic-nodes", _AGAIN),
    ("deepspeed", "autotuning module-only", _NOT_NEEDED),
    ("srun", "G gpus-per-socket gpu-bind gpu-freq mem-per-gpu mem-bind tres-per-task", _SALLOC),
    ("srun", "constraint C reservation licenses L nice begin b deadline dependency d", _SALLOC),
    ("srun", "cluster-constraint contiguous immediate I jobid bb bbf comment", _SALLOC),
    ("srun", "cores-per-socket sockets-per-node ntasks-per-core ntasks-per-gpu", _CORES),
    ("srun", "distribution m hint cpu-freq threads extra-node-info B", _CORES),
    ("srun", "exclude x relative nodefile F", _INSIDE),
    ("srun", "input open-mode", "leave it out: standard input goes to instance 0"),
    ("srun", "het-group wckey uid gid propagate profile acctg-freq", _SALLOC),
    ("srun", "preserve-env slurmd-debug bcast compress network container", _NOT_NEEDED),
    ("srun", "task-prolog task-epilog prolog epilog", "write it into the batch script"),
    ("srun", "wait W", "with poprun: --grace-period SECONDS"),
    ("srun", "test-only", "with poprun: --dry-run yes"),
    ("srun", "signal", "with poprun: --forward-signals"),
    ("jsrun", "nrs rs-per-host r tasks-per-rs a", _FOR_ALL),
    ("jsrun", "cpu-per-rs gpu-per-rs g", _CORES),
    ("jsrun", "memory-per-rs latency-priority bind launch-distribution", _CORES),
    ("jsrun", "smpiargs erf-input U use-resources", "leave it out, as poprun always uses Open MPI"),
    ("jsrun", "stdio-mode stdio-input stdio-stdout stdio-stderr k", _FILES),
    ("jsrun", "exit-on-error X", "leave it out: poprun ends a job whose instance fails"),
    ("mpiexec", "gn gnp configfile", "start one program, which asks popdist.getInstanceIndex()"),
    ("mpiexec", "env envlist genvlist envnone genvnone", "with poprun: -x NAME=VALUE"),
    ("mpiexec", "launcher-exec rmk bootstrap launcher enable-x disable-x", _NOT_NEEDED),
)  # fmt: skip
_BY_MPIRUN = {
    "rankfile": "FILE",
    "rf": "FILE",
    "cpu-set": "LIST",
    "cpu-list": "LIST",
    "slot-list": "LIST",
    "tune": "FILE",
    "am": "FILE",
    "gmca": "NAME VALUE",
    "prtemca": "NAME VALUE",
    "pmixmca": "NAME VALUE",
    "omca": "NAME VALUE",
    "ppr": "...",
    "launch-agent": "...",
    "nooversubscribe": "",
    "runtime-options": "...",
    "rtos": "...",
    "path": "PATH",
    "bind-to": "...",
    "map-by": "...",
    "rank-by": "...",
    "mca": "NAME VALUE",
    "prefix": "DIR",
    "nolocal": "",
    "use-hwthread-cpus": "",
    "xterm": "...",
}


def _covers(entry: str, name: str) -> bool:
    """Whether an entry of the table has a name; the last letter may be a ``*``."""
    return name.startswith(entry[:-1]) if entry.endswith("*") else entry == name


def instead_of(name: str) -> str | None:
    """A hint about an option of another launcher; None for an unknown option."""
    wanted = name.lstrip("-").replace("_", "-")
    if wanted in _BY_MPIRUN:
        return f"mpirun takes it: --mpi-global-args='{f'--{wanted} {_BY_MPIRUN[wanted]}'.rstrip()}'"
    for launchers, names, answer in _TABLE:
        if any(_covers(each, wanted) for each in names.split()):
            return f"an option of {launchers}; {answer}"
    return None
