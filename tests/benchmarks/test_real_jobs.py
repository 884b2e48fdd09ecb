"""The parts of the larger benchmarks that run on ranks, small, on real ranks."""

from benchmarks.growth import comparison
from benchmarks.tensorflow_training import comparison as tensorflow_training
from benchmarks.torch_steps import memory


def test_growth_is_measured_on_two_ranks_and_fits_a_model():
    times = {ranks: comparison._times(ranks, 1) for ranks in (1, 2)}
    rows = {row.name: row for row in comparison.rows(times, cores=2)}
    assert rows["constant: latency"].value > 0
    assert rows["constant: compute"].value > 0
    assert rows["step, 2 ranks"].value > 0
    assert rows["exchange of 16 MiB, 2 ranks"].peer_value > 0


def test_peak_memory_of_torch_ranks_is_that_of_a_process_with_torch():
    peaks = memory._peaks("residual network", "popdist loop")
    assert len(peaks) == 2
    assert all(100 * 2**20 < peak < 4 * 2**30 for peak in peaks)


def test_peak_memory_of_keras_ranks_is_that_of_a_process_with_tensorflow():
    peaks = tensorflow_training._peaks("wrapper")
    assert len(peaks) == 2
    assert all(200 * 2**20 < peak < 4 * 2**30 for peak in peaks)
