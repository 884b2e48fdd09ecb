"""The front door: it trains as plain torch does, and what it saves is the model that was given."""

import io
import warnings

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn

import popdist_onnx
from popdist_onnx.graph.exporters import Untie
from popdist_onnx.graph.load import read
from popdist_onnx.training.data import Layout, indices
from popdist_onnx.training.local_replicas import LocalReplicas
from popdist_onnx.training.model import with_stored_fills

SAMPLES, FEATURES, CLASSES, BATCH = 48, 6, 3, 8


def network(*, batchnorm=False):
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(16)] if batchnorm else []
    layers = [nn.Linear(FEATURES, 16), nn.Tanh(), *middle, nn.Linear(16, CLASSES)]
    return nn.Sequential(*layers)


def exported(model, *, batch="batch"):
    file = io.BytesIO()
    axes = {"x": {0: batch}, "y": {0: batch}} if isinstance(batch, str) else None
    rows = 1 if isinstance(batch, str) else batch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.eval(),
            (torch.zeros(rows, FEATURES),),
            file,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes=axes,
            dynamo=False,
        )
    return file.getvalue()


def data(kind="classes"):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    if kind == "classes":
        return x, x[:, :CLASSES].argmax(1)
    return x, x[:, :CLASSES] ** 2


def sgd(rate=0.1):
    return popdist_onnx.SGD({"defaultLearningRate": (rate, False)})


