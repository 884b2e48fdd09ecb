"""Whether optimum-graphcore's IPUTrainer has the losses of transformers' Trainer.

``python data.py trainer_losses KIND`` trains with the latter, and writes its losses for one and
for two instances; ``python trainers.py KIND`` trains with the former, and ends with an error where
they differ. Nothing is random but the data and the first weights.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

ROWS, MICRO, ACCUMULATED, EPOCHS = 64, 4, 2, 2
LOSSES = Path("losses.json")
BELOW = 2e-4
"""The largest difference of losses of 1 to 5, which both log with four digits."""

_SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
_SHAPE |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def made(kind: str) -> tuple[Any, list[dict[str, torch.Tensor]]]:
    """A small model without dropout, and rows of its data."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    words = torch.from_numpy(rng.integers(3, 96, (ROWS, 16)))
    labels = torch.from_numpy(rng.integers(0, 3, ROWS))
    if kind == "vit":
        shape = {**_SHAPE, "image_size": 32, "patch_size": 8, "intermediate_size": 64}
        config = transformers.ViTConfig(**shape, num_labels=3)
        pixels = torch.from_numpy(rng.normal(size=(ROWS, 3, 32, 32)).astype(np.float32))
        columns = {"pixel_values": pixels, "labels": labels}
        model = transformers.ViTForImageClassification(config)
    elif kind == "bert":
        config = transformers.BertConfig(
            **_SHAPE, vocab_size=96, intermediate_size=64, max_position_embeddings=32, num_labels=3
        )
        columns = {"input_ids": words, "labels": labels}
        model = transformers.BertForSequenceClassification(config)
    else:
        dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16}
        config = transformers.GPT2Config(vocab_size=96, **shape, **dropouts)
        columns = {"input_ids": words, "labels": words}
        model = transformers.GPT2LMHeadModel(config)
    return model, [{name: rows[i] for name, rows in columns.items()} for i in range(ROWS)]


def trained(trainer: Any, arguments: Any, micro: int, **more: Any) -> list[float]:
    """The losses of a training that reads its rows in their order."""

    class InOrder(trainer):  # type: ignore[misc] # a class
        def _get_train_sampler(self) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    settings = arguments(
        "out",
        per_device_train_batch_size=micro,
        num_train_epochs=EPOCHS,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        max_grad_norm=0.0,
        **more.pop("settings"),
    )
    own = InOrder(args=settings, **more)
    own.train()
    return [row["loss"] for row in own.state.log_history if "loss" in row]


def write_losses(kind: str) -> None:
    """Writes the losses of transformers' Trainer, for one instance and for two."""
    found = {}
    for instances in (1, 2):
        model, rows = made(kind)
        # Each instance reads its part of the rows, in batches.
        parts = np.arange(ROWS).reshape(instances, -1, MICRO).swapaxes(0, 1).reshape(-1)
        found[instances] = trained(
            transformers.Trainer,
            transformers.TrainingArguments,
            instances * MICRO,
            model=model,
            train_dataset=[rows[row] for row in parts],
            settings={"gradient_accumulation_steps": ACCUMULATED, "no_cuda": True},
        )
    LOSSES.write_text(json.dumps(found))


def compare(kind: str) -> None:
    """Trains with IPUTrainer.

    Raises:
        RuntimeError: Its losses are others, or do not fall.
    """
    import horovod.torch as hvd
    from optimum import graphcore

    model, rows = made(kind)
    config = graphcore.IPUConfig.from_dict(
        {
            "layers_per_ipu": [2],
            "gradient_accumulation_steps": ACCUMULATED,
            "enable_half_partials": False,
            "output_mode": "all",
        }
    )
    losses = trained(
        graphcore.IPUTrainer,
        graphcore.IPUTrainingArguments,
        MICRO,
        model=model,
        ipu_config=config,
        train_dataset=rows,
        settings={"fp32": True},
    )
    hvd.init()
    seen = hvd.allreduce(torch.tensor(losses, dtype=torch.float64), op=hvd.Average)
    wanted = torch.tensor(json.loads(LOSSES.read_text())[str(hvd.size())], dtype=torch.float64)
    if len(seen) != len(wanted):
        raise RuntimeError(f"{len(seen)} losses in place of {len(wanted)}")
    apart = float((seen - wanted).abs().max())
    print(f"{kind}: {len(seen)} losses, {apart:.1e} apart, {seen[0]:.4f} to {seen[-1]:.4f}")  # noqa: T201
    if apart > BELOW or seen[-1] > seen[0]:
        raise RuntimeError(f"losses {apart:.1e} apart: {seen.tolist()} and {wanted.tolist()}")


if __name__ == "__main__":
    compare(sys.argv[1])
