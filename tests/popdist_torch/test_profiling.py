import pytest
import torch

import popdist_torch as poptorch


class Worker:
    def work(self, x):
        return 2 * x


def test_names_show_in_profiles():
    channel, worker = poptorch.profiling.Channel("mine"), Worker()
    channel.instrument(worker, "work")
    with torch.profiler.profile() as profile, channel.tracepoint("outer"):
        assert worker.work(torch.ones(1)).item() == 2
    names = {event.key for event in profile.key_averages()}
    assert {"mine/work", "mine/outer", "aten::mul"} <= names
    with pytest.raises(AssertionError, match="does not exist"):
        channel.instrument(worker, "rest")