@pytest.mark.parametrize(
    ("loss", "criterion"),
    [("cross_entropy", nn.CrossEntropyLoss()), ("mse", nn.MSELoss())],
    ids=["cross entropy", "mse"],
)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_weights_are_those_of_plain_torch(loss, criterion, accumulation):
    x, y = data("classes" if loss == "cross_entropy" else "numbers")
    model = network()
    trainer = popdist_onnx.Trainer(
        exported(model), loss=loss, optimizer=sgd(), batch_size=BATCH, accumulation=accumulation
    )
    history = trainer.fit(x, y, epochs=2, shuffle=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.from_numpy(x).reshape(-1, BATCH * accumulation, FEATURES)
    wanted = torch.from_numpy(y).reshape(len(rows), BATCH * accumulation, *y.shape[1:])
    expected = []
    for _ in range(2):
        losses = []
        for batch, target in zip(rows, wanted, strict=True):
            optimizer.zero_grad()
            value = criterion(model(batch), target)
            value.backward()
            optimizer.step()
            losses.append(value.item())
        expected.append(np.mean(losses))
    np.testing.assert_allclose(history, expected, rtol=1e-5)
    with torch.no_grad():
        np.testing.assert_allclose(trainer.predict(x), model(torch.from_numpy(x)), atol=1e-5)


def test_batch_norm_that_was_exported_for_inference_trains_as_in_torch():
    x, y = data()
    model = network(batchnorm=True)
    trainer = popdist_onnx.Trainer(exported(model), optimizer=sgd(), batch_size=BATCH)
    history = trainer.fit(x, y, epochs=3, shuffle=False)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = []
    for _ in range(3):
        losses = []
        for start in range(0, SAMPLES, BATCH):
            batch, target = (torch.from_numpy(a[start : start + BATCH]) for a in (x, y))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        expected.append(np.mean(losses))
    np.testing.assert_allclose(history, expected, rtol=1e-5)


def test_what_is_saved_is_the_given_model_with_other_weights(tmp_path):
    x, y = data()
    given = exported(network(batchnorm=True))
    trainer = popdist_onnx.train(given, x, y, epochs=8, optimizer=sgd(), batch_size=BATCH)
    trainer.save(tmp_path / "trained.onnx")
    before, after = onnx.load_from_string(given), onnx.load(tmp_path / "trained.onnx")
    # What the exporter wrote once because it began with equal content is several weights again.
    before = ir.to_proto(Untie()(ir.from_proto(before)).model)
    assert list(before.graph.node) == list(after.graph.node)
    assert [t.name for t in before.graph.initializer] == [t.name for t in after.graph.initializer]
    (alone,) = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": x[:5]})
    np.testing.assert_allclose(alone, trainer.predict(x[:5]), atol=1e-6)
    assert (trainer.predict(x).argmax(1) == y).mean() > 0.8


def test_every_sample_of_the_whole_batches_is_taken_once_by_one_replica():
    jobs = [LocalReplicas(0, 2, 3, first=True), LocalReplicas(2, 1, 3, first=False)]
    taken = [
        np.concatenate(
            [i.reshape(-1) for _, i in indices(50, Layout(4, 2, job), (1, 2), drop_last=True)]
        )
        for job in jobs
    ]
    together = np.concatenate(taken)
    assert len(together) == 48
    assert len(set(together)) == 48
    again = [i for _, i in indices(50, Layout(4, 2, jobs[1]), (1, 3), drop_last=True)]
    assert not np.array_equal(np.concatenate(again).reshape(-1), taken[1])


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_each_sample_of_a_smaller_update_has_the_same_weight(replicas, accumulation):
    jobs = [LocalReplicas(number, 1, replicas, first=not number) for number in range(replicas)]
    whole = 5 * accumulation * replicas
    for rest in range(1, whole):
        weights = np.zeros(whole + rest)
        for job in jobs:
            *_, (layout, chosen) = indices(
                whole + rest, Layout(5, accumulation, job), None, drop_last=False
            )
            assert chosen.shape == (layout.accumulation, 1, layout.batch)
            np.add.at(weights, chosen.reshape(-1), 1 / chosen.size / replicas)
        np.testing.assert_allclose(weights[whole:], 1 / rest)
        assert not weights[:whole].any()
        assert layout.size == rest


def test_what_cannot_be_trained_says_why():
    x, y = data()
    given = exported(network())
    with pytest.raises(popdist_onnx.popart_exception, match="there is no loss 'entropy'"):
        popdist_onnx.Trainer(given, loss="entropy")
    with pytest.raises(popdist_onnx.popart_exception, match="batches of another size"):
        popdist_onnx.Trainer(exported(network(), batch=4), batch_size=8)
    trainer = popdist_onnx.Trainer(given, batch_size=BATCH)
    with pytest.raises(popdist_onnx.popart_exception, match="smaller than one global batch"):
        trainer.fit(x[:4], y[:4], drop_last=True)
    with pytest.raises(popdist_onnx.popart_exception, match="there are no samples"):
        trainer.fit(x[:0], y[:0])
    with pytest.raises(popdist_onnx.popart_exception, match="same number of samples"):
        trainer.fit(x, y[:4])
    with pytest.raises(popdist_onnx.popart_exception, match="not those of the model's inputs"):
        trainer.fit({"z": x}, y)
    with pytest.raises(popdist_onnx.popart_exception, match="Type discrepancy for tensor x"):
        trainer.fit(x.astype(np.float64), y)


NAMED = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "adamax": lambda p: torch.optim.Adamax(p, lr=2e-3),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_named_optimizer_is_torchs_of_that_name(name):
    x, y = data()
    model = network()
    trainer = popdist_onnx.Trainer(exported(model), optimizer=name, batch_size=BATCH)
    trainer.fit(x, y, epochs=2, shuffle=False)
    optimizer = NAMED[name](model.parameters())
    for _ in range(2):
        for start in range(0, SAMPLES, BATCH):
            batch, target = (torch.from_numpy(a[start : start + BATCH]) for a in (x, y))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), target).backward()
            optimizer.step()
    with torch.no_grad():
        np.testing.assert_allclose(trainer.predict(x), model(torch.from_numpy(x)), atol=2e-4)


def test_a_learning_rate_changes_a_named_optimizer_only():
    x, y = data()
    given = exported(network())
    named = popdist_onnx.train(given, x, y, optimizer="sgd", learning_rate=0.1, batch_size=BATCH)
    made = popdist_onnx.train(given, x, y, optimizer=sgd(0.1), batch_size=BATCH)
    for name, weight in named.weights.items():
        np.testing.assert_array_equal(weight, made.weights[name])
    with pytest.raises(popdist_onnx.popart_exception, match="has its learning rate already"):
        popdist_onnx.Trainer(given, optimizer=sgd(), learning_rate=0.1)


