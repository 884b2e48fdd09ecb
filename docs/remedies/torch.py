"""Causes and fixes: the PyTorch adapter."""

REMEDIES = {
    "PD300": (
        (
            "An option does not exist, its value is not accepted, or it was set after a loader or "
            "a model had used the options."
        ),
        "Set options first, or change `options.clone()`. See [options](torch-options.md).",
    ),
    "PD301": (
        "The rows of a call are not micro-batch x accumulation x iterations x replicas.",
        (
            "Use `popdist_torch.DataLoader`, or give `loader.combinedBatchSize` rows "
            "([batches](torch.md#batches))."
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
            "A method of a wrapped model was called before the model was compiled, after it was "
            "detached, or on the other kind of model: `inferenceModel` has no optimizer."
        ),
        "Follow the hint.",
    ),
    "PD306": (
        "The optimizer is LBFGS, updates tensors of another model, or changed a constant.",
        (
            "Create the optimizer with the parameters of the wrapped model "
            "([optimizers](torch-optimizers.md))."
        ),
    ),
    "PD307": (
        (
            "A checkpoint's folder cannot be written, its file is damaged, or it is of another "
            "number of replicas."
        ),
        (
            "An earlier file is never changed. Resume with the same number of replicas "
            "([checkpoints](checkpoints.md#pytorch))."
        ),
    ),
    "PD308": (
        (
            "A plain loop would train wrongly: Horovod is not initialised, or the loop uses "
            "a sparse gradient, tensors on another device, or Adasum."
        ),
        "Follow the hint; [plain loops](torch.md#plain-loops).",
    ),
    "PD309": (
        "A loss became infinite or NaN, and `stop_at_bad_loss` is set.",
        (
            "Check the data of the micro-batch in the message. If losses grow before the error, "
            "use a lower learning rate or clipping."
        ),
    ),
    "PD314": (
        (
            "A hook of `Tensor.register_hook` clips, adds noise, or is another function that is "
            "not linear in the gradient of one replica. The gradients of replicas are summed "
            "afterwards, so the result differs from that of one process with all rows. Masks, "
            "factors and projections are correct, and are accepted."
        ),
        (
            "Clip between `backward()` and `step()` in a plain loop, or in a hook of "
            "`optimizer.register_step_pre_hook`."
        ),
    ),
    "PD315": (
        (
            "A model has `torch.nn.SyncBatchNorm`. It synchronises its statistics with "
            "torch.distributed, which is not initialised, and torch raises no error. Or the layer "
            "is `horovod.torch.SyncBatchNorm`, which works on GPUs only."
        ),
        (
            "Use `popdist_torch.SyncBatchNorm.convert_sync_batchnorm(model)`, whose layers work on "
            "CPUs and GPUs ([normalization](torch.md#batch-normalization)). GroupNorm and "
            "LayerNorm do not depend on other replicas."
        ),
    ),
    "PD316": (
        (
            "A warning. `forward` returns a number computed from its loss, such as `loss + term` "
            "or `3 * loss`. As in PopTorch, the result of the loss function of torch.nn is "
            "trained, without the term or the factor."
        ),
        (
            "Return `popdist_torch.identity_loss(value, reduction='none')` if the value is the "
            "loss, and `value.detach()` if it is a metric."
        ),
    ),
    "PD317": (
        (
            "`replicaGrouping` was called with a size that does not divide the job's replicas, "
            "for a parameter without a first dimension for the groups, or after the first call."
        ),
        (
            "Stack the first values of all groups, and call it right after the model is wrapped "
            "([weights of groups](torch.md#weights-of-groups-of-replicas))."
        ),
    ),
    "PD318": (
        (
            "A parameter has versions for groups of replicas, and the optimizer takes norms over "
            "whole tensors, or clips by one."
        ),
        "Use an optimizer whose updates are element by element, such as SGD or AdamW.",
    ),
    "PD320": (
        (
            "A plain loop clipped, scaled or replaced gradients before they were exchanged: the "
            "step had fewer backward passes than `backward_passes_per_step`, ended in `no_sync()`, "
            "used `checkpoint(use_reentrant=True)`, or a process had no gradient."
        ),
        (
            "Call `optimizer.synchronize()` on every process before it changes gradients "
            "([plain loops](torch.md#plain-loops))."
        ),
    ),
    "PD323": (
        (
            "Some instances call `Checkpoint.save()`, `average_metrics()`, a broadcast or "
            "`popdist.synchronize()`, as under `if rank == 0`, or `hvd.join()`, while others "
            "train, or make another of these calls; the error says who calls what. With "
            "Lightning: `trainer.save_checkpoint()`, `all_gather()` or another call that waits for "
            "all processes was made on some of them, or some have more batches in an epoch."
        ),
        (
            "Make these calls on all instances, after as many updates: instance 0 alone writes "
            "and reads files ([checkpoints](checkpoints.md#pytorch)). This is also true for "
            "`trainer.save_checkpoint()`. Give all processes as many batches."
        ),
    ),
    "PD333": (
        (
            "A program of several processes changes weights by itself between backward passes "
            "(`weight -= rate * weight.grad`, `torch.autograd.grad`, `torch.func.grad`, an "
            "optimizer that does not derive from `torch.optim.Optimizer`), and neither popdist, "
            "Horovod nor torch.distributed was asked for a sum. Each process trains on its own "
            "data alone."
        ),
        (
            "Average gradients before the update: `hvd.allreduce_(weight.grad)`. Or use torch's "
            "optimizers with `hvd.DistributedOptimizer` ([plain loops](torch.md#plain-loops)). "
            "Train what one process alone uses in `with popdist_torch.local_training():`."
        ),
    ),
    "PD335": (
        (
            "A wrapped model was measured after an update: the gradient of a micro-batch is not "
            "the mean of the gradients of its halves. So its replicas, which each see a part of "
            "the global batch, train another model than one process with all rows. Reasons are a "
            "mean over as many elements as a batch has (`ignore_index`, class weights, a mask), a "
            "sum of rows, a function of a mean, a loss that compares rows, an embedding that "
            "counts words, and a hook or an autograd function that clips gradients."
        ),
        (
            "Divide sums by counts of the global batch, with `popdist_torch.global_mean(total, "
            "count)`. Gather the rows that the loss compares with "
            "`popdist_torch.horovod.allgather`. Give hooks of activations the gradients of one "
            "process with `popdist_torch.global_batch_hook`. If the message names a constant "
            "factor, divide the loss by the number of its rows. Where each replica's own loss is "
            "meant, set `POPDIST_SKIP_CHECKS=parts`. [Checks](checks.md) says what is measured."
        ),
    ),
    "PD336": (
        (
            "A wrapped model has layers of `popdist_torch.SyncBatchNorm`, and its options make it "
            "train alone in a job. Or `convert_sync_batchnorm` was given a group of processes, or "
            "a layer with a `forward` of its own."
        ),
        (
            "Leave out `options.Distributed.disable()`. Derive layers with a `forward` of their "
            "own from `popdist_torch.SyncBatchNorm`."
        ),
    ),
    "PD350": (
        (
            "`options.Precision.enableFloatingPointExceptions(True)` is set, and an operation gave "
            "NaN or infinity from finite numbers, or compared a NaN by order."
        ),
        "Mend the operation that the error names, or leave the option off.",
    ),
    "PD351": (
        (
            "A warning. `requires_grad` is False for all parameters of a `trainingModel`, or its "
            "loss depends on none of them: `forward` leaves the graph."
        ),
        (
            "Unfreeze the parameters that are to be trained, leave out `detach()` and `no_grad()` "
            "before the loss, or use `inferenceModel`."
        ),
    ),
    "PD352": (
        "The operation, the root or the splits of a collective of Horovod do not exist or fit.",
        "Pass `hvd.Average`, `hvd.Sum`, ... and a rank below `hvd.size()`.",
    ),
    "PD353": (
        (
            "A warning. `poprun --num-replicas` gives each instance several replicas, but the "
            "program, or a library such as optimum-graphcore, has built a plain "
            "`poptorch.Options()` with another `replicationFactor`. The program's number is used."
        ),
        (
            "Give the program the number that the warning has: `replicationFactor(n)`, or the "
            "library's own setting (`IPUConfig(replication_factor=n)`). "
            "`popdist.poptorch.Options()` has it already. If the program's number is meant, give "
            "poprun as many replicas."
        ),
    ),
    "PD339": (
        (
            "`global_mean` makes a micro-batch count as much as its number of elements, and a "
            "micro-batch has one number, in each forward pass of an update."
        ),
        (
            "Add up the sums and call it once: `poptorch.global_mean(first + second, count)`. "
            "Where a micro-batch has no element, call it with the count 0."
        ),
    ),
    "PD322": (
        ("A reduction was asked for that Horovod does not have."),
        ("Reduce with mean, sum, min or max ([Lightning](lightning-huggingface.md))."),
    ),
    "PD321": (
        (
            "Options describe one process, but a launcher started several, and the program did "
            "not choose that: `popdist.poptorch.Options()` without poprun, options from a file "
            "of another run, or `setEnvVarNames` with variables that are not set."
        ),
        (
            "Start the job with poprun, or use `popdist_torch.Options()`, which supports other "
            "launchers too. With `options.Distributed.disable()`, each process trains alone."
        ),
    ),
    "PD310": (
        "The model has parameters on the meta device, or lazy ones that have no shape yet.",
        (
            "Initialise them before the model is wrapped, or before a loop's optimizer is "
            "distributed: `to_empty` and an initialisation, or one call of a lazy module. Create "
            "the optimizer of parameters on the meta device afterwards."
        ),
    ),
    "PD311": (
        (
            "A scheduler, a loaded state or a changed weight is on some instances only, so their "
            "models would become different. Or, as a warning, `forward` of a plain loop's model "
            "changes a buffer (a codebook, a center, a queue) by the rows of its own process."
        ),
        (
            "Do the same on every instance. Broadcast values that only one instance computes, such "
            "as a validation loss. Average what changes a buffer: `hvd.allreduce(mean)`."
        ),
    ),
    "PD312": (
        (
            "A parameter has a hook of `register_post_accumulate_grad_hook`. The hook gets the "
            "gradient of one replica; in a plain loop, it runs while the gradient is exchanged."
        ),
        (
            "Change gradients in a step hook of the optimizer, which gets the sum over all "
            "replicas. A hook of `register_hook` gets the gradient of each micro-batch."
        ),
    ),
    "PD324": (
        (
            "The number of instances has changed since the checkpoint was saved, and it has state "
            "of a single instance: a loader whose data the program divides, or an object whose "
            "state differed between instances."
        ),
        (
            "Let `poptorch.DataLoader` divide the data with `drop_last=True`. If one instance "
            "saved, also shuffle with `partition=DataPartition.Interleaved`. Or resume in the old "
            "layout ([checkpoints](checkpoints.md#pytorch))."
        ),
    ),
    "PD325": (
        "The folder of `Checkpoint(sharded=True)` is not the same folder on all hosts.",
        "Give a folder that all hosts have mounted, or leave `sharded=True` out.",
    ),
    "PD326": (
        (
            "A warning. A torch `DataLoader` reads the whole data set on each instance, in the "
            "same order, so an update counts the same samples once for each instance."
        ),
        (
            "Use `poptorch.DataLoader(options, ...)`, or give the loader a sampler that divides "
            "the data: `popdist_torch.horovod.DistributedSampler(data)`. An `IterableDataset` has "
            "to divide its samples itself, by `popdist_torch.horovod.rank()`. There is no warning "
            "for rows without a torch loader, or if all samples of the loader are equal; in a "
            "plain loop, an `IterableDataset` of equal samples causes it as well."
        ),
    ),
    "PD327": (
        (
            "A warning. A plain loop updates weights with an optimizer that is not distributed, "
            "so these weights differ between processes. Often a program has two optimizers, and "
            "only one of them was wrapped."
        ),
        (
            "Wrap it in `popdist_torch.horovod.DistributedOptimizer`. If the weights are for this "
            "process only, train them in `with popdist_torch.local_training():`. A "
            "program that averages the gradients itself, by Horovod or torch.distributed, is not "
            "warned of; ignore the warning if it does so by other means."
        ),
    ),
    "PD328": (
        (
            "FSDP (`fully_shard`) or tensor parallelism has divided the model over the processes. "
            "Each process has another part of the weights, so gradients cannot be averaged over "
            "them. torch.distributed exchanges these gradients itself."
        ),
        (
            "Use the optimizer without `DistributedOptimizer`, or leave the model undivided and "
            "let `DistributedOptimizer` exchange its gradients."
        ),
    ),
    "PD329": (
        (
            "A warning, once for each wrapped model. As in PopTorch, the device has weights of its "
            "own: changes of the program between calls (clamped, averaged, pruned or loaded "
            "weights) do not reach the device, and are overwritten when trained weights are read."
        ),
        (
            "Call `copyWeightsToDevice()` of the wrapped model after such a change, or "
            "`load_state_dict` of the wrapped model in place of the module's. Ignore the warning "
            "if the change was for the host only."
        ),
    ),
    "PD330": (
        (
            "`DistributedOptimizer` was called on some processes only, or one of them has deleted "
            "an optimizer that others still use. Processes match their optimizers by the order in "
            "which they are created."
        ),
        (
            "Create all optimizers on every process, in the same order. A process does not need "
            "gradients for each of them: missing gradients count as zero."
        ),
    ),
    "PD331": (
        (
            "The training loaders of a Lightning program have different lengths on the processes, "
            "as where the program divides the data itself. A process with fewer batches would end "
            "the epoch while others wait for its gradients."
        ),
        (
            "Let Lightning divide the data (`use_distributed_sampler=True`, the default), give all "
            "processes as many samples, or set `Trainer(limit_train_batches=...)` to the smallest "
            "number of batches."
        ),
    ),
    "PD332": (
        (
            "A plain loop calls `backward(create_graph=True)`. After `backward()` gradients are "
            "those of all processes, without the graph by which they were computed, so a penalty "
            "of `p.grad` would not be trained."
        ),
        (
            "Compute the gradients of a penalty with `torch.autograd.grad(loss, parameters, "
            "create_graph=True)`, add it to the loss, and call `backward()` once for the sum."
        ),
    ),
    "PD313": (
        (
            "A model compiled with `torch.compile` returns outputs without its loss, or other "
            "outputs than before. popdist cannot find a loss inside compiled code."
        ),
        "Return the loss from `forward` in every step, such as `return output, loss`.",
    ),
    "PD360": (
        "The program calls an operator that it compiles for an IPU, and no function computes it.",
        (
            "Write the function with `@popdist_torch.host_op` in a file, and name the file in "
            "`POPDIST_CUSTOM_OPS` (see [custom operators](custom-operators.md))."
        ),
    ),
    "PD361": (
        "`POPDIST_CUSTOM_OPS` names a file or module that raises an error or does not exist.",
        "The message has the error. Separate several names by colons.",
    ),
    "PD362": (
        "The function of an operator returned another number of tensors than `example_outputs`.",
        "Return one tensor for each example.",
    ),
    "PD363": (
        "A known custom operator was called with an attribute that its function does not have.",
        "Use a value of the message, or register your own function of the same name.",
    ),
    "PD364": (
        (
            "A custom operator over replicas was called where a process has several replicas that "
            "cannot meet: in the backward pass on a GPU, or outside of a wrapped model."
        ),
        "Start as many instances as replicas: `poprun --num-instances=N --num-replicas=N`.",
    ),
    "PD365": (
        (
            "`ReplicatedAllToAll` sends equal parts of the first dimension, which has another "
            "size. Or a local replica calls an operator over replicas, and another one has ended."
        ),
        "Use a multiple of the number of replicas as size. Call the operator on all of them.",
    ),
    "PD370": (
        (
            "The model has a process group of some processes only, processes were not started by "
            "poprun, or torch compiles the exchange into the model (`python_reducer`)."
        ),
        "Leave such a model to torch: no hook, and `poprun` without `--ddp popdist`.",
    ),
    "PD390": (
        ("The argument is not a module or not options, or is wrapped already."),
        "Wrap the module itself. Call `destroy()` before you wrap it again.",
    ),
    "PD391": (
        "The arguments do not fit `forward`, or their shapes are not those of the first call.",
        (
            "Use full batches only (`drop_last=True`), or pad the last batch. After `destroy()`, "
            "the next call sets new shapes."
        ),
    ),
    "PD392": (
        "The model has no tensor or buffer with this name.",
        "See the most similar name in the message, and `getTensorNames()`.",
    ),
    "PD393": (
        "The call runs code of the IPU or reads its state.",
        "Remove the call on hosts; the message has an alternative.",
    ),
    "PD394": (
        (
            "The process that reads the data ahead could not start, died, or raised an error; or "
            "its accessor was terminated, or a new iteration was started."
        ),
        (
            "The message has the process's own error. Programs need the guard "
            '`if __name__ == "__main__":`; exit code -9 usually means that memory ran out.'
        ),
    ),
    "PD395": (
        "Batches that are read ahead or joined are not tensors, or differ in shape or dtype.",
        "Pad samples to one shape, or use `DataLoaderMode.Sync`.",
    ),
    "PD396": (
        "The position is from a loader with other data, batch size, seed or replicas.",
        "Resume with the loader that saved it, or begin a new epoch.",
    ),
}
