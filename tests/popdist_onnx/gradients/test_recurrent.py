"""Recurrent layers, held to a loop in torch that is written from ONNX's definition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from popdist_onnx.errors import popart_exception
from popdist_onnx.gradients import recurrent
from tests.popdist_onnx.gradients.harness import Case, check, normal

STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 4, 2
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def loop(kind, direction, *, late=False, peephole=False, coupled=False):
    """One direction after the other, one step after the other."""

    def layer(x, w, r, b=None, lengths=None, h0=None, c0=None, p=None):
        hidden, gates = r.shape[2], GATES[kind]
        outputs, last_h, last_c = [], [], []
        lengths = torch.full((x.shape[1],), x.shape[0]) if lengths is None else lengths
        for d in range(w.shape[0]):
            reverse = direction == "reverse" or d == 1
            h = x.new_zeros(x.shape[1], hidden) if h0 is None else h0[d]
            c = x.new_zeros(x.shape[1], hidden) if c0 is None else c0[d]
            bias = x.new_zeros(2 * gates * hidden) if b is None else b[d]
            bw, br = bias[: gates * hidden], bias[gates * hidden :]
            y = x.new_zeros(x.shape[0], x.shape[1], hidden)
            for step in range(x.shape[0]):
                counts = (step < lengths)[:, None]
                place = torch.where(counts[:, 0] & reverse, lengths - 1 - step, step).long()
                now = x[place, torch.arange(x.shape[1])]
                if kind == "LSTM":
                    peep = (p[d] if peephole else x.new_zeros(3 * hidden)).chunk(3)
                    i, o, f, g = (now @ w[d].T + h @ r[d].T + bw + br).chunk(4, 1)
                    i = (i + peep[0] * c).sigmoid()
                    f = 1 - i if coupled else (f + peep[2] * c).sigmoid()
                    next_c = f * c + i * g.tanh()
                    next_h = (o + peep[1] * next_c).sigmoid() * next_c.tanh()
                    c = torch.where(counts, next_c, c)
                elif kind == "RNN":
                    next_h = (now @ w[d].T + h @ r[d].T + bw + br).tanh()
                else:
                    wz, wr, wh = (now @ w[d].T + bw).chunk(3, 1)
                    rz, rr, rh = r[d].chunk(3)
                    bz, bq, bh = br.chunk(3)
                    z, q = (wz + h @ rz.T + bz).sigmoid(), (wr + h @ rr.T + bq).sigmoid()
                    new = wh + (q * (h @ rh.T + bh) if late else (q * h) @ rh.T + bh)
                    next_h = (1 - z) * new.tanh() + z * h
                h = torch.where(counts, next_h, h)
                shown = torch.where(counts, next_h, 0 * next_h)
                y = y.index_put((place, torch.arange(x.shape[1])), shown)
            outputs.append(y)
            last_h.append(h)
            last_c.append(c)
        made = [torch.stack(outputs, 1), torch.stack(last_h)]
        return [*made, torch.stack(last_c)] if kind == "LSTM" else made

    return layer


def operands(kind, directions, *, full):
    gates = GATES[kind]
    w, r = normal(directions, gates * HIDDEN, INPUTS), normal(directions, gates * HIDDEN, HIDDEN)
    made = [normal(STEPS, BATCH, INPUTS), w, r]
    if full:
        made += [normal(directions, 2 * gates * HIDDEN), np.array([5, 2, 3], np.int32)]
        made += [normal(directions, BATCH, HIDDEN)] * (2 if kind == "LSTM" else 1)
    return made


VARIANTS = [("LSTM", False), ("GRU", False), ("GRU", True), ("RNN", False)]
WAYS = {"forward": 1, "reverse": 1, "bidirectional": 2}


@pytest.mark.parametrize(("variant", "direction"), list(itertools.product(VARIANTS, WAYS)))
@pytest.mark.parametrize("read", [None, [0], [1]], ids=["all", "outputs", "state"])
def test_directions_lengths_and_states(variant, direction, read):
    kind, late = variant
    attributes = {"hidden_size": HIDDEN, "direction": direction}
    if late:
        attributes["linear_before_reset"] = 1
    outputs = 3 if kind == "LSTM" else 2
    for full in (False, True):
        inputs = operands(kind, WAYS[direction], full=full)
        reference = loop(kind, direction, late=late)
        check(Case(kind, inputs, reference, attributes, outputs, read=read))


@pytest.mark.parametrize("coupled", [False, True])
def test_lstm_with_peepholes(coupled):
    inputs = [*operands("LSTM", 1, full=True), normal(1, 3 * HIDDEN)]
    attributes = {"hidden_size": HIDDEN, "input_forget": int(coupled)}
    reference = loop("LSTM", "forward", peephole=True, coupled=coupled)
    check(Case("LSTM", inputs, reference, attributes, outputs=3))


ACTIVATIONS = {
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Softsign": torch.nn.functional.softsign,
    "Softplus": torch.nn.functional.softplus,
    "Elu": torch.nn.functional.elu,
    "HardSigmoid": lambda x: (0.2 * x + 0.5).clamp(0, 1),
    "LeakyRelu": lambda x: torch.nn.functional.leaky_relu(x, 0.01),
    "Affine": lambda x: 0.4 * x + 0.1,
    "ScaledTanh": lambda x: 0.4 * torch.tanh(0.1 * x),
    "ThresholdedRelu": lambda x: torch.where(x > 0.4, x, 0),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    def reference(x, w, r):
        h, made = x.new_zeros(BATCH, HIDDEN), []
        for now in x:
            h = ACTIVATIONS[name](now @ w[0].T + h @ r[0].T)
            made.append(h)
        return torch.stack(made)[:, None]

    attributes = {"hidden_size": HIDDEN, "activations": [name]}
    if name in {"Affine", "ScaledTanh", "ThresholdedRelu"}:
        attributes |= {"activation_alpha": [0.4], "activation_beta": [0.1]}
    check(Case("RNN", operands("RNN", 1, full=False), reference, attributes))


def test_clip_is_refused_by_name():
    attributes = {"hidden_size": HIDDEN, "clip": 1.0}
    with pytest.raises(popart_exception, match=r"'subject' \(ai.onnx RNN-18\): clip"):
        check(Case("RNN", operands("RNN", 1, full=False), loop("RNN", "forward"), attributes))


@pytest.mark.parametrize(("variant", "direction"), list(itertools.product(VARIANTS[:3], WAYS)))
def test_large_layers_are_written_as_loops_that_keep_their_gates(monkeypatch, variant, direction):
    monkeypatch.setattr(recurrent, "LEAST_PRODUCTS", 0)
    kind, late = variant
    attributes = {"hidden_size": HIDDEN, "direction": direction}
    if late:
        attributes["linear_before_reset"] = 1
    outputs = 3 if kind == "LSTM" else 2
    directions = WAYS[direction]
    plain = operands(kind, directions, full=False)
    states = [normal(directions, BATCH, HIDDEN)] * (2 if kind == "LSTM" else 1)
    # With and without bias and first states; the states are one tensor, read twice.
    full = [*plain, normal(directions, 2 * GATES[kind] * HIDDEN), None, *states]
    for inputs, read in itertools.product((plain, full), (None, [0], [1])):
        reference = loop(kind, direction, late=late)
        model = check(Case(kind, inputs, reference, attributes, outputs, read=read))
        assert kind not in {node.op_type for node in model.graph}
        names = {value.name for node in model.graph for value in node.outputs}
        assert {f"out{index}" for index in range(outputs)} <= names


FUNCTIONS = {**ACTIVATIONS, "Tanh": torch.tanh}


@pytest.mark.parametrize("activations", [("Sigmoid", "Tanh", "Relu"), ("HardSigmoid",) * 3])
def test_loops_that_keep_their_gates_take_any_function_and_coupled_gates(monkeypatch, activations):
    monkeypatch.setattr(recurrent, "LEAST_PRODUCTS", 0)
    inputs = operands("LSTM", 1, full=False)
    attributes = {"hidden_size": HIDDEN, "activations": list(activations), "input_forget": 1}
    gate, candidate, output = (FUNCTIONS[name] for name in activations)

    def reference(x, w, r):
        h = c = x.new_zeros(BATCH, HIDDEN)
        made = []
        for now in x:
            i, o, _, g = (now @ w[0].T + h @ r[0].T).chunk(4, 1)
            i, o, g = gate(i), gate(o), candidate(g)
            c = (1 - i) * c + i * g
            h = o * output(c)
            made.append(h)
        return torch.stack(made)[:, None]

    check(Case("LSTM", inputs, reference, attributes))


def test_small_layers_and_sequences_of_several_lengths_stay_with_the_kernel(monkeypatch):
    attributes = {"hidden_size": HIDDEN}
    kept = []
    for least, full in ((1 << 19, False), (0, True)):
        monkeypatch.setattr(recurrent, "LEAST_PRODUCTS", least)
        inputs = operands("GRU", 1, full=full)
        model = check(Case("GRU", inputs, loop("GRU", "forward"), attributes, 2))
        kept.append("GRU" in {node.op_type for node in model.graph})
    assert kept == [True, True]