def test_a_softmax_at_the_end_is_not_taken_twice():
    x, y = data()
    plain = network()
    scores = popdist_onnx.Trainer(exported(plain), optimizer=sgd(), batch_size=BATCH)
    with_softmax = exported(nn.Sequential(plain, nn.Softmax(1)))
    probabilities = popdist_onnx.Trainer(with_softmax, optimizer=sgd(), batch_size=BATCH)
    losses = [one.fit(x, y, epochs=2, shuffle=False) for one in (scores, probabilities)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    np.testing.assert_allclose(probabilities.predict(x).sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("form", ["path", "bytes", "proto", "ir"])
def test_a_model_in_any_form_is_trained_and_stays_as_it_was(form, tmp_path):
    x, y = data()
    model = network()
    content = exported(model)
    (tmp_path / "model.onnx").write_bytes(content)
    proto = onnx.load_from_string(content)
    forms = {"path": tmp_path / "model.onnx", "bytes": content, "proto": proto}
    forms["ir"] = ir.from_proto(onnx.load_from_string(content))
    before = ir.to_proto(forms["ir"])
    trainer = popdist_onnx.Trainer(forms[form], optimizer=sgd(), batch_size=SAMPLES, freeze="0.*")
    trainer.fit(x, y, shuffle=False)
    trainer.save(tmp_path / "trained.onnx", inference=True)
    nn.CrossEntropyLoss()(model(torch.from_numpy(x)), torch.from_numpy(y)).backward()
    for name, weight in model.named_parameters():
        rate = 0 if name.startswith("0.") else 0.1
        wanted = (weight - rate * weight.grad).detach().numpy()
        np.testing.assert_allclose(trainer.weights[name], wanted, atol=1e-6, err_msg=name)
    assert forms["path"].read_bytes() == content
    assert proto == onnx.load_from_string(content)
    assert ir.to_proto(forms["ir"]) == before


def test_lists_and_labels_of_any_whole_type_are_taken():
    x, y = data()
    given = exported(network())
    runs = [
        popdist_onnx.train(given, *pair, optimizer="sgd", batch_size=BATCH).predict(x)
        for pair in ((x, y), (x.tolist(), y.tolist()), (x, y.astype(np.uint8)[:, None]))
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[0], runs[2])


def test_weights_that_are_fills_are_stored_and_trained(caplog):
    """As in the model-zoo networks that come with onnx."""
    make = onnx.helper.make_node
    nodes = [
        make("ConstantOfShape", ["s"], ["w"], value=onnx.helper.make_tensor("v", 1, [1], [0.02])),
        make("MatMul", ["x", "w"], ["y"]),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, ["n", FEATURES])],
        [onnx.helper.make_tensor_value_info("y", 1, ["n", CLASSES])],
        [onnx.numpy_helper.from_array(np.array([FEATURES, CLASSES]), "s")],
    )
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)])
    x, y = data()
    trainer = popdist_onnx.Trainer(proto, optimizer=sgd(), batch_size=BATCH)
    losses = trainer.fit(x, y, epochs=5)
    assert losses[-1] < 0.8 * losses[0]
    assert list(trainer.weights) == ["w"]
    assert "1 weights of the model are no initializers" in caplog.text
    session = dict(dataFlow=popdist_onnx.DataFlow(1, ["total"]), optimizer=sgd())  # noqa: C408
    nodes.append(make("ReduceSum", ["y"], ["total"], keepdims=0))
    proto.graph.node.append(nodes[-1])
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = BATCH
    with pytest.raises(popdist_onnx.popart_exception, match="with_stored_fills"):
        popdist_onnx.TrainingSession(
            proto.SerializeToString(),
            loss="total",
            deviceInfo=popdist_onnx.DeviceManager().createCpuDevice(),
            **session,
        )
    model = read(proto)
    with_stored_fills(model)
    popdist_onnx.TrainingSession(
        model,
        loss="total",
        deviceInfo=popdist_onnx.DeviceManager().createCpuDevice(),
        **session,
    )


@pytest.mark.parametrize(
    ("settings", "arrays", "text"),
    [
        ({"optimizer": "adm"}, {}, r"no optimizer 'adm'(.|\n)*did you mean 'adam'"),
        ({"optimizer": 3}, {}, "this is not an optimizer"),
        ({"learning_rate": -1}, {}, "a learning rate is a positive number"),
        ({"loss": "msee"}, {}, r"no loss 'msee'(.|\n)*did you mean 'mse'"),
        ({"batchsize": 8}, {}, r"no setting batchsize(.|\n)*did you mean batch_size"),
        ({"accumulation": 0}, {}, "accumulation is a positive whole number"),
        ({"epochs": 0}, {}, "epochs is a positive whole number"),
        ({"seed": "a"}, {}, "seed is a whole number"),
        ({"seed": -1}, {}, "seed is a whole number"),
        ({"shuffle": "no"}, {}, "shuffle is true or false"),
        ({}, {"inputs": ([[1.0]], [1]), "labels": None}, r"two arrays(.|\n)*np\.asarray"),
        ({}, {"inputs": np.zeros((SAMPLES, 2, 3), np.float32)}, "samples of x have another shape"),
        ({}, {"labels": np.eye(CLASSES)[data()[1]]}, r"labels\.argmax\(-1\) of one-hot labels"),
        ({"freeze": "*"}, {}, "no weight is left to train"),
        ({}, {"labels": np.full(SAMPLES, 3)}, "classes that the model does not have"),
        ({}, {"inputs": np.full((SAMPLES, FEATURES), np.nan, np.float32)}, "x is not finite"),
    ],
)
def test_bad_settings_and_data_are_refused(settings, arrays, text):
    x, y = data()
    given = {"inputs": x, "labels": y, **arrays}
    with pytest.raises(popdist_onnx.popart_exception, match=text):
        popdist_onnx.train(
            exported(network()), **given, **{"batch_size": BATCH, "check_finite": True, **settings}
        )


