"""Samplers of programs that were written for torch 1."""

import pytest
import torch
from torch.utils.data import Sampler, sampler

from popdist.sdk import removed


class First:
    def __init__(self, name):
        self.name = name


@pytest.fixture(autouse=True)
def _served():
    had = vars(Sampler).get("__init__")
    name = "torch.utils.data.sampler"
    for _ in range(2):
        removed.OTHERS[name](sampler)
    yield
    if had is None:
        del Sampler.__init__


@pytest.mark.parametrize("given", [(), (None,), ([1, 2],)])
def test_a_sampler_may_pass_on_its_data(given):
    class Own(Sampler):
        def __init__(self):
            super().__init__(*given)

        def __iter__(self):
            return iter([1, 0])

    assert list(torch.utils.data.BatchSampler(Own(), 2, drop_last=False)) == [[1, 0]]


def test_other_arguments_reach_the_next_class_or_are_refused():
    class Named(Sampler, First):
        pass

    assert Named("mine").name == "mine"
    assert Named(name="mine").name == "mine"
    for wrong in ((1, 2), (1, 2, 3)):
        with pytest.raises(TypeError):
            Sampler(*wrong)
    with pytest.raises(TypeError):
        Sampler(size=3)
