"""The stages of Keras models and the accumulation of their gradients: what is kept and refused."""

import numpy as np
import pytest
import tensorflow as tf

from popdist_tf.errors import PipelineError
from popdist_tf.ipu.ipu_strategy import IPUStrategy
from popdist_tf.ipu.keras import PipelineStage, optimizers
from popdist_tf.ipu.keras.extensions import FunctionalLayerPipelineStageAssignment
from popdist_tf.versions import keras_is_3

keras_2 = pytest.mark.skipif(keras_is_3(), reason="Keras 3 accumulates by its optimizers")


def sequential():
    with IPUStrategy().scope():
        return tf.keras.Sequential(
            [tf.keras.layers.Input((2,)), *(tf.keras.layers.Dense(2) for _ in range(3))]
        )


def data(batches):
    rows = np.ones((2 * batches, 2), np.float32)
    return tf.data.Dataset.from_tensor_slices((rows, rows)).batch(2)


def fit(model, batches, steps=2):
    with model.distribute_strategy.scope():
        model.compile("sgd", "mse", steps_per_execution=steps)
    return model.fit(data(batches), verbose=0)


def refusal(call, *args, **kwargs):
    with pytest.raises(PipelineError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([0, 1], "2 entries for 3 layers"),
        ([0, 2, 2], "numbered without gaps"),
        ([1, 0, 1], "(stage 0) takes the result of"),
        ([0, None, 1], "some layers have a stage and others have none"),
    ],
)
def test_stages_that_contradict_the_model_are_refused(stages, words):
    said = refusal(sequential().set_pipeline_stage_assignment, stages)
    assert said.startswith("[PD425]")
    assert words in said


def test_an_assignment_can_be_asked_for_printed_and_reset():
    model, said = sequential(), []
    model.set_pipeline_stage_assignment([0, 0, 1])
    assert model.get_pipeline_stage_assignment() == [0, 0, 1]
    model.print_pipeline_stage_assignment_summary(said.append)
    assert [line.split(": ")[1] for line in said] == ["stage 0", "stage 0", "stage 1"]
    model.reset_pipeline_stage_assignment()
    assert model.get_pipeline_stage_assignment() == [None] * 3


@keras_2
def test_a_layer_that_is_called_twice_has_a_stage_for_each_call():
    with IPUStrategy().scope():
        layer = tf.keras.layers.Dense(2)
        inputs = tf.keras.layers.Input((2,))
        with PipelineStage(0):
            value = layer(inputs)
        with PipelineStage(1):
            value = layer(value)
        model = tf.keras.Model(inputs, value)
    found = model.get_pipeline_stage_assignment()
    assert [(one.layer, one.node_index, one.pipeline_stage) for one in found] == [
        (layer, 0, 0),
        (layer, 1, 1),
    ]
    assert isinstance(found[0], FunctionalLayerPipelineStageAssignment)
    assert found[1].inbound_layers == [layer]
    found[0].pipeline_stage = 1
    assert "numbered without gaps" in refusal(model.set_pipeline_stage_assignment, found)
    found[0].pipeline_stage = 0
    model.set_pipeline_stage_assignment(reversed(found))
    assert [one.pipeline_stage for one in model.get_pipeline_stage_assignment()] == [0, 1]


def test_scopes_of_stages_do_not_nest():
    with PipelineStage(0):
        assert "stage 1 in stage 0" in refusal(PipelineStage(1).__enter__)
    assert "from 0 on" in refusal(PipelineStage(-1).__enter__)


@keras_2
@pytest.mark.parametrize("count", [None, 0, True, 1.5])
def test_an_update_needs_a_number_of_micro_batches(count):
    said = refusal(sequential().set_gradient_accumulation_options, count)
    assert "needs the number of micro-batches" in said


@keras_2
def test_what_fit_cannot_accumulate_is_refused():
    model = sequential()
    model.set_pipelining_options(2)
    assert "a model without stages" in refusal(fit, model, 4)
    model = sequential()
    model.set_gradient_accumulation_options(2)
    assert "steps_per_execution must be a multiple" in refusal(fit, model, 4, steps=1)
    assert "in the middle of an update" in refusal(fit, model, 3)
    model.set_pipeline_stage_assignment([0, 1, 1])
    assert "1 devices for 2 stages" in refusal(model.set_pipelining_options, 2, [0])


@keras_2
def test_a_later_call_changes_how_gradients_are_accumulated():
    model = sequential()
    for count in (2, 4):
        model.set_gradient_accumulation_options(count)
        if count == 2:
            model.compile("sgd", "mse", steps_per_execution=4)
        model.fit(data(4), verbose=0)
    # Two updates of two micro-batches, and one of four.
    assert model.optimizer.iterations.numpy() == 3
    assert type(model.optimizer).__mro__[1] is tf.keras.optimizers.SGD


@keras_2
@pytest.mark.parametrize("name", ["SGD", "Adam"])
@pytest.mark.parametrize("way", ["options", "wrapper"])
def test_optimizers_of_the_old_kind_accumulate_as_those_of_the_new_kind(name, way):
    kinds = (tf.keras.optimizers, tf.keras.optimizers.legacy)
    found = []
    for kind in kinds:
        model = sequential()
        model.set_weights([np.full(one.shape, 0.1) for one in model.get_weights()])
        optimizer = getattr(kind, name)(0.1)
        if way == "wrapper":
            optimizer = optimizers.GradientAccumulationOptimizer(optimizer, 2)
        else:
            model.set_gradient_accumulation_options(2)
        model.compile(optimizer, "mse", steps_per_execution=4)
        model.fit(data(4), verbose=0)
        assert model.optimizer.iterations.numpy() == 2
        found.append(model.get_weights())
    for new, old in zip(*found, strict=True):
        np.testing.assert_allclose(old, new, rtol=1e-4)
        assert abs(new - 0.1).max() > 0.01
