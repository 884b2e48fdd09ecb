"""Causes and fixes: the TensorFlow adapter."""

REMEDIES = {
    "PD400": (
        "An attribute of `IPUConfig` is misspelt or got a value of a wrong type.",
        "See the nearest name in the message.",
    ),
    "PD401": (
        "The configuration describes another place in the job than poprun gave.",
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
        "A type cannot travel between instances, or XLA should compile a step that communicates.",
        "`tf.cast` first; leave out `jit_compile=True`.",
    ),
    "PD411": (
        "A strategy was created before Horovod, or outside of a job that has several processes.",
        "Start with poprun, or call `popdist_tf.ipu.horovod.init()` first.",
    ),
    "PD412": (
        "A strategy was asked for what it cannot do on a host.",
        "Follow the hint.",
    ),
    "PD414": (
        (
            "A Keras model was created outside of the strategy's scope, or its weights are updated "
            "outside of `strategy.run`, so nothing keeps it equal on the instances of the job."
        ),
        (
            "Create and compile it inside of `with strategy.scope():`, and put a step of your own "
            "into a function for `strategy.run(step, args=(batch,))`. Where each instance is to "
            "train a model of its own, create it in the scope of an `IPUStrategy`."
        ),
    ),
    "PD415": (
        "`IPUMultiWorkerStrategy` takes its workers from `TF_CONFIG`, which is not set.",
        "Start with `poprun --tf-config yes`, or set `TF_CONFIG` for each worker.",
    ),
    "PD416": (
        (
            "A variable without aggregation is written in `strategy.run`, and the replicas write "
            "different values: each keeps its own, and a read returns the instance's first one."
        ),
        (
            "Create it with an `aggregation` (`tf.VariableAggregation.MEAN`, say), so that the "
            "replicas' values become one; or with "
            "`synchronization=tf.VariableSynchronization.ON_READ` where each replica is to keep "
            "its own."
        ),
    ),
    "PD417": (
        (
            "Several local replicas run in threads, which cannot meet inside of a loop, a branch "
            "or a `tf.function` in the function given to `strategy.run`; an update of weights is "
            "such a meeting."
        ),
        (
            "Call `strategy.run` inside of the loop, use `ipu.loops.repeat`, or start as many "
            "instances as replicas."
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
        "Return what the message says; do not pass `global_step` to the optimizer.",
    ),
    "PD423": (
        "Some combinations of an estimator's settings do not exist.",
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
            "An optimizer of `ipu.keras.optimizers` was given a number that is out of range, or "
            "wraps something else than an optimizer of Keras."
        ),
        ("Wrap optimizers of `tf.keras.optimizers`; `ipu.optimizers` wraps those of TensorFlow 1."),
    ),
    "PD436": (
        (
            "A Keras model was fitted under a strategy whose reductions are switched off "
            "(`add_ipu_cross_replica_reductions=False`), with an optimizer that does not reduce. A "
            "loop of your own under such a strategy, and `CrossReplicaOptimizer` without a "
            "strategy, get a warning."
        ),
        "Leave the argument away. It is for loops with an optimizer that reduces by itself.",
    ),
    "PD440": (
        (
            "`DistributedOptimizer` was given something else than a Keras optimizer of its own, or "
            "is used under a strategy or a condition."
        ),
        (
            "Wrap the optimizer once, outside of strategies, and apply gradients on every instance "
            "in every step."
        ),
    ),
}