def test_a_model_without_weights_is_not_trained():
    text = '<ir_version: 8, opset_import: ["": 13]> g (float[N, 6] x) => (float[N, 6] y) '
    model = onnx.parser.parse_model(text + "{ y = Relu(x) }")
    x, y = data()
    with pytest.raises(popdist_onnx.popart_exception, match="no weights to train"):
        popdist_onnx.train(model, x, y, batch_size=BATCH)


def classifier(outputs, last):
    """As skl2onnx writes a classifier: the labels first, which pick one of the classes."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13, "ai.onnx.ml": 1]> '
        f"g (float[N, {FEATURES}] raw) => (int64[N] label, {outputs}) "
        "<int64[3] classes = {0, 1, 2}, int64[1] flat = {-1}> "
        "{ x = ai.onnx.ml.Scaler<offset=[0.5], scale=[2.0]>(raw) z = MatMul(x, w) "
        "s = Softmax<axis=1>(z) top = ArgMax<axis=1, keepdims=0>(s) "
        "picked = ai.onnx.ml.ArrayFeatureExtractor(classes, top) "
        f"label = Reshape(picked, flat) {last} }}"
    )
    weights = rng.normal(size=(FEATURES, CLASSES)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model, weights


def test_a_classifier_as_scikit_learn_has_it_trains_by_its_probabilities():
    model, weights = classifier(f"float[N, {CLASSES}] p", "p = Identity(s)")
    x, y = data()
    scaled = (x - np.float32(0.5)) * np.float32(2)
    trainer = popdist_onnx.train(model, x, y, batch_size=BATCH, optimizer=sgd(), shuffle=False)
    expected = torch.tensor(weights, requires_grad=True)
    plain = torch.optim.SGD([expected], lr=0.1)
    for start in range(0, SAMPLES, BATCH):
        scores = torch.tensor(scaled[start : start + BATCH]) @ expected
        plain.zero_grad()
        nn.functional.cross_entropy(scores, torch.tensor(y[start : start + BATCH])).backward()
        plain.step()
    probabilities = (torch.tensor(scaled) @ expected).softmax(1).detach().numpy()
    np.testing.assert_allclose(trainer.predict(x), probabilities, rtol=1e-5)


def test_dictionaries_of_probabilities_are_named_with_the_option_of_skl2onnx():
    model, _ = classifier("float[N, 3] p", "p = ai.onnx.ml.ZipMap<classlabels_int64s=[0, 1, 2]>(s)")
    del model.graph.output[1]
    kind = onnx.helper.make_map_type_proto(
        onnx.TensorProto.INT64, onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    )
    sequence = onnx.helper.make_sequence_type_proto(kind)
    model.graph.output.append(onnx.helper.make_value_info("p", sequence))
    with pytest.raises(popdist_onnx.popart_exception, match='"zipmap": False'):
        popdist_onnx.train(model, *data(), batch_size=BATCH)


def test_a_model_that_is_not_valid_is_refused():
    text = '<ir_version: 8, opset_import: ["": 13]> g (float[N, 6] x) => (float[N, 6] y) '
    model = onnx.parser.parse_model(text + "{ y = my.Own(x) }")
    with pytest.raises(popdist_onnx.popart_exception, match="No opset import for domain my"):
        popdist_onnx.train(model, *data(), batch_size=BATCH)


def test_a_model_is_not_saved_in_a_folder_that_does_not_exist(tmp_path):
    trainer = popdist_onnx.train(exported(network()), *data(), batch_size=BATCH)
    with pytest.raises(popdist_onnx.popart_exception, match=r"(?s)does not exist.*os\.makedirs"):
        trainer.save(tmp_path / "none" / "model.onnx")
