"""When gradients leave: early only where the exchange does not take a processor from the step."""

import os
from types import SimpleNamespace

import pytest

from popdist_onnx.runtime.allreduce import leave_early


def horovod(local_size, *, mpi=True):
    return SimpleNamespace(local_size=lambda: local_size, mpi_enabled=lambda: mpi)


@pytest.mark.parametrize(
    ("processors", "local_size", "mpi", "early"),
    [
        (1, 4, True, False),  # bound to one processor each
        (2, 4, True, True),  # bound to two
        (8, 8, True, False),  # unbound, none to spare
        (8, 4, True, True),
        (8, 8, False, True),  # gloo sleeps while it waits
    ],
)
def test_early_where_the_exchange_has_a_processor(monkeypatch, processors, local_size, mpi, early):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert leave_early(horovod(local_size, mpi=mpi), processors) is early
