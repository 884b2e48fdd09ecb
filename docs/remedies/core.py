"""Causes and fixes: the place of an instance, host communication, exchange of gradients."""

REMEDIES = {
    "PD001": (
        "A variable was set by hand or by another launcher, and its value is not accepted.",
        (
            "`unset` the variable in the message, or start the program with poprun, which sets all "
            "of them. The [contract](environment.md) lists the accepted values."
        ),
    ),
    "PD002": (
        (
            "Some variables of a job are set and others are not, or their values contradict each "
            "other, such as more local replicas than replicas of the whole job."
        ),
        (
            "To run a single process, `unset` the variables that an earlier job has left in the "
            "shell. Otherwise start with poprun."
        ),
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
        "The program asks for another number of replicas or devices than the job has.",
        (
            "Remove the number from the program, or give the same number to poprun "
            "(`--num-replicas`, `--ipus-per-replica`)."
        ),
    ),
    "PD005": (
        (
            "`popdist.poptorch.Options` reads replicas, process and device from the launcher, and "
            "the program sets one of them too."
        ),
        (
            "Remove the call and give the number to poprun (`--num-replicas`, `--num-instances`), "
            "or use `poptorch.Options()`, with which the program decides."
        ),
    ),
    "PD006": (
        (
            "The variables in which mpirun, horovodrun, srun or torchrun gives a process its rank "
            "are not numbers, or are a rank that does not exist."
        ),
        (
            "To run a single process, `unset` the variables that an earlier job has left in the "
            "shell. Otherwise start with poprun."
        ),
    ),
    "PD007": (
        (
            "The instances of a job have different models, options, optimizers, data sets or "
            "weights, or have run out of data at different times. The message shows the values of "
            "each instance."
        ),
        (
            "Make them equal on every instance, with the same number of batches. Weights differ if "
            "no seed was set, or if one instance alone has loaded them. In PyTorch, call "
            "`options.randomSeed(n)` right before the model is built, or broadcast the parameters "
            "([what must be equal](torch.md#what-must-be-equal-on-all-instances)); in Keras, "
            "broadcast the variables; in ONNX, "
            "`popdist_onnx.horovod.broadcast_weights(session)`, then `session.weightsFromHost()`. "
            "Give `popdist_onnx.train` and `fit` the whole data set on every instance: each uses "
            "its part of it."
        ),
    ),
    "PD010": (
        "Horovod is not installed, or was not built for this framework.",
        (
            "`python -m popdist.horovod_build` ([building Horovod](horovod-build.md)). ONNX jobs "
            "need no framework: `pip install mpi4py`."
        ),
    ),
    "PD011": (
        (
            "The usual cause is that Horovod was built with another MPI than that of the mpirun "
            "that started the job, so every process is rank 0 of 1. `ldd` on "
            "`horovod/torch/mpi_lib_v2*.so` shows the library that Horovod uses."
        ),
        (
            "Rebuild with `python -m popdist.horovod_build --force`, or start with the right "
            "`--mpirun`."
        ),
    ),
    "PD012": (
        "A collective of popdist was called before the instances were connected.",
        "Call `popdist.init()` once at the beginning.",
    ),
    "PD013": (
        (
            "Two frameworks of one process need Horovod, each with its own binding. The native "
            "libraries of two bindings cannot be used in the same process."
        ),
        (
            "Train with one framework in a process. If `popdist.init()` has chosen the wrong "
            "binding, import the right one before the call."
        ),
    ),
    "PD014": (
        (
            "`options.Distributed` was set by hand to a number of processes, or a rank, that "
            "differs from that of the launcher."
        ),
        (
            "Start the job with poprun and use `popdist.poptorch.Options()`, or call "
            "`options.Distributed.disable()` to train alone."
        ),
    ),
    "PD020": (
        "The buffers do not fit the plan of the exchange.",
        (
            "Make a new plan when gradients change their sizes. Programs that use an adapter never "
            "get this error; please report it if yours does."
        ),
    ),
    "PD021": (
        (
            "All instances must take part in every exchange. One has ended: it failed, or it took "
            "fewer steps because its part of the data was smaller."
        ),
        (
            "Read the output of the instance in the summary. If it ended with exit code 0, give "
            "all instances the same number of batches (`drop_last`)."
        ),
    ),
    "PD022": (
        "A backward pass computed a second gradient of a parameter after the first was sent.",
        (
            "Use `use_reentrant=False` with activation checkpointing; call `backward` once for "
            "each step, or set `backward_passes_per_step`."
        ),
    ),
    "PD023": (
        (
            "The mean of the losses of the processes is not the loss of the whole batch, the "
            "program multiplies its learning rate by the number of processes, or an instance does "
            "not exchange its gradients."
        ),
        (
            "[Compare a job with its program](compare.md) explains the table. Divide sums by "
            "`global_mean(total, count)`, gather what a loss compares over the batch, or accept "
            "that the loss is one of each process."
        ),
    ),
    "PD024": (
        (
            "The two start from other weights, train on other samples, or record no update; or a "
            "run has failed."
        ),
        (
            "Set a seed that does not depend on the rank, and divide one global batch over the "
            "processes: see [the batch of the program alone](compare.md)."
        ),
    ),
    "PD025": (
        (
            "Every instance has trained, and none has started Horovod, torch.distributed or MPI: "
            "the program was started by `poprun -np 2` without a change. Or instances do exchange "
            "values, but no gradients of this model, or from other first weights: all weights that "
            "an optimizer of torch has trained differ at the end."
        ),
        (
            "Make it a job: the hint has the lines for PyTorch, Lightning and Keras. Ignore the "
            "message where each instance is to train a model of its own."
        ),
    ),
}
