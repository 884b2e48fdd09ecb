"""The stages of Keras models and the accumulation of their gradients: what is kept and refused."""

import numpy as np
import pytest
import tensorflow as tf

from popdist_tf.errors import PipelineError
from popdist_tf.ipu.ipu_strategy import IPUStrategy
from popdist_tf.ipu.keras import PipelineStage, optimizers
from popdist_tf.ipu.keras.extensions import (
    FunctionalLayerPipelineStageAssignment,
    NestedModelPipelineStageAssignment,
    SequentialLayerPipelineStageAssignment,
)
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
        ([0, 1], "(2) does not match the number of layers in the graph (3)"),
        ([0, 2, 2], "the previous layer in the Sequential model was assigned to pipeline stage 0"),
        ([1, 0, 1], "needs to be assigned to the 0th pipeline stage"),
        ([0, None, 1], "All elements of `pipeline_stage_assignment` must be instances of"),
        ((0, 0, 1), "needs to be a list"),
    ],
)
def test_stages_that_contradict_the_model_are_refused(stages, words):
    said = refusal(sequential().set_pipeline_stage_assignment, stages)
    assert said.startswith("[PD425]")
    assert words in said


def test_an_assignment_can_be_asked_for_printed_and_reset():
    model, said = sequential(), []
    model.set_pipeline_stage_assignment([0, 0, 1])
    found = model.get_pipeline_stage_assignment()
    assert all(isinstance(one, SequentialLayerPipelineStageAssignment) for one in found)
    assert [one.layer for one in found] == model.layers
    assert [one.pipeline_stage for one in found] == [0, 0, 1]
    model.print_pipeline_stage_assignment_summary(print_fn=said.append)
    assert [line.split()[-1] for line in said if "(Dense)" in line] == ["0", "0", "1"]
    found[2].pipeline_stage = 5  # a copy's
    assert model.get_pipeline_stage_assignment()[2].pipeline_stage == 1
    model.reset_pipeline_stage_assignment()
    assert [one.pipeline_stage for one in model.get_pipeline_stage_assignment()] == [None] * 3


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
    found[1].pipeline_stage = 0
    assert "has a dependency from" in refusal(model.set_pipeline_stage_assignment, found)
    found[0].pipeline_stage = 0
    found[1].pipeline_stage = 2
    model.set_pipeline_stage_assignment(found)
    assert [one.pipeline_stage for one in model.get_pipeline_stage_assignment()] == [0, 2]
    model.set_pipelining_options(2)
    with pytest.raises(RuntimeError, match=r"preceeding stages \[1\] had no assignments"):
        model.predict(np.ones((4, 2), np.float32), verbose=0)
    said = refusal(model.set_pipeline_stage_assignment, found[::-1])
    assert "The order of `pipeline_stage_assignment` does not match" in said


class Twice(tf.keras.Model):
    """A model with a ``call`` of its own, which has another model inside."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.last = inner, tf.keras.layers.Dense(1)

    def call(self, inputs):
        return self.last(self.inner(self.inner(inputs)))


@keras_2
def test_each_call_of_a_model_inside_has_stages_of_its_own():
    with IPUStrategy().scope():
        inner = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(2)])
        model = Twice(inner)
        with pytest.raises(RuntimeError, match="has not been built yet"):
            model.get_pipeline_stage_assignment()
        model.build((None, 2))
    first, second, last = found = model.get_pipeline_stage_assignment()
    assert isinstance(first, NestedModelPipelineStageAssignment)
    assert first.is_nested_model
    assert not last.is_nested_model
    assert (first.nested_model, first.node_index, second.node_index) == (inner, 0, 1)
    for stage, one in enumerate((first, second)):
        one.pipeline_stage_assignments[0].pipeline_stage = stage
    last.pipeline_stage = 0
    assert "has a dependency from" in refusal(model.set_pipeline_stage_assignment, found)
    last.pipeline_stage = 1
    model.set_pipeline_stage_assignment(found)
    first, second, last = model.get_pipeline_stage_assignment()
    stages = [one.pipeline_stage_assignments[0].pipeline_stage for one in (first, second)]
    assert [*stages, last.pipeline_stage] == [0, 1, 1]


@keras_2
def test_a_layer_made_in_a_scope_has_its_stage_unless_its_call_has_one():
    with IPUStrategy().scope():
        inputs = tf.keras.layers.Input((2,))
        with PipelineStage(0):
            layer, other = tf.keras.layers.Dense(2), tf.keras.layers.Dense(2)
        with PipelineStage(1):
            value = other(layer(inputs))
        model = tf.keras.Model(inputs, other(value))
        found = model.get_pipeline_stage_assignment()
        assert [one.pipeline_stage for one in found] == [1, 1, 0]
        model = tf.keras.Model(inputs, tf.keras.layers.Dense(2)(value))
        assert "must have an associated pipeline stage" in refusal(
            model.get_pipeline_stage_assignment
        )


def test_scopes_of_stages_do_not_nest():
    with PipelineStage(0):
        assert "stage 1 in stage 0" in refusal(PipelineStage(1).__enter__)
    assert "from 0 on" in refusal(PipelineStage(-1).__enter__)


@keras_2
@pytest.mark.parametrize("count", [0, True, 1.5])
def test_an_update_needs_a_number_of_micro_batches(count):
    said = refusal(sequential().set_gradient_accumulation_options, count)
    assert "to be a positive integer, but got" in said


@keras_2
def test_options_are_checked_and_kept_by_later_calls():
    model = sequential()
    model.set_pipeline_stage_assignment([0, 1, 1])
    said = refusal(model.set_pipelining_options, repeat_count=2)
    assert "This argument is automatically set by Keras" in said
    said = refusal(model.set_pipelining_options, device_mapping=[0.0, 1.0])
    assert "Expected `device_mapping` to be a list of integers" in said
    model.set_pipelining_options(device_mapping=[0, 1])
    assert "has not been set" in refusal(fit, model, 4)
    model.set_pipelining_options(2)
    model.set_pipelining_options(device_mapping=[1, 0])
    assert len(fit(model, 4).history["loss"]) == 1


@keras_2
def test_what_fit_cannot_accumulate_is_refused():
    model = sequential()
    model.set_pipelining_options(2)
    assert "a model without stages" in refusal(fit, model, 4)
    model.evaluate(data(4), verbose=0)  # as published, a plain model
    model = sequential()
    model.set_pipelining_options(device_mapping=[0, 0])
    assert len(fit(model, 4).history["loss"]) == 1
    model = sequential()
    model.set_gradient_accumulation_options(2)
    said = refusal(fit, model, 4, steps=1)
    assert "`steps_per_execution` value (set to 1) is not divisible by" in said
    assert "in the middle of an update" in refusal(fit, model, 3)
    model.set_pipeline_stage_assignment([0, 1, 1])
    model.set_pipelining_options(2, [0])
    assert "1 devices for 2 stages" in refusal(fit, model, 4)


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
