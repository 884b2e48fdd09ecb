"""Causes and fixes: the ONNX adapter."""

REMEDIES = {
    "PD500": (
        "An id is misspelt, or belongs to another builder.",
        "See the nearest id in the message.",
    ),
    "PD501": (
        "A builder's method got an unknown argument, or lacks one.",
        "`help(builder.aiOnnx.conv)` shows names and defaults ([builder](onnx-builder.md)).",
    ),
    "PD502": (
        "One builder used two operator sets, or one that does not exist.",
        "Choose it once: `Builder(opsets={'ai.onnx': 17})`.",
    ),
    "PD503": (
        "The operator needs an IPU, or ONNX has nothing that computes it.",
        "The message says what to use ([operators](onnx-operators.md)).",
    ),
    "PD504": (
        "A name is taken, unknown, or begins as names that training adds.",
        "Give the tensor another name.",
    ),
    "PD505": (
        "An attribute is there already, is not there, or has another type.",
        "Follow the hint.",
    ),
    "PD506": (
        "A session option is misspelt or got a value of another type.",
        "See the nearest name; [session options](onnx-builder.md#session-options).",
    ),
    "PD507": (
        "A shape or type is malformed, or cannot be told from the model.",
        "Write `TensorInfo('FLOAT', [4, 10])`; weights are numpy arrays.",
    ),
    "PD508": (
        "Anchors are not a list or a dictionary of ids.",
        "Write `DataFlow(1, [loss])`.",
    ),
    "PD509": (
        "A file cannot be read or written, or a model is larger than the 2 GiB of one file.",
        "Keep large weights in a file of their own: `saveInitializersExternally`.",
    ),
    "PD510": (
        "Shapes of operands do not go together.",
        "Look at the shapes that are named.",
    ),
    "PD511": (
        "An operator of PopART is unknown, or its lowering needs shapes that are open.",
        "Give the model's inputs fixed shapes, for example with `InputShapeInfo`.",
    ),
    "PD520": (
        (
            "The path is wrong, the file holds no ONNX model, or the folder to save to does not "
            "exist."
        ),
        "Give an `.onnx` file or bytes; create the folder before a model is saved.",
    ),
    "PD521": (
        "The model's opset is below 6, or it uses a form that only old opsets had.",
        "Export it again with a newer opset.",
    ),
    "PD522": (
        "An operator between a weight and the loss has no gradient.",
        (
            "`python -m popdist_onnx operators model.onnx` lists all such. Replace the operator, "
            "or stop the gradient before it with `aiGraphcore.detach`."
        ),
    ),
    "PD523": (
        "The loss is not there, or not a scalar.",
        "Reduce it, for example with `builder.aiGraphcore.identityloss`.",
    ),
    "PD524": (
        "A pass of ours, or of a program, left a graph that is not a valid model.",
        "Where it is ours, please report it with the model.",
    ),
    "PD525": (
        "A gradient needs a shape that the graph does not tell.",
        "Export the model with fixed shapes.",
    ),
    "PD540": (
        "A setting of an optimizer is misspelt or malformed.",
        "See the nearest name.",
    ),
    "PD541": (
        "A setting is out of its range.",
        "The message shows the range.",
    ),
    "PD542": (
        "A new optimizer needs another graph than the session was built with.",
        "Values marked as not constant may change; other changes need a new session.",
    ),
    "PD543": (
        "Settings of an optimizer contradict each other.",
        "Follow the hint.",
    ),
    "PD544": (
        "A setting for one weight names none of the model.",
        "See the nearest id.",
    ),
    "PD545": (
        (
            "No weight of the model gets a gradient: it has no weights, they are all frozen or "
            "quantized, or an operator without a gradient is in the way. Or passes of your own "
            "have used the gradients already."
        ),
        (
            "The error names the operators in the way. Keep weights as floating-point "
            "initializers; run [passes](onnx-passes.md) of your own in their order."
        ),
    ),
    "PD546": (
        "A file holds the state of another optimizer.",
        "Use the settings it was trained with, or remove the state.",
    ),
    "PD547": (
        (
            "Options are combined that PopART does not combine either, or that a host does not "
            "carry out."
        ),
        "[What is refused](onnx-passes.md#what-is-refused).",
    ),
    "PD548": (
        "Gradients are exchanged already, or there are none.",
        "Insert the pass once, after autodiff.",
    ),
    "PD549": (
        "One gradient depends on what another one updates.",
        "Exchange them in two models, or leave one of them out.",
    ),
    "PD560": (
        "A tensor has no known type.",
        "Export the model with types of its values.",
    ),
    "PD561": (
        "The nodes of a graph are out of order, or form a circle.",
        "Sort them when writing a model by hand.",
    ),
    "PD562": (
        "No anchor needs anything of the model.",
        "Anchor a tensor that an operator makes.",
    ),
    "PD563": (
        "ONNX Runtime refuses the graph; its words follow.",
        "See which operator or type it names.",
    ),
    "PD564": (
        "ONNX Runtime stopped in a step; its words follow.",
        "Usually data, such as an index out of range.",
    ),
    "PD565": (
        "`hostAllReduce` is set, and nothing sums the gradients.",
        (
            "Create the `DistributedOptimizer` and call `insert_host_allreduce()` before `run`, "
            "or leave the option off."
        ),
    ),
    "PD566": (
        "`enableFloatingPointChecks` found a number that is not finite.",
        (
            "The message names the first tensor and its node; a lower learning rate, or look at "
            "the data."
        ),
    ),
    "PD567": (
        "There is no stream of this name.",
        "`session.getHostReduceStreamIds()` lists them.",
    ),
    "PD569": (
        "Options speak of replicas elsewhere, but this process is alone.",
        "Start with poprun, and let `popdist.popart.configureSessionOptions(options)` set them.",
    ),
    "PD570": (
        "A device was asked for that does not exist here.",
        "`DeviceManager().createCpuDevice()` always does.",
    ),
    "PD571": (
        "Arrays have other shapes or types than the model's inputs.",
        "`session.initAnchorArrays()` makes those for anchors; cast inputs with `astype`.",
    ),
    "PD572": (
        "Options do not go together with this kind of session.",
        "Follow the hint.",
    ),
    "PD573": (
        "An input's size is open, or two statements about it differ.",
        "Give `InputShapeInfo`.",
    ),
    "PD574": (
        "Weights are constant, unknown, or of another shape.",
        "`constantWeights = False` lets an inference session's weights change.",
    ),
    "PD575": (
        "Cycle counts or random streams were not asked for beforehand.",
        "Set the option that is named.",
    ),
    "PD576": (
        "A session has no such tensor.",
        "See the nearest id.",
    ),
    "PD577": (
        "Calls came in another order than they must.",
        "`prepareDevice`, `weightsFromHost`, then `run`.",
    ),
    "PD578": (
        "`DistributedOptimizer` got no training session, or the option is off.",
        "`options.hostAllReduce = True` before the session is made.",
    ),
    "PD581": (
        "The loss scale is constant, or no gradient is there to be watched.",
        "Give the optimizer `lossScaling: (value, False)`, and watch tensors that have gradients.",
    ),
    "PD583": (
        "A setting of `popdist_onnx.train`, a metric or a callback does not exist or does not fit.",
        "See what is accepted.",
    ),
    "PD584": (
        "`from_torch` cannot export the module, or `to_torch` finds other weights in it.",
        "Follow the hint; give `to_torch` the module that was exported.",
    ),
    "PD585": (
        "`Trainer.resume` was given a file that another training, or none, has written.",
        "Make the trainer with the settings of the training that is continued.",
    ),
    "PD586": (
        "An element of a data set has other parts than the model has inputs, or data run out.",
        "Let each element be `(inputs, labels)` or a dictionary by input.",
    ),
    "PD592": (
        "torch's exporter wrote an operator wrongly, or lost what is written into a view.",
        "Try the other exporter, or write the submodule that the message names in another way.",
    ),
    "PD596": (
        "torch's dynamo exporter lacks `onnxscript`, or finds an onnx-ir that is too old for it.",
        "Install `onnxscript` where TensorFlow 2.15 is not, or take the torchscript exporter.",
    ),
    "PD580": (
        "Shape inference stopped at an operator, or a shape depends on values.",
        "See the node and the reason that are named: mostly operands that do not fit each other.",
    ),
    "PD579": (
        "`popdist_onnx.train` got data, a loss or an optimizer that do not fit the model.",
        "The hint has the argument to write.",
    ),
    "PD590": (
        "The names in `PyStepIO` are not those of the model's inputs, or of the anchors.",
        "Give every input and every anchor; `session.initAnchorArrays()` makes the anchors.",
    ),
    "PD591": (
        "Replicas of one process run one after the other, or groups do not divide all replicas.",
        "Start as many instances as replicas, and give a `commGroup` whose size divides them.",
    ),
}
