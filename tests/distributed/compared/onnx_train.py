"""`popdist_onnx.train`, which divides the global batch by itself."""

import io

import numpy as np
import torch

import popdist_onnx

torch.manual_seed(0)
module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4))
file = io.BytesIO()
torch.onnx.export(
    module,
    (torch.zeros(4, 6),),
    file,
    dynamo=False,
    input_names=["x"],
    dynamic_axes={"x": {0: "N"}},
)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(96, 6)).astype(np.float32), rng.integers(0, 4, 96)
popdist_onnx.train(
    file.getvalue(), x, y, batch_size=4, accumulation=2, epochs=2, optimizer="sgd", progress=False
)
