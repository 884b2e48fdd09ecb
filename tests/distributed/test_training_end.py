"""Ends of programs: weights that differ, and instances that have exchanged nothing."""

import textwrap

import pytest

from tests.distributed.jobs import LAUNCHER, run_command
from tests.distributed.warm import framework_in, python

LOOP = """
    import copy, torch, popdist_torch.horovod as hvd
    hvd.init()
    torch.manual_seed(3)
    def main():
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.3)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        start = copy.deepcopy(model.state_dict())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()
        {end}
    main()
"""
MODEL = """
    import torch, popdist, popdist.poptorch, popdist_torch as poptorch
    class Model(torch.nn.Linear):
        def forward(self, x, y):
            return torch.nn.functional.cross_entropy(super().forward(x), y)
    options = popdist.poptorch.Options()
    options.randomSeed(1)
    model = Model(4, 2)
    training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), 0.5))
    x = torch.randn(8, 4) + popdist.getInstanceIndex()
    for _ in range(2):
        training(x, (x[:, 0] > 0).long())
    {end}
"""
KERAS = """
    import numpy as np, tensorflow as tf, popdist_tf.keras as hvd
    hvd.init()
    tf.keras.utils.set_random_seed(1)
    x = np.random.default_rng(hvd.rank()).normal(size=(8, 4)).astype("float32")
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)), "mse")
    model.fit(x, x.sum(1), batch_size=4, verbose=0)
    {end}
"""
ONNX = """
    import numpy as np, popdist, popdist_onnx, onnx.parser
    text = ('<ir_version: 8, opset_import: ["": 13]> g (float[N, 4] x) => (float[N, 2] y) '
            '<float[4, 2] w = {{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8}}> {{ y = MatMul(x, w) }}')
    x, instance = np.random.default_rng(0).normal(size=(32, 4)), popdist.getInstanceIndex()
    x = x.astype(np.float32)
    trainer = popdist_onnx.train(
        onnx.parser.parse_model(text), x, (x[:, 0] > 0).astype(np.int64), batch_size=4, epochs=1,
        progress=False,
    )
    {end}
"""
CHANGED = [
    (LOOP, "if hvd.rank(): model.load_state_dict(start)", "weight of SGD"),
    (MODEL, "if popdist.getInstanceIndex(): torch.nn.init.zeros_(model.weight)", "weight of Model"),
    (KERAS, "model.layers[0].kernel.assign_add(np.full((4, 1), hvd.rank(), 'float32'))", "of SGD"),
    (
        ONNX,
        "trainer.session._engine.state.write('w', np.full((4, 2), instance, np.float32))",
        "w of training",
    ),
]


def run(program, *options, instances=2):
    program = textwrap.dedent(program)
    words = [*options, *python(framework_in(program)), "-c", program]
    return run_command([*LAUNCHER, "-np", instances, *words], timeout=200)


@pytest.mark.parametrize(
    ("program", "end", "name"), CHANGED, ids=["loop", "model", "keras", "onnx"]
)
def test_weights_that_differ_at_the_end_are_an_error(program, end, name):
    code, output = run(program.format(end=end))
    assert code == 1, output
    assert "[PD007] the instances have ended with different weights" in output
    assert name in output


@pytest.mark.parametrize(
    "program", [LOOP, MODEL, KERAS, ONNX], ids=["loop", "model", "keras", "onnx"]
)
def test_equal_weights_are_none(program):
    code, output = run(program.format(end="print('end')"))
    assert code == 0, output
    assert "poprun:" not in output


# The optimizer is replaced, and each instance collects the garbage at another time.
REPLACED = {
    "loop": (
        LOOP,
        """
        import gc; gc.disable()
        optimizer = torch.optim.Adam(model.parameters())
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        for step in range(3):
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()
            if step == hvd.rank(): gc.collect()
        """,
    ),
    "model": (
        MODEL,
        """
    import gc; gc.disable()
    kept = training._statement; kept.cycle = kept; del kept
    training.setOptimizer(torch.optim.Adam(model.parameters()))
    for step in range(3):
        training(x, (x[:, 0] > 0).long())
        if step == popdist.getInstanceIndex(): gc.collect()
        """,
    ),
    "keras": (
        KERAS,
        """
    import gc; gc.disable()
    model.optimizer.cycle = model.optimizer
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.1)), "mse")
    for step in range(3):
        model.fit(x, x.sum(1), batch_size=4, verbose=0)
        if step == hvd.rank(): gc.collect()
        """,
    ),
}


