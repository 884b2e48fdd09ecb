"""Causes and fixes: who and where an instance is, host communication, exchange of gradients."""

REMEDIES = {
    "PD001": (
        "A variable was set by hand or by another launcher, and does not hold what it should.",
        (
            "`unset` the variable that is named, or start the program with poprun, which sets all "
            "of them. The [contract](environment.md) lists what each accepts."
        ),
    ),
    "PD002": (
        (
            "Some variables of a job are set and others are not, or they do not add up: more "
            "local replicas than replicas in all, for example."
        ),
        "`unset` those that are left over in the shell to run alone, or start with poprun.",
    ),
    "PD003": (
        (
            "The job's instances have different numbers of replicas, and the published function "
            "is defined for equal numbers only."
        ),
        (
            "Use `popdist.topology()`, or `popdist.getReplicaIndexOffset()` and "
            "`popdist.getNumLocalReplicas()`; or make the number of replicas a multiple of the "
            "number of instances."
        ),
    ),
    "PD004": (
        "The program asks for another number of replicas or devices than poprun has placed.",
        (
            "Leave the number to the launcher (`--num-replicas`, `--ipus-per-replica`), or give "
            "it the number that the program needs."
        ),
    ),
    "PD005": (
        (
            "`popdist.poptorch.Options` takes replicas, process and device from the launcher, and "
            "the program sets one of them as well."
        ),
        (
            "Leave the call out and give the number to poprun (`--num-replicas`, "
            "`--num-instances`), or use `poptorch.Options()`, which leaves it to the program."
        ),
    ),
    "PD006": (
        (
            "The variables by which mpirun, horovodrun, srun or torchrun tells a process its rank "
            "hold no number, or a rank that does not exist."
        ),
        "`unset` those that are left over in the shell to run alone, or start with poprun.",
    ),
    "PD007": (
        (
            "The instances of a job have built different models, options, optimizers or data sets, "
            "hold other weights, or have run out of data at different times. The message says who "
            "has what."
        ),
        (
            "Build all of them alike on every instance, with equally many batches. Weights differ "
            "where no seed was set, or where one instance alone has loaded them: in PyTorch, call "
            "`options.randomSeed(n)` right before the model is built, or broadcast the parameters "
            "([what must be equal](torch.md#what-must-be-equal-on-all-instances)); in Keras, "
            "broadcast the variables; in ONNX, "
            "`popdist_onnx.horovod.broadcast_weights(session)`, then `session.weightsFromHost()`. "
            "Give `popdist_onnx.train` and `fit` the whole data set on every instance: each takes "
            "its part of it."
        ),
    ),
    "PD010": (
        "Horovod is not installed, or was not built for this framework.",
        "`python -m popdist.horovod_build` ([building Horovod](horovod-build.md)).",
    ),
    "PD011": (
        (
            "Horovod was usually built against another MPI than the mpirun that started the job, "
            "so that every process believes to be alone. `ldd` on `horovod/torch/mpi_lib_v2*.so` "
            "shows the library it uses."
        ),
        (
            "Rebuild with `python -m popdist.horovod_build --force`, or start with the right "
            "`--mpirun`."
        ),
    ),
    "PD012": (
        "Something that instances do together was called before they were connected.",
        "Call `popdist.init()` once at the beginning.",
    ),
    "PD013": (
        (
            "Two frameworks of one process ask for Horovod, each for its own binding, and the "
            "native libraries of two bindings cannot run beside each other."
        ),
        (
            "Train with one framework in a process. If `popdist.init()` took the wrong binding, "
            "import the right one before it."
        ),
    ),
    "PD014": (
        (
            "`options.Distributed` was set by hand to a number of processes, or a place among "
            "them, that is not what started this process."
        ),
        (
            "Start the job with poprun and use `popdist.poptorch.Options()`, or call "
            "`options.Distributed.disable()` to train alone."
        ),
    ),
    "PD020": (
        "Buffers were given to an exchange that was planned for others.",
        (
            "Make a new plan when gradients change their sizes. Programs that use an adapter "
            "never see this; please report it there."
        ),
    ),
    "PD021": (
        (
            "All instances have to take part in every exchange. One has ended: it failed, or it "
            "took fewer steps because its share of the data was smaller."
        ),
        (
            "Read the output of the instance that the summary names. Where it ended with exit "
            "code 0, give all instances the same number of batches (`drop_last`)."
        ),
    ),
    "PD022": (
        "A backward pass reached a parameter twice, after its gradient had left.",
        (
            "Use `use_reentrant=False` with activation checkpointing; call `backward` once for "
            "each step, or set `backward_passes_per_step`."
        ),
    ),
}
