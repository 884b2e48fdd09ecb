"""Programs and models that nobody here wrote, from the packages that are installed."""

import numpy as np

from tests.distributed.jobs import LAUNCHER, run_command, run_job


def test_the_script_by_which_accelerate_checks_a_launcher_passes():
    """``accelerate test`` runs it; it compares training with one process, among others."""
    command = [
        *LAUNCHER,
        "--num-instances=2",
        "python",
        "-m",
        "accelerate.test_utils.scripts.test_script",
    ]
    code, output = run_command(command, env={"ACCELERATE_USE_CPU": "true"})
    assert code == 0, output[-3000:]
    assert "Training yielded the same results" in output


def boring():
    import torch
    from lightning.pytorch import Trainer, seed_everything
    from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel

    seed_everything(5)
    model = BoringModel()
    before = model.layer.weight.detach().clone()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet["enable_checkpointing"] = False  # else files stay in the checkout
    trainer = Trainer(strategy="popdist", accelerator="cpu", max_epochs=2, **quiet)
    trainer.fit(model, datamodule=BoringDataModule())
    assert not torch.equal(before, model.layer.weight)
    trainer.test(model, datamodule=BoringDataModule(), verbose=False)
    weights = model.layer.weight.detach().numpy()
    processes = trainer.strategy.num_processes
    return {"weights": weights, "steps": trainer.global_step, "processes": processes}


def test_the_model_that_lightning_is_tested_with_trains():
    first, second = run_job(boring, framework="torch")
    # 64 rows in batches of one, of which each instance has half.
    assert first["steps"] == second["steps"] == 2 * 64 // 2
    np.testing.assert_array_equal(first["weights"], second["weights"])
    assert first["processes"] == 2  # by which published programs divide their batch


def application():
    import tensorflow as tf

    import popdist
    from popdist_tf.ipu.distributed.popdist_strategy import PopDistStrategy

    rng = np.random.default_rng(popdist.getInstanceIndex())
    images = rng.normal(size=(8, 32, 32, 3)).astype(np.float32)
    labels = rng.integers(0, 10, size=8)
    with PopDistStrategy().scope():
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.applications.MobileNet(
            input_shape=(32, 32, 3), alpha=0.25, weights=None, classes=10
        )
        model.compile("sgd", "sparse_categorical_crossentropy")
        model.optimizer.build(model.trainable_variables)  # else the first step is traced twice
    before = [weight.numpy() for weight in model.trainable_weights]
    model.fit(images, labels, batch_size=4, epochs=1, verbose=0)
    after = [weight.numpy() for weight in model.trainable_weights]
    changed = sum(not np.array_equal(*pair) for pair in zip(before, after, strict=True))
    return {"changed": changed, **{str(index): one for index, one in enumerate(after)}}


def test_an_application_of_keras_trains():
    first, second = run_job(application, framework="tensorflow", timeout=240)
    assert first["changed"] > 70  # of 83
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])
