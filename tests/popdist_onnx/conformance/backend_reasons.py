"""The cases of ONNX's backend suite that are not the same, and why."""

RELEASE = "1.18"
"""The release of onnx whose suite this is."""

FORWARD = [
    (
        "scan_sum",
        "refused",
        "`Scan` of opset 8 has a batch dimension, and no newer form",
    ),
]
"""Cases that ONNX Runtime passes: patterns, word, reason."""

GRADIENT = [
    (
        "gridsample_bicubic* gridsample_reflection_padding gridsample_volumetric_*",
        "refused",
        "`GridSample` has a rule for images, linear or nearest, padded by zeros or the border",
    ),
    ("*deform_conv_*", "no rule", "`DeformConv` has no rule"),
    ("scatternd_multiply", "refused", "`ScatterND` has rules for `add` and without a reduction"),
    (
        "maxpool_with_argmax_2d_precomputed_strides",
        "refused",
        "`MaxPool` with `storage_order` 1 has no rule",
    ),
    ("ai_onnx_ml_*", "no rule", "preprocessing and trees of `ai.onnx.ml` have no rules"),
    ("melweightmatrix", "no rule", "`MelWeightMatrix` has no rule"),
    (
        "batchnorm_*_training_mode",
        "differs",
        "the running statistics are outputs; no gradient passes through them, as in torch",
    ),
    ("acosh_example pow", "differs", "an element is at the edge of the domain: no difference"),
    (
        "affine_grid_2d_*expanded",
        "refused",
        "shapes in the function that only a run tells; the operator itself has a rule",
    ),
    (
        "range_float_type_positive_delta_expanded",
        "no judge",
        "evaluator and ONNX Runtime do not take its numbers without a dimension",
    ),
    ("unique_*", "no judge", "neither evaluator nor ONNX Runtime takes what follows it"),
    ("scan_sum", "refused", "as forward"),
]
"""Gradients: patterns, words with commas between them, reason."""

SETTINGS: dict[str, tuple[tuple[int, ...], str]] = {
    "BatchNormalization": ((3, 4), "running statistics"),
    "DequantizeLinear": ((1,), "scales"),
    "Dropout": ((1,), "the ratio"),
    "NegativeLogLikelihoodLoss": ((2,), "weights of classes"),
    "OneHot": ((0, 1), "indices and depth"),
    "QuantizeLinear": ((1,), "scales"),
    "Range": ((0, 1, 2), "limits"),
    "Resize": ((1, 2), "scales and regions"),
    "RoiAlign": ((1,), "regions"),
    "SoftmaxCrossEntropyLoss": ((2,), "weights of classes"),
    "Upsample": ((1,), "scales"),
}
"""By operator: the inputs that only set something, of which no gradient is compared."""
