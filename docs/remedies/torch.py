"""Causes and fixes: the PyTorch adapter."""

REMEDIES = {
    "PD300": (
        (
            "An option does not exist, got a value it does not take, or was set after a loader or "
            "a model had taken the options."
        ),
        "Set options first, or work on `options.clone()`. [Options](torch-options.md).",
    ),
    "PD301": (
        "The rows of a call are not micro-batch x accumulation x iterations x replicas.",
        (
            "Use `popdist_torch.DataLoader`, or give as many rows as `loader.combinedBatchSize` "
            "says ([batches](torch.md#batches))."
        ),
    ),
    "PD302": (
        ("The data set is smaller than one global batch, or does not divide over the processes."),
        (
            "Lower the batch size, the accumulation or the iterations, or use fewer replicas "
            "([data](torch-data.md))."
        ),
    ),
    "PD303": (
        "The model computes no loss, or several that are independent of each other.",
        (
            "Use a loss of torch.nn in `forward`, or mark your own: "
            "`popdist_torch.identity_loss(value, reduction='none')`."
        ),
    ),
    "PD305": (
        (
            "A wrapped model was asked for something before it was compiled, after it was "
            "detached, or for the other kind of model: `inferenceModel` has no optimizer."
        ),
        "Follow the hint.",
    ),
    "PD306": (
        "The optimizer is LBFGS, updates tensors of another model, or changed a constant.",
        (
            "Build it from the parameters of the model that is wrapped "
            "([optimizers](torch-optimizers.md))."
        ),
    ),
    "PD307": (
        (
            "A checkpoint's folder cannot be written, its file is damaged, or it is of another "
            "number of replicas."
        ),
        (
            "An earlier file is never harmed. Resume with as many replicas as before "
            "([checkpoints](torch.md#checkpoints))."
        ),
    ),
    "PD308": (
        (
            "A plain loop would have trained something wrong: not initialised, a sparse gradient, "
            "Adasum."
        ),
        "Follow the hint; [plain loops](torch.md#plain-loops).",
    ),
    "PD309": (
        "A loss became infinite or no number, and `stop_at_bad_loss` looks for that.",
        (
            "Look at the data of the micro-batch that is named. A lower learning rate or clipping "
            "helps where losses grow first."
        ),
    ),
    "PD314": (
        (
            "A hook of `Tensor.register_hook` clips, adds noise, or does something else that "
            "depends on the size of one replica's gradient. Replicas' gradients are summed "
            "afterwards, so the result differs from that of one process with all rows. Masks, "
            "factors and projections are right, and are left alone."
        ),
        (
            "Clip between `backward()` and `step()` in a plain loop, or in a hook of "
            "`optimizer.register_step_pre_hook`."
        ),
    ),
    "PD315": (
        (
            "A model has `torch.nn.SyncBatchNorm`. Its statistics would be synchronised by "
            "torch.distributed, which is not initialised, and torch does not say so."
        ),
        (
            "Leave out `convert_sync_batchnorm()`, or use GroupNorm or LayerNorm, which need no "
            "other replica."
        ),
    ),
    "PD316": (
        (
            "A warning. `forward` returns a number computed from its loss, such as `loss + term` "
            "or `3 * loss`. As in PopTorch, the loss function of torch.nn is what trains, without "
            "the term or the factor."
        ),
        (
            "Return `popdist_torch.identity_loss(value, reduction='none')` where the value is the "
            "loss, and `value.detach()` where it is a metric."
        ),
    ),
    "PD320": (
        (
            "A plain loop clipped, scaled or replaced gradients that were not yet those of all "
            "processes: the step had fewer backward passes than `backward_passes_per_step`, ended "
            "in `no_sync()`, used `checkpoint(use_reentrant=True)`, or some process had none."
        ),
        (
            "Call `optimizer.synchronize()` on every process before gradients are changed "
            "([plain loops](torch.md#plain-loops))."
        ),
    ),
    "PD323": (
        (
            "Some instances call `Checkpoint.save()` or `load()`, as under `if rank == 0`, or "
            "`hvd.join()`, while others train."
        ),
        (
            "Call `save()` and `load()` on all instances: instance 0 alone writes and reads the "
            "file ([checkpoints](torch.md#checkpoints))."
        ),
    ),
    "PD322": (
        (
            "Lightning's `sync_batchnorm` needs torch.distributed, or a reduction was asked for "
            "that Horovod does not have."
        ),
        (
            "Put `horovod.torch.SyncBatchNorm` into the module; reduce with mean, sum, min or max "
            "([Lightning](lightning-huggingface.md))."
        ),
    ),
    "PD321": (
        (
            "Options describe one process, but a launcher started several, and nothing in the "
            "program chose that: `popdist.poptorch.Options()` without poprun, options from a file "
            "of another run, or `setEnvVarNames` with variables that are not set."
        ),
        (
            "Start the job with poprun, or use `popdist_torch.Options()`, which knows other "
            "launchers too. `options.Distributed.disable()` says that each is to train alone."
        ),
    ),
    "PD310": (
        "The model has parameters on the meta device, or lazy ones that have no shape yet.",
        (
            "Give them values before the model is wrapped: `to_empty` and an initialisation, or "
            "one call of a lazy module; build the optimizer afterwards."
        ),
    ),
    "PD311": (
        (
            "A scheduler, a loaded state or a changed weight reached some instances only, so their "
            "models would have parted."
        ),
        (
            "Do on every instance what you do on one; broadcast what only one instance knows, such "
            "as a validation loss."
        ),
    ),
    "PD312": (
        (
            "A parameter has a hook of `register_post_accumulate_grad_hook`, which runs on one "
            "replica's part of the gradient; in a plain loop, while that is being exchanged."
        ),
        (
            "Change gradients in a step hook of the optimizer, which sees the sum over all "
            "replicas; `register_hook` sees each micro-batch's gradient."
        ),
    ),
    "PD324": (
        (
            "The number of instances changed between save and load, and the checkpoint holds "
            "something that belongs to one instance: a loader whose data the program divides, or "
            "an object whose state differed."
        ),
        (
            "Let `poptorch.DataLoader` divide the data with `drop_last=True`, and shuffle with "
            "`partition=DataPartition.Interleaved` where one instance saved; or resume in the "
            "old layout ([checkpoints](torch.md#checkpoints))."
        ),
    ),
    "PD325": (
        "`Checkpoint(sharded=True)` was given a folder that each host has for itself.",
        "Give a folder that all hosts have mounted, or leave `sharded=True` out.",
    ),
    "PD326": (
        (
            "A warning. A torch `DataLoader` reads the whole data set on each instance, in the "
            "same order, so an update counts the same samples once for each instance."
        ),
        (
            "Read with `poptorch.DataLoader(options, ...)`, or give the loader a sampler that "
            "divides: `popdist_torch.horovod.DistributedSampler(data)`. Equal rows that are meant "
            "bring no warning where no torch loader is being read, or where its samples are equal."
        ),
    ),
    "PD327": (
        (
            "A warning. A plain loop updates weights with an optimizer that is not distributed: "
            "what it trains differs between processes. Often a program has two optimizers, and "
            "only one of them was wrapped."
        ),
        (
            "Wrap it in `popdist_torch.horovod.DistributedOptimizer`. The warning may be ignored "
            "where each process trains something that it alone uses, or where the program "
            "averages the gradients itself."
        ),
    ),
    "PD313": (
        (
            "A model compiled with `torch.compile` returns outputs without its loss, or other "
            "outputs than before. An executor cannot look into compiled code for the loss."
        ),
        "Return the loss from `forward` in every step, such as `return output, loss`.",
    ),
    "PD390": (
        ("The argument is not a module or not options, or is wrapped already."),
        "Wrap the module itself; call `destroy()` before it is wrapped again.",
    ),
    "PD391": (
        "The arguments do not fit `forward`, or their shapes are not those of the first call.",
        (
            "Keep every batch full (`drop_last=True`) or pad the last one; after `destroy()` the "
            "next call sets new shapes."
        ),
    ),
    "PD392": (
        "A tensor or buffer is asked for by a name that the model does not have.",
        "See the nearest name in the message, and `getTensorNames()`.",
    ),
    "PD393": (
        "The call runs code of the IPU or reads its state, or gives replicas different weights.",
        "Leave it out on hosts; the message says what there is instead.",
    ),
    "PD394": (
        (
            "The process that reads the data ahead could not start, died, or raised an error; or "
            "its accessor was terminated or iterates anew."
        ),
        (
            "The message has the process's own error. Programs need the guard "
            '`if __name__ == "__main__":`; exit code -9 usually means that memory ran out.'
        ),
    ),
    "PD395": (
        "Batches that are read ahead or joined are not tensors, or differ in shape or type.",
        "Pad samples to one shape, or use `DataLoaderMode.Sync`.",
    ),
    "PD396": (
        "A position was saved by a loader of other data, batch size, seed or replicas.",
        "Resume with the loader that saved it, or begin a new epoch.",
    ),
}
