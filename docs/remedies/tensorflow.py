"""Causes and fixes: the TensorFlow adapter."""

REMEDIES = {
    "PD400": (
        "An attribute of `IPUConfig` is misspelt or got a value of a wrong type.",
        "See the most similar name in the message.",
    ),
    "PD401": (
        "The configuration differs from the instances and replicas of poprun.",
        "`popdist.tensorflow.set_ipu_config(config, ipus_per_replica=1)` sets it.",
    ),
    "PD402": (
        "TensorFlow had started before the devices were set up.",
        (
            "Create the strategy, or call `configure_ipu_system`, before the first tensor, "
            "variable or data set."
        ),
    ),
    "PD410": (
        "Horovod cannot exchange the dtype, or XLA should compile a step that communicates.",
        "Use `tf.cast` before the exchange; remove `jit_compile=True`.",
    ),
    "PD411": (
        "A strategy was created before Horovod, or outside of a job that has several processes.",
        "Start with poprun, or call `popdist_tf.ipu.horovod.init()` first.",
    ),
    "PD412": (
        "A strategy does not support this operation on a host.",
        "Follow the hint.",
    ),
    "PD414": (
        (
            "A Keras model was created outside of the strategy's scope, or its weights are updated "
            "outside of `strategy.run`, so its weights would differ between instances."
        ),
        (
            "Create and compile it inside of `with strategy.scope():`. Put your own training step "
            "into a function for `strategy.run(step, args=(batch,))`. If each instance shall train "
            "a separate model, create it in the scope of an `IPUStrategy`."
        ),
    ),
    "PD415": (
        "`IPUMultiWorkerStrategy` reads its workers from `TF_CONFIG`, which is not set.",
        "Start with `poprun --tf-config yes`, or set `TF_CONFIG` for each worker.",
    ),
    "PD416": (
        (
            "A variable without aggregation is written in `strategy.run`, and the replicas write "
            "different values: each keeps its own, and a read returns the instance's first one."
        ),
        (
            "Create it with an `aggregation`, such as `tf.VariableAggregation.MEAN`, to combine "
            "the values of replicas. If each replica shall keep its own value, use "
            "`synchronization=tf.VariableSynchronization.ON_READ`. For the moving averages of "
            "batch normalisation in Keras 3: `BatchNormalization(synchronized=True)`."
        ),
    ),
    "PD417": (
        (
            "Several local replicas run in threads. Threads cannot be synchronised inside of a "
            "loop, a branch or a `tf.function` in the function of `strategy.run`, and an update of "
            "weights needs synchronisation."
        ),
        (
            "Call `strategy.run` inside of the loop, use `ipu.loops.repeat`, or start as many "
            "instances as replicas."
        ),
    ),
    "PD418": (
        (
            "A warning. All instances train on the same rows: `fit` was given the same arrays "
            "everywhere, or the same batches arrived in the first two steps, by arguments or by an "
            "infeed queue. Of a step that gets its batch in another way, the gradients are "
            "compared. An update counts each sample once for each instance, and the job computes "
            "what one process would."
        ),
        (
            "Divide the data: `dataset.shard(popdist.getNumInstances(), "
            "popdist.getInstanceIndex())`, or `x[popdist.getInstanceIndex()::"
            "popdist.getNumInstances()]`. Where equal rows are meant: "
            '`warnings.filterwarnings("ignore", message=r"\\[PD418\\]")`.'
        ),
    ),
    "PD419": (
        (
            "A warning. `auto_select_ipus` selects more devices than the replicas of this process "
            "have. On the original hardware a model that needs one device would be replicated on "
            "all of them; here the launcher decides how many replicas there are."
        ),
        (
            "Start with `poprun --num-replicas` and train under `PopDistStrategy`, or select as "
            "many devices as there are replicas. Models in pipeline stages bring no warning."
        ),
    ),
    "PD420": (
        "Estimators ended with TensorFlow 2.15.",
        (
            "Install the default set of versions, or train with Keras ([coming from "
            "tf.estimator](from-tf-estimator.md))."
        ),
    ),
    "PD421": (
        "The estimator's configuration contradicts itself.",
        "Follow the hint.",
    ),
    "PD422": (
        (
            "`model_fn`, `input_fn` or `host_call` returned something of a wrong type, or counted "
            "the global step itself."
        ),
        "Return the type in the message; do not pass `global_step` to the optimizer.",
    ),
    "PD423": (
        "This combination of an estimator's settings is not supported.",
        "Follow the hint.",
    ),
    "PD424": (
        (
            "Arguments of a pipeline, or of an optimizer that accumulates gradients, contradict "
            "each other, or name a reduction that does not exist."
        ),
        "Follow the hint; the published arguments are in the API of `ipu.pipelining_ops`.",
    ),
    "PD425": (
        (
            "`set_pipelining_options`, `set_gradient_accumulation_options` or an assignment of "
            "stages contradicts the model, the data or itself."
        ),
        (
            "Give every layer a stage, number stages from 0 in the order of the data, and make "
            "`steps_per_execution` and the steps of an epoch multiples of the micro-batches of an "
            "update."
        ),
    ),
    "PD426": (
        "The published methods for gradient accumulation change optimizers of Keras 2.",
        (
            "With Keras 3, create the optimizer with `gradient_accumulation_steps`, or install the "
            "default set of versions."
        ),
    ),
    "PD427": (
        (
            "`ipu.optimizers.CrossReplicaOptimizer` averages gradients over the replicas, and the "
            "strategy sums these averages: an update is as many times too large as there are "
            "replicas."
        ),
        "Create the strategy with `add_ipu_cross_replica_reductions=False` beside this optimizer.",
    ),
    "PD428": (
        "A loop with an infeed or outfeed queue is in a `tf.function` with `jit_compile=True`.",
        "Remove `jit_compile=True`: the loop computes the same without it.",
    ),
    "PD429": (
        (
            "A warning. `IPUHorovodStrategy` and `IPUMultiWorkerStrategy` run one replica in each "
            "process, and `poprun` started each process for several. An update takes the data of "
            "one replica of each process."
        ),
        (
            "Use `PopDistStrategy`, which runs all replicas of a process, or start as many "
            "instances as replicas."
        ),
    ),
    "PD430": (
        (
            "A warning. `adapt` of a preprocessing layer (`Normalization`, `TextVectorization`, "
            "`StringLookup`, ...) uses the data that this instance gives it. The instances gave "
            "other data, so equal samples become other inputs on each of them. Where such a layer "
            "is part of a model that is fitted, PD007 ends the training."
        ),
        (
            "Adapt the layer to the same samples on all instances. Or compute its state once and "
            "share it: `Normalization(mean=..., variance=...)`, `set_vocabulary(...)`, or the "
            "layer's file. Where a program shares the results: "
            '`warnings.filterwarnings("ignore", message=r"\\[PD430\\]")`.'
        ),
    ),
    "PD431": (
        (
            "A warning. An update is not that of one process with the rows of all instances. "
            "Either batches of the instances have different sizes. Or a model was measured in "
            "`fit`: the gradients of the halves of a batch do not add up to the gradient of the "
            "whole. Reasons are a mean over as many elements as a batch has (a mask, weights), a "
            "function of a mean, a loss that compares rows, gradients that a `train_step` clips "
            "before it applies them, and a constant factor: a `train_step` that divides its mean "
            "by no number of replicas, or a sum whose gradients "
            "`popdist_tf.keras.DistributedOptimizer` averages."
        ),
        (
            "Use Keras' losses, or divide by `tf.distribute.get_strategy().num_replicas_in_sync` "
            "in the step. Divide sums by counts of the global batch. Give all instances as many "
            "rows. Clip with `clipnorm`, `global_clipnorm` or `clipvalue` of the optimizer. "
            "Keras' losses with masks are exact under `PopDistStrategy`. Where each replica's own "
            "loss is meant, set `POPDIST_SKIP_CHECKS=parts`, or use "
            '`warnings.filterwarnings("ignore", message=r"\\[PD431\\]")`. [Checks](checks.md) '
            "says what is measured."
        ),
    ),
    "PD433": (
        (
            "An operation over replicas (`all_gather`, `all_to_all`, `reduce_scatter`) was called "
            "for another number of replicas than the job has, or for a dimension that cannot be "
            "divided over them."
        ),
        "Pass `popdist.getNumTotalReplicas()`, and a dimension that is a multiple of it.",
    ),
    "PD434": (
        "An argument of a published layer or operation contradicts another, or does not exist.",
        "Follow the hint; the published arguments are in the API of `ipu.keras.layers`.",
    ),
    "PD435": (
        (
            "A number of an optimizer of `ipu.keras.optimizers` is out of range, or the optimizer "
            "wraps an object that is not a Keras optimizer."
        ),
        ("Wrap optimizers of `tf.keras.optimizers`; `ipu.optimizers` wraps those of TensorFlow 1."),
    ),
    "PD436": (
        (
            "A Keras model was fitted under a strategy whose reductions are switched off "
            "(`add_ipu_cross_replica_reductions=False`), with an optimizer that does not reduce. "
            "Your own loop under such a strategy, and `CrossReplicaOptimizer` without a strategy, "
            "get a warning."
        ),
        "Remove the argument. It is for loops with an optimizer that reduces gradients itself.",
    ),
    "PD437": (
        (
            "`popdist_tf.shard` gives each replica its rows of each global batch. A batch has a "
            "number of rows that the replicas do not divide, or the data set is shuffled without "
            "a seed, so that the rows of the instances would overlap."
        ),
        (
            "Use `batch(rows, drop_remainder=True)` with a multiple of the replicas, and "
            "`shuffle(size, seed=0)` or `tf.random.set_seed`."
        ),
    ),
    "PD438": (
        (
            "A program calls an operator of a library that is compiled for an IPU "
            "(`custom_ops.precompiled_user_op`). On a host, a Python function computes it, and "
            "none is registered by the names of this library and operator, or the function returns "
            "other tensors than the program asks for."
        ),
        (
            "Write the function as [Custom operators](custom-operators.md) shows, and name its "
            "file in `POPDIST_CUSTOM_OPS`."
        ),
    ),
    "PD440": (
        (
            "The argument of `DistributedOptimizer` is not a Keras optimizer, or is wrapped "
            "already, or the wrapper is used under a strategy or a condition."
        ),
        (
            "Wrap the optimizer once, outside of strategies, and apply gradients on every instance "
            "in every step."
        ),
    ),
}
