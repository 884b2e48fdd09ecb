"""Every benchmark there is. A new one is a function that yields rows, and an entry here."""

from __future__ import annotations

from benchmarks import (
    exchange,
    growth,
    imports,
    launcher,
    onnx_link,
    onnx_training,
    onnx_updates,
    planning,
    sdk_names,
    tensorflow_training,
    torch_steps,
)
from benchmarks.harness import Benchmark

SUITE = (
    Benchmark(
        name="launcher",
        what="poprun starting two instances of `true`, against mpirun, torchrun and horovodrun",
        aims=(launcher.LAUNCH_AIM,),
        measure=launcher.measure_launch,
        seconds=110,
    ),
    Benchmark(
        name="many",
        what="poprun starting 64 instances of `true`, against mpirun",
        aims=(launcher.MANY_AIM,),
        measure=launcher.measure_many,
        seconds=40,
    ),
    Benchmark(
        name="phases",
        what="where the time of poprun starting two instances of `true` is spent",
        aims=(),
        measure=launcher.measure_phases,
        seconds=10,
    ),
    Benchmark(
        name="output",
        what="processor time for 1 GB of output of two instances, against mpirun",
        aims=(launcher.OUTPUT_AIM,),
        measure=launcher.measure_output,
        seconds=90,
    ),
    Benchmark(
        name="planning",
        what="a dry run of 65,536 replicas in 8,192 instances on 1,024 hosts",
        aims=(planning.TIME_AIM, planning.GROWTH_AIM, planning.MEMORY_AIM),
        measure=planning.measure,
        seconds=15,
    ),
    Benchmark(
        name="help",
        what="poprun --help, against bare Python",
        aims=(launcher.HELP_AIM,),
        measure=launcher.measure_help,
        seconds=10,
    ),
    Benchmark(
        name="import",
        what="importing popdist, against bare Python; its adapters, against their frameworks",
        aims=(imports.IMPORT_AIM,),
        measure=imports.measure,
        seconds=90,
    ),
    Benchmark(
        name="sdk-names",
        what="starting Python and importing frameworks with the SDK's names enabled, unused",
        aims=(sdk_names.START_AIM,),
        measure=sdk_names.measure,
        seconds=150,
    ),
    Benchmark(
        name="exchange",
        what="summing 4 KiB to 64 MiB over two ranks, against memcpy, MPI, Horovod and gloo",
        aims=(exchange.SLICED_AIM, exchange.HOROVOD_AIM),
        measure=exchange.measure,
        seconds=360,
    ),
    Benchmark(
        name="onnx-updates",
        what="updating the weights of a perceptron by ONNX Runtime, against torch.optim",
        aims=onnx_updates.AIMS,
        measure=onnx_updates.measure,
        seconds=30,
    ),
    Benchmark(
        name="onnx",
        what="training steps of ONNX graphs, memory and compilation, against torch and others",
        aims=onnx_training.AIMS,
        measure=onnx_training.measure,
        seconds=420,
    ),
    Benchmark(
        name="onnx-link",
        what="training ONNX graphs over a link of 1 Gbit/s, against the same without an exchange",
        aims=onnx_link.AIMS,
        measure=onnx_link.measure,
        seconds=90,
    ),
    Benchmark(
        name="torch",
        what="training steps of PyTorch models on two ranks and on one, against DDP and Horovod",
        aims=torch_steps.AIMS,
        measure=torch_steps.measure,
        seconds=360,
    ),
    Benchmark(
        name="tensorflow",
        what="training steps of Keras, an Estimator and a loop, against Horovod and TensorFlow",
        aims=tensorflow_training.AIMS,
        measure=tensorflow_training.measure,
        seconds=240,
    ),
    Benchmark(
        name="growth",
        what="steps on 1, 2, 4 and 8 ranks against a model, and planning 1 to 8,192 instances",
        measure=growth.measure,
        seconds=60,
    ),
)
