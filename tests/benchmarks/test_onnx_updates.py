"""The benchmark of ONNX updates measures each optimizer beside torch and beside plain updates."""

from benchmarks import onnx_updates
from benchmarks.harness import Effort


def test_every_optimizer_has_a_row_beside_each_peer(monkeypatch):
    monkeypatch.setattr(onnx_updates, "_SHAPES", {"w": (256, 512), "b": (512,)})
    rows = list(onnx_updates.measure(Effort(quick=True)))
    torch = ["torch, fused"] * 4 + ["torch"]
    assert [row.peer for row in rows[::3]] == torch
    assert {row.peer for row in rows[1::3]} == {"as many additions"}
    assert {row.peer for row in rows[2::3]} == {"without blocks"}
    assert all(row.value > 0 and row.peer_value > 0 for row in rows)
    for torch_row, limit_row in zip(rows[::3], rows[1::3], strict=True):
        beyond = limit_row.peer_value > torch_row.peer_value
        aims = [None, onnx_updates.LIMIT_AIM] if beyond else [onnx_updates.UPDATE_AIM, None]
        assert [torch_row.aim, limit_row.aim] == aims