@pytest.mark.parametrize(("program", "end"), REPLACED.values(), ids=[*REPLACED])
def test_a_replaced_optimizer_is_none_whenever_it_is_deleted(program, end):
    code, output = run(program.format(end=end))
    assert code == 0, output
    assert "PD007" not in output


def test_the_comparison_can_be_switched_off():
    code, output = run(LOOP.format(end=CHANGED[0][1]), "--check-weights=no")
    assert code == 0, output


def test_an_instance_that_fails_is_the_error():
    code, output = run(LOOP.format(end="if hvd.rank(): raise SystemExit(7)"))
    assert code == 7, output
    assert "PD007" not in output


TORCH = """
    import torch
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 2)).square().mean().backward()
        {step}
"""


def test_instances_that_train_alone_are_named():
    code, output = run(TORCH.format(step="optimizer.step()"))
    assert code == 0, output
    assert "[PD025] the 2 instances have trained without exchanging anything" in output
    assert "torch: popdist_torch.horovod.init()" in output


def test_a_keras_program_that_trains_alone_is_named():
    program = """
    import numpy as np, tensorflow as tf
    x = np.zeros((8, 4), "float32")
    model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, x.sum(1), verbose=0)
    """
    code, output = run(program)
    assert code == 0, output
    assert "hint:     Keras: popdist_tf.keras.init()" in output


@pytest.mark.parametrize(
    "program",
    [
        TORCH.format(step="pass"),
        TORCH.format(step="__import__('os').environ['RANK'] == '0' and optimizer.step()"),
        "import torch; print(torch.ones(2).sum())",
        "print('no training')",
    ],
    ids=["gradients", "one instance", "no optimizer", "no framework"],
)
def test_programs_that_do_not_all_train_are_not_named(program):
    code, output = run(program)
    assert code == 0, output
    assert "PD025" not in output


def test_a_program_that_trains_alone_before_it_is_connected_is_not_named():
    connected = """
    import popdist_torch.horovod as hvd
    hvd.init()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    optimizer.zero_grad()
    model(torch.ones(8, 2)).square().mean().backward()
    optimizer.step()
    """
    code, output = run(TORCH.format(step="optimizer.step()") + connected)
    assert code == 0, output
    assert "PD025" not in output


def test_a_network_that_torch_trains_alone_and_onnx_on_all_instances_is_not_named():
    program = TORCH.format(step="optimizer.step()") + ONNX.format(end="")
    code, output = run(program)
    assert code == 0, output
    assert "PD025" not in output


def test_torch_distributed_exchanges_too():
    program = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.randn(8, 2)).square().mean().backward()
    optimizer.step()
    dist.destroy_process_group()
    """
    code, output = run(program)
    assert code == 0, output
    assert "PD025" not in output


PLAIN = """
    import os, horovod.torch as hvd, torch
    from torch.nn.parallel import DistributedDataParallel
    rank = int(os.environ["RANK"])
    {start}
    torch.manual_seed({seed})
    def main():
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        {wrap}
        torch.manual_seed(rank)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()
    main()
    {end}
"""
GROUP = "torch.distributed.init_process_group('gloo')"
DISTRIBUTED = "optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())"
OWN = {
    "DDP forgotten": ("1", GROUP, "pass", True),
    "Horovod's optimizer forgotten": ("1", "hvd.init()", "pass", True),
    "first weights not broadcast": ("rank", "hvd.init()", DISTRIBUTED, True),
    "DDP": ("rank", GROUP, "model = DistributedDataParallel(model)", False),
    "Horovod": (
        "rank",
        "hvd.init()",
        f"hvd.broadcast_parameters(model.state_dict(), 0); {DISTRIBUTED}",
        False,
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_a_connected_program_whose_instances_all_end_elsewhere_is_named(name):
    """None of popdist's adapters is in use, so only the weights at the end can tell."""
    seed, start, wrap, is_named = OWN[name]
    end = "torch.distributed.destroy_process_group()" if start == GROUP else "pass"
    code, output = run(PLAIN.format(seed=seed, start=start, wrap=wrap, end=end))
    assert code == 0, output
    assert ("[PD025]" in output) == is_named, output
    if is_named:
        assert "all 2 differ, so each has a model of its own" in output
