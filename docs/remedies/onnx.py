"""Causes and fixes: the ONNX adapter."""

REMEDIES = {
    "PD500": (
        "An id is misspelt, or belongs to another builder.",
        "See the most similar id in the message.",
    ),
    "PD501": (
        "A builder's method has an unknown argument, or an argument is missing.",
        "`help(builder.aiOnnx.conv)` shows names and defaults ([builder](onnx-builder.md)).",
    ),
    "PD502": (
        "One builder used two operator sets, or one that does not exist.",
        "Choose it once: `Builder(opsets={'ai.onnx': 17})`.",
    ),
    "PD503": (
        "The operator needs an IPU, or ONNX has no operators that compute it.",
        "The message has an alternative ([operators](onnx-operators.md)).",
    ),
    "PD504": (
        "A name is in use, is unknown, or has a prefix that is reserved for training.",
        "Give the tensor another name.",
    ),
    "PD505": (
        "An attribute exists already, does not exist, or has another type.",
        "Follow the hint.",
    ),
    "PD506": (
        "A session option is misspelt or got a value of another type.",
        "See the most similar name, and the [session options](onnx-builder.md#session-options).",
    ),
    "PD507": (
        "A shape or dtype is malformed, or cannot be inferred from the model.",
        "Write `TensorInfo('FLOAT', [4, 10])`; weights are numpy arrays.",
    ),
    "PD508": (
        "Anchors are not a list or a dictionary of ids.",
        "Write `DataFlow(1, [loss])`.",
    ),
    "PD509": (
        "A file cannot be read or written, or a model is larger than the 2 GiB of one file.",
        "Store large weights in a separate file: `saveInitializersExternally`.",
    ),
    "PD510": (
        "Shapes of operands do not match.",
        "Correct the shapes in the message.",
    ),
    "PD511": (
        "An operator of PopART is unknown, or its conversion to ONNX needs unknown shapes.",
        "Give the model's inputs fixed shapes, for example with `InputShapeInfo`.",
    ),
    "PD520": (
        (
            "The path is wrong, the file is not an ONNX model, or the folder for a saved model "
            "does not exist."
        ),
        "Give an `.onnx` file or bytes; create the folder before you save a model.",
    ),
    "PD610": (
        (
            "A tensor's data lie outside of the model's folder, are not in a regular file, or are "
            "not of the size that the tensor's shape needs: a damaged or a hostile file."
        ),
        "Copy or export the model again, with its external data in the same folder.",
    ),
    "PD611": (
        "The model's graph is not valid ONNX; the message has the reason from onnx's checker.",
        "Export the model again, or report the file where the message asks for that.",
    ),
    "PD521": (
        "The model's opset is below 6, or it uses a form that only old opsets had.",
        "Export it again with a newer opset.",
    ),
    "PD522": (
        "An operator between a weight and the loss has no gradient.",
        (
            "`python -m popdist_onnx operators model.onnx` lists such operators. Replace the "
            "operator, or stop the gradient before it with `aiGraphcore.detach`."
        ),
    ),
    "PD523": (
        "The model has no tensor with the name of the loss, or it is not a scalar.",
        "Reduce it to a scalar, for example with `builder.aiGraphcore.identityloss`.",
    ),
    "PD524": (
        "After a pass of popdist or of the program, the graph is not a valid model.",
        "If it is a pass of popdist, please report it with the model.",
    ),
    "PD525": (
        "A gradient needs a shape that the graph does not define.",
        "Export the model with fixed shapes.",
    ),
    "PD540": (
        "A setting of an optimizer is misspelt or malformed.",
        "See the most similar name in the message.",
    ),
    "PD541": (
        "A setting is out of its range.",
        "The message shows the range.",
    ),
    "PD542": (
        "A new optimizer needs another graph than that of the session.",
        "Values marked as not constant may change; other changes need a new session.",
    ),
    "PD543": (
        "Settings of an optimizer contradict each other.",
        "Follow the hint.",
    ),
    "PD544": (
        "The weight of a specific setting is not in the model.",
        "See the most similar id in the message.",
    ),
    "PD545": (
        (
            "No weight of the model has a gradient: it has no weights, all are frozen or "
            "quantized, an operator without a gradient is between weights and loss, or your own "
            "passes have used the gradients already."
        ),
        (
            "The error lists these operators. Store weights as floating-point initializers. Run "
            "your own [passes](onnx-passes.md) in the right order."
        ),
    ),
    "PD546": (
        "A file has the state of another optimizer.",
        "Use the settings of the earlier training, or remove the state.",
    ),
    "PD547": (
        ("Options cannot be combined in PopART either, or are not supported on a host."),
        "See [what is refused](onnx-passes.md#what-is-refused).",
    ),
    "PD548": (
        "The graph exchanges its gradients already, or has no gradients.",
        "Run the pass once, after autodiff.",
    ),
    "PD549": (
        "One gradient depends on the update of another gradient.",
        "Exchange them in two models, or leave one of them out.",
    ),
    "PD560": (
        "A tensor has no known type.",
        "Export the model with types of its values.",
    ),
    "PD561": (
        "The nodes of a graph are not in topological order, or form a circle.",
        "Sort them if you write a model by hand.",
    ),
    "PD562": (
        "No anchor depends on an operator of the model.",
        "Anchor a tensor that an operator computes.",
    ),
    "PD563": (
        "ONNX Runtime refuses the graph; the message includes its error.",
        "See the operator or dtype in that error.",
    ),
    "PD564": (
        "ONNX Runtime stopped in a step; the message includes its error.",
        "Check the data: the usual cause is an index out of range.",
    ),
    "PD565": (
        "`hostAllReduce` is set, but the gradients are not exchanged.",
        (
            "Create the `DistributedOptimizer` and call `insert_host_allreduce()` before `run`, "
            "or switch the option off."
        ),
    ),
    "PD566": (
        "`enableFloatingPointChecks` found a number that is not finite.",
        (
            "The message has the first such tensor and its node. Use a lower learning rate, or "
            "check the data."
        ),
    ),
    "PD567": (
        "There is no stream of this name.",
        "`session.getHostReduceStreamIds()` lists them.",
    ),
    "PD569": (
        "Options describe replicas of other processes, but this process was started alone.",
        "Start with poprun, and let `popdist.popart.configureSessionOptions(options)` set them.",
    ),
    "PD570": (
        "The device does not exist on this machine.",
        "`DeviceManager().createCpuDevice()` always exists.",
    ),
    "PD571": (
        "Arrays have other shapes or types than the model's inputs.",
        "`session.initAnchorArrays()` makes the arrays of anchors; cast inputs with `astype`.",
    ),
    "PD572": (
        "Options are not supported by this kind of session.",
        "Follow the hint.",
    ),
    "PD573": (
        "The size of an input is unknown, or two statements about it differ.",
        "Give `InputShapeInfo`.",
    ),
    "PD574": (
        "Weights are constant, unknown, or of another shape.",
        "`constantWeights = False` lets an inference session's weights change.",
    ),
    "PD575": (
        "An option for cycle counts or random streams was not set before the session was made.",
        "Set the option in the message.",
    ),
    "PD576": (
        "A session has no such tensor.",
        "See the most similar id in the message.",
    ),
    "PD577": (
        "Methods were called in the wrong order.",
        "Call `prepareDevice`, `weightsFromHost`, then `run`.",
    ),
    "PD578": (
        "`DistributedOptimizer` got no training session, or the option is off.",
        "Set `options.hostAllReduce = True` before you create the session.",
    ),
    "PD581": (
        "The loss scale is constant, or the listed tensors have no gradients.",
        "Give the optimizer `lossScaling: (value, False)`, and list tensors that have gradients.",
    ),
    "PD583": (
        "A setting of `popdist_onnx.train`, a metric or a callback does not exist or does not fit.",
        "See the accepted values in the message.",
    ),
    "PD584": (
        "`from_torch` cannot export the module, or `to_torch` finds other weights in it.",
        "Follow the hint; give `to_torch` the module that was exported.",
    ),
    "PD585": (
        "The file for `Trainer.resume` is not a checkpoint, or is from another training.",
        "Create the trainer with the settings of the training that you resume.",
    ),
    "PD586": (
        "An element of a data set does not match the inputs of the model, or data end early.",
        "Each element must be `(inputs, labels)`, or a dictionary from input to array.",
    ),
    "PD592": (
        "torch's exporter has exported an operator wrongly, or has lost a write to a view.",
        "Try the other exporter, or write the submodule in the message in another way.",
    ),
    "PD593": (
        "torch's newer exporter writes equal weights once, and transposed weights as constants.",
        "Export with `popdist_onnx.from_torch`, or with `optimize=False`, in training mode.",
    ),
    "PD594": (
        "`forward` changes a buffer, such as `u` of spectral norm or a mean without a momentum.",
        "Give the normalisation a momentum, or compute the value from inputs and parameters.",
    ),
    "PD595": (
        "`max_norm`, `scale_grad_by_freq`, or bags of several lengths; files carry none of these.",
        "Train without the setting; fill bags up to one length with the row of `padding_idx`.",
    ),
    "PD124": (
        "`forward` takes a number out of a tensor (`if x.sum() > 0`); the file has the examples'.",
        'Use `torch.where`, masks or indices, or `exporter="dynamo"`.',
    ),
    "PD597": (
        "`forward` has `detach`, `no_grad`, `.item()`, hooks or an own backward; files have none.",
        "Write `forward` without them, or freeze what they keep from training.",
    ),
    "PD598": (
        "A quantized model computes on whole numbers, which have no gradient.",
        "Train before quantization, or with pairs of `QuantizeLinear` and `DequantizeLinear`.",
    ),
    "PD600": (
        (
            "A micro-batch was measured before an update: its loss is not the mean of the losses "
            "of its halves, so the parts of a global batch (replicas x accumulation) train another "
            "model than one process. Reasons are comparisons of samples, the largest or hardest "
            "samples, a root of a sum, a standard deviation, and batches that are mixed inside the "
            "model."
        ),
        (
            "Use means over samples, or sums divided by counts: these are computed from the "
            "global batch. Or use a larger `batch_size` with less accumulation. Where each part's "
            "own loss is meant, set `POPDIST_SKIP_CHECKS=parts`. [Checks](checks.md) says what is "
            "measured."
        ),
    ),
    "PD599": (
        "The condition of an `aiGraphcore.abort` in the model was not zero.",
        "Check the data of this step: the message names the tensor of the condition.",
    ),
    "PD596": (
        "torch's dynamo exporter needs `onnxscript`, or a newer onnx-ir.",
        "Install `onnxscript` without TensorFlow 2.15, or use the torchscript exporter.",
    ),
    "PD580": (
        "Shape inference stopped at an operator, or a shape depends on values.",
        "See the node and the reason in the message: usually shapes of operands do not match.",
    ),
    "PD579": (
        "`popdist_onnx.train` got data, a loss or an optimizer that do not fit the model.",
        "The hint has the correct argument.",
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
