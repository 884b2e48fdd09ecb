"""What a page says of known runs, and that it needs nothing from anywhere."""

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from popdist.report import drawing, figures
from popdist.report.page import page
from popdist.report.run_reader import read_run
from tests.popdist.report import runs


@pytest.fixture
def made(tmp_path):
    def make(result=None, noted=None, errors=None):
        folder = runs.write(tmp_path / "run", result=result, noted=noted, errors=errors)
        return page(read_run(folder))

    return make


def test_the_slowest_instance_is_named_with_how_much_slower_it_is(made):
    noted = {0: runs.metrics(0), 1: runs.metrics(1, slow=1.5), 2: runs.metrics(2)}
    text = made(runs.job(3), noted)
    assert "The slowest is <b>instance 1</b>" in text
    assert "50.0% more than the fastest. The others wait for it." in text
    assert "<td>1 (slowest)</td><td>19</td><td>30.000</td><td>10.000</td><td>25.0%</td>" in text


def test_throughput_and_memory_are_those_noted(made):
    text = made(runs.job(), {0: runs.metrics(0), 1: runs.metrics(1)})
    assert "All instances together: 130 samples / s" in text  # (32 + 33) / 0.5 s
    assert "The most is 1,024 MiB, on instance 1." in text


def test_a_loss_that_is_no_number_is_said_and_leaves_a_gap(made):
    text = made(runs.job(), {0: runs.metrics(0), 1: runs.metrics(1, bad_at=7)})
    assert "NaN or infinite on instance 1 at step 8" in text
    loss = text[text.index('id="loss"') : text.index('id="throughput"')]
    [line] = re.findall(r'class="s p1" d="([^"]*)"', loss)
    assert line.count("M") == 2


def test_the_mean_loss_is_that_of_all_instances_at_each_step():
    """Instance 1 notes two steps in a line, and ends earlier."""
    lines = {
        0: [{"count": 1, "loss": loss} for loss in (4.0, 2.0, 1.0)],
        1: [{"count": 2, "loss": 8.0}],
        2: [{"count": 1}],
    }
    assert figures.mean_loss(lines) == [(1.0, 6.0), (2.0, 5.0), (3.0, 1.0)]


def test_a_stall_is_a_low_level_as_long_as_it_took():
    lines = [
        {"time": 100.0 + at, "count": 1, "seconds": took, "samples": 30}
        for at, took in ((1, 1), (2, 1), (12, 10), (13, 1))
    ]
    points = figures.throughput(lines, 100.0)
    assert points == [(1, 30), (2, 30), (2, 3), (12, 3), (12, 30), (13, 30)]


def test_rounds_are_explained_beside_the_steps(made):
    text = made(runs.job(), {0: runs.metrics(0), 1: runs.metrics(1)})
    assert "A round is one wait for sums over the instances: instance 0 had 20 in 20" in text


def test_a_failed_job_says_why_in_its_last_words(made):
    error = {
        "message": "instance 1 ended with exit code 3",
        "instances": [1],
        "out_of_memory": True,
    }
    result = runs.job(success=False, exit_code=3, error=error)
    text = made(result, errors={0: "fine", 1: "ValueError: <bad> & worse\n"})
    assert "exit code 3: instance 1 ended with exit code 3. It was out of memory." in text
    assert "ValueError: &lt;bad&gt; &amp; worse" in text
    assert "Last words of instance 0" not in text


def test_a_page_loads_nothing_and_runs_nothing_of_the_run(made):
    text = made(runs.job(), {0: runs.metrics(0), 1: runs.metrics(1)})
    assert not re.search(r"https?://|<link|@import|\bsrc=|url\(", text)
    assert "default-src 'none'" in text
    assert "<script" not in text
    assert "style=" not in text
    assert "train.py &lt;b&gt;" in text
    assert "<b>" not in text.replace("</b>", "").partition("<h1>")[2].partition("</h1>")[0]


def test_very_many_instances_are_listed_and_twelve_are_drawn(made):
    text = made(runs.job(300), {index: runs.metrics(index, 4) for index in range(300)})
    assert "0 to 299" in text
    loss = text[text.index('id="loss"') : text.index('id="throughput"')]
    assert loss.count('class="s p') == 12 + 1  # and the mean


VALUES = st.floats(-1e12, 1e12) | st.sampled_from([float("nan"), float("inf")])


@example(series=[[(0.0, 5e-324), (1.0, 0.0)]])  # found by a random example
@example(series=[[(5e-324, 1.0), (0.0, 0.0)]])
@example(series=[[(-1.7e308, 1.7e308), (1.7e308, -1.7e308)]])
@example(series=[[(1e16, 3.0), (1e16 + 2, 3.0)]])
@given(
    st.lists(st.lists(st.tuples(st.floats(0, 1e9), VALUES), max_size=20), min_size=1, max_size=4)
)
def test_any_points_make_a_picture_that_is_sound_xml(series):
    drawn = drawing.lines(
        {f"<{n}>": one for n, one in enumerate(series)}, x="steps & more", y="loss <l>"
    )
    root = ET.fromstring(drawn)  # noqa: S314 - our own text
    assert root.tag in {"svg", "p"}
    assert "nan" not in drawn.lower().replace("no finite numbers", "")


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 9), st.floats(0, 9)), min_size=2))
def test_stretches_add_up_to_what_was_noted(rounds):
    lines = [
        {"count": count, "seconds": computed + waited, "waited": waited}
        for count, computed, waited in rounds
    ]
    whole = figures.altogether(figures.work(lines))
    assert whole.rounds == sum(count for count, _, _ in rounds[1:])
    assert whole.waited * whole.rounds == pytest.approx(sum(w for _, _, w in rounds[1:]))
    assert whole.computed * whole.rounds == pytest.approx(
        sum(c for _, c, _ in rounds[1:]), abs=1e-9
    )


@given(st.integers(1, 9000), st.integers(0, 8999))
def test_the_slowest_is_always_among_those_shown(count, slowest):
    chosen = figures.shown(range(count), [slowest % count])
    assert slowest % count in chosen
    assert len(chosen) <= 13
    assert chosen == sorted(set(chosen))


def test_long_series_are_thinned_to_means():
    points = [(float(step), float(step % 2)) for step in range(4000)]
    thin = figures.thinned(points)
    assert len(thin) == 400
    assert {value for _, value in thin} == {0.5}
