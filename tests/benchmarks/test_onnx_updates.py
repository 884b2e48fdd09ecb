"""The benchmark of ONNX updates measures each optimizer beside torch and beside plain updates."""

from benchmarks import onnx_updates
from benchmarks.harness import Effort


def test_every_optimizer_has_a_row_beside_each_peer(monkeypatch):
    monkeypatch.setattr(onnx_updates, "_SHAPES", {"w": (256, 512), "b": (512,)})
    rows = list(onnx_updates.measure(Effort(quick=True)))
    torch = ["torch, fused"] * 4 + ["torch"]
    assert [row.peer for row in rows[::2]] == torch
    assert {row.peer for row in rows[1::2]} == {"without blocks"}
    assert all(row.value > 0 and row.peer_value > 0 for row in rows)
    assert [row.aim for row in rows[:2]] == [onnx_updates.UPDATE_AIM, None]
