"""Every benchmark there is. A new one is a function that yields rows, and an entry here."""

from __future__ import annotations

from benchmarks import (
    exchange,
    imports,
    launcher,
    onnx_training,
    onnx_updates,
    planning,
    tensorflow_training,
    torch_steps,
)
from benchmarks.harness import Benchmark

SUITE = (
    Benchmark(
        name="launcher",
        what="poprun starting two instances of `true`, against mpirun and torchrun",
        aims=(launcher.LAUNCH_AIM,),
        measure=launcher.measure_launch,
    ),
    Benchmark(
        name="many",
        what="poprun starting 64 instances of `true`, against mpirun",
        aims=(launcher.MANY_AIM,),
        measure=launcher.measure_many,
    ),
    Benchmark(
        name="planning",
        what="a dry run of 65,536 replicas in 8,192 instances on 1,024 hosts",
        aims=(planning.TIME_AIM, planning.GROWTH_AIM, planning.MEMORY_AIM),
        measure=planning.measure,
    ),
    Benchmark(
        name="help",
        what="poprun --help, against bare Python",
        aims=(launcher.HELP_AIM,),
        measure=launcher.measure_help,
    ),
    Benchmark(
        name="import",
        what="importing popdist, against bare Python; its adapters, against their frameworks",
        aims=(imports.IMPORT_AIM,),
        measure=imports.measure,
    ),
    Benchmark(
        name="exchange",
        what="summing 4 KiB to 64 MiB over two ranks, against memcpy, MPI, Horovod and gloo",
        aims=(exchange.MEMCPY_AIM, exchange.HOROVOD_AIM),
        measure=exchange.measure,
    ),
    Benchmark(
        name="onnx-updates",
        what="updating the weights of a perceptron by ONNX Runtime, against torch.optim",
        aims=(onnx_updates.UPDATE_AIM,),
        measure=onnx_updates.measure,
    ),
    Benchmark(
        name="onnx",
        what="training steps of ONNX graphs, their memory and compilation, against torch eager",
        aims=onnx_training.AIMS,
        measure=onnx_training.measure,
    ),
    Benchmark(
        name="torch",
        what="training steps of PyTorch models on two ranks and on one, against DDP and Horovod",
        aims=torch_steps.AIMS,
        measure=torch_steps.measure,
    ),
    Benchmark(
        name="tensorflow",
        what="training steps of Keras and an Estimator, against Horovod and TensorFlow's strategy",
        aims=tensorflow_training.AIMS,
        measure=tensorflow_training.measure,
    ),
)
