import os
import socket
from pathlib import Path

import pytest

from benchmarks.harness import Effort
from benchmarks.onnx_link import comparison, measure
from benchmarks.onnx_link.comparison import hidden_share
from benchmarks.onnx_link.link import Link, missing
from benchmarks.ranks import run_on_ranks

HERE = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parent)])}


def where():
    return {"host": socket.gethostname(), "rank": os.environ["OMPI_COMM_WORLD_RANK"]}


@pytest.mark.skipif(bool(missing()), reason=missing() or "never")
def test_each_rank_is_on_a_host_of_its_own(tmp_path):
    with Link(tmp_path) as link:
        found = run_on_ranks("test_onnx_link:where", launcher=link.launch(), env=HERE)
    assert found == [{"host": "poplink1", "rank": "0"}, {"host": "poplink2", "rank": "1"}]
    assert not Path("/run/netns/poplink1").exists()


def test_the_hidden_share_is_what_the_step_does_not_pay():
    assert hidden_share(step=1.0, compute=1.0, exchange=0.4) == 1.0
    assert hidden_share(step=1.4, compute=1.0, exchange=0.4) == pytest.approx(0.0)
    assert hidden_share(step=1.1, compute=1.0, exchange=0.5) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("floor", "limit", "aimed"), [(0.9, 0.85, 0), (0.9, 0.7, 2), (0.7, 0.65, 1), (0.7, 0.5, 2)]
)
def test_an_aim_beyond_what_was_measured_beside_it_is_replaced(floor, limit, aimed):
    aims = comparison._aims(floor, limit)
    assert [index for index, aim in enumerate(aims) if aim is not None] == [aimed]


def test_where_there_can_be_no_link_the_rows_say_why(monkeypatch):
    monkeypatch.setattr(comparison, "missing", lambda: "network namespaces need root")
    rows = list(measure(Effort()))
    assert len(rows) == 10
    assert all("need root" in row.note and row.value is None for row in rows)
    assert {row.met for row in rows} == {None}
