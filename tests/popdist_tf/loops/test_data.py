"""Groups of elements, measured data sets, synthetic data, and logged values of iterations."""

import json

import numpy as np
import pytest
import tensorflow as tf

from popdist_tf import ipu
from popdist_tf.errors import LayerError
from popdist_tf.loops.data import SyntheticDataCategory


def test_elements_behind_the_last_whole_group_are_left_out():
    pairs = tf.data.Dataset.range(8).map(lambda i: {"x": i, "y": (2 * i, 3 * i)})
    found = list(ipu.data.ops.dataset_ops.BufferDataset(pairs, 3).as_numpy_iterator())
    assert found == [{"x": i, "y": (2 * i, 3 * i)} for i in range(6)]
    rows = ipu.data.ops.dataset_ops.BufferDataset(tf.data.Dataset.range(5), 2)
    assert list(rows.as_numpy_iterator()) == [0, 1, 2, 3]
    single = tf.data.Dataset.zip((tf.data.Dataset.range(2),))
    assert list(ipu.data.ops.dataset_ops.BufferDataset(single, 2).as_numpy_iterator()) == [
        (0,),
        (1,),
    ]
    with pytest.raises(LayerError, match="at least 1"):
        ipu.data.ops.dataset_ops.BufferDataset(pairs, 0)


@pytest.mark.parametrize("is_graph", [False, True])
def test_data_sets_are_measured(is_graph, capsys):
    with tf.Graph().as_default() if is_graph else tf.init_scope():
        data = tf.data.Dataset.from_tensors((np.zeros((5, 2), np.float32), np.int8(1))).repeat(7)
        queue = ipu.ipu_infeed_queue.IPUInfeedQueue(data)
        found = ipu.dataset_benchmark.infeed_benchmark(queue, 2, 3)
        short = None if not is_graph else ipu.dataset_benchmark.dataset_benchmark(data, 2, 4, False)  # noqa: FBT003 - published order
        with tf.compat.v1.Session() if is_graph else tf.init_scope() as session:
            text = session.run(found) if is_graph else found.numpy()
            if is_graph:
                with pytest.raises(tf.errors.OutOfRangeError, match="7 elements, and 8"):
                    session.run(short)
    assert text.shape == (1,)
    epochs = json.loads(text[0])["epochs"]
    assert [(one["elements_processed"], one["total_bytes_processed"]) for one in epochs] == [
        (3, 3 * 41)
    ] * 2
    for one in epochs:
        assert one["elements_per_second"] == pytest.approx(3 / one["time_elapsed"])
        assert one["bandwidth"] == pytest.approx(3 * 41 / one["time_elapsed"] / 1e9)
    assert capsys.readouterr().out.count("elements_processed") == 2


def test_empty_elements_cannot_be_measured():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        data = tf.data.Dataset.from_tensors(np.zeros((2, 0), np.float32)).repeat()
        found = ipu.dataset_benchmark.dataset_benchmark(data, 1, 1)
        with pytest.raises(tf.errors.InvalidArgumentError, match="with a dimension of size 0"):
            session.run(found)


def test_infeeds_are_synthetic_where_that_is_asked_for(monkeypatch):
    data = tf.data.Dataset.from_tensor_slices((np.ones((4, 2), np.float32), np.full(4, 9)))
    queue = ipu.ipu_infeed_queue.IPUInfeedQueue
    asked = ipu.utils.use_synthetic_data_for
    monkeypatch.setenv("TF_POPLAR_FLAGS", "--executable_cache_path=/tmp/x")
    assert not any(map(asked, SyntheticDataCategory))
    assert queue(data).dequeue()[1] == 9
    monkeypatch.setenv("TF_POPLAR_FLAGS", "--use_synthetic_data --synthetic_data_initializer=3")
    assert all(map(asked, SyntheticDataCategory))
    with pytest.warns(UserWarning, match="do not read their data sets"):
        made = queue(data)
    assert len(list(made.dataset)) == 4
    assert [one.numpy().tolist() for one in made.dequeue()] == [[3, 3], 3]
    monkeypatch.setenv(
        "TF_POPLAR_FLAGS",
        "--synthetic_data_categories='seed,infeed' --synthetic_data_initializer=random",
    )
    with pytest.warns(UserWarning, match="do not read their data sets"):
        values, labels = queue(data.repeat()).dequeue()
    assert 0 <= values.numpy().min() < values.numpy().max() < 1
    assert labels.numpy() in (0, 1)
    categories = {one for one in SyntheticDataCategory if asked(one)}
    assert categories == {SyntheticDataCategory.Infeed, SyntheticDataCategory.Seed}
    monkeypatch.setenv("TF_POPLAR_FLAGS", "--use_synthetic_data --synthetic_data_initializer=much")
    with pytest.raises(LayerError, match="a number, or random"):
        queue(data)
    with pytest.raises(LayerError, match=r"SyntheticDataCategory\.Infeed"):
        asked("infeed")


@pytest.mark.parametrize("mode", ["LAST", "ALL"])
def test_a_hook_logs_values_of_iterations(mode):
    kind = ipu.ipu_session_run_hooks.IPULoggingTensorHook
    texts = []
    with tf.Graph().as_default():
        hook = kind(
            every_n_iter=2,
            at_end=True,
            formatter=lambda found: texts.append(found["x"].tolist()) or "",
            logging_mode=kind.LoggingMode[mode],
        )
        step = tf.compat.v1.train.get_or_create_global_step()

        def body(x):
            with tf.control_dependencies([hook.log({"x": x})]):
                return x + 1

        last = ipu.loops.repeat(3, body, [tf.cast(10 * step, tf.int32)])
        with tf.control_dependencies([last]):
            train = tf.compat.v1.assign_add(step, 1)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            for _ in range(4):
                session.run(train)
    rows = [[0, 1, 2], [10, 11, 12], [20, 21, 22], [30, 31, 32]]
    whole = [rows[0], rows[1] + rows[2], rows[3]]
    assert texts == (whole if mode == "ALL" else [one[-1] for one in whole])
    for settings, text in (
        ({"every_n_iter": 2, "every_n_secs": 1.0}, "Cannot provide both"),
        ({}, "Either every_n_iter, every_n_secs or at_end"),
        ({"every_n_iter": 0}, "must be positive"),
    ):
        with pytest.raises(LayerError, match=text):
            kind(**settings)
