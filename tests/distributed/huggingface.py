"""Programs of `transformers.Trainer` and of `accelerate`, as they are written for torchrun.

``python -m tests.distributed.huggingface FOLDER`` runs all of them in one process of a job, whoever
has started it, and writes what each of them came to; with one more word, those of accelerate alone.
Models are small and random.
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PLAIN = {
    "use_cpu": True,
    "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 3,
    "num_train_epochs": 2,
    "learning_rate": 0.01,
    "report_to": [],
    "save_strategy": "no",
    "disable_tqdm": True,
    "logging_steps": 1,
}
TRAINERS = {
    "accumulated, clipped": {"gradient_accumulation_steps": 3, "max_grad_norm": 0.05},
    "dropped": {"dataloader_drop_last": True},
    "bf16": {"bf16": True},
    "checkpointed": {"gradient_checkpointing": True},
    "stopped": {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "load_best_model_at_end": True,
        "metric_for_best_model": "loss",
        "num_train_epochs": 6,
        "learning_rate": 0.3,
    },
    "saved": {"save_strategy": "steps", "save_steps": 2},
    "resumed": {"save_strategy": "steps", "save_steps": 2},
}
LOOPS = {
    "plain": {},
    "accumulated, clipped": {"rows": 40, "steps": 3, "limit": 0.05},
    "shuffled": {"shuffle": True, "steps": 2},
    "uneven": {"rows": 45, "steps": 2},
    "dropped": {"rows": 45, "steps": 2, "drop_last": True},
}


def sentences(count, seed):
    generator = torch.Generator().manual_seed(seed)
    made = []
    for index in range(count):
        words = torch.randint(1, 50, (5 + index % 4,), generator=generator)
        made.append({"input_ids": words, "labels": words.sum() % 2})
    return made


def padded(batch):
    words = nn.utils.rnn.pad_sequence([row["input_ids"] for row in batch], batch_first=True)
    labels = torch.stack([row["labels"] for row in batch])
    return {"input_ids": words, "attention_mask": (words > 0).long(), "labels": labels}


def classifier(dropout):
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(1)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )


def counted(prediction):
    scores, labels = prediction
    return {"count": len(labels), "right": int((scores.argmax(-1) == labels).sum())}


def trained(name, folder):
    from transformers import EarlyStoppingCallback, Trainer, TrainingArguments

    place = f"{folder}/{'saved' if name == 'resumed' else name}"
    trainer = Trainer(
        classifier(0.2 if name in ("saved", "resumed") else 0.0),
        TrainingArguments(place, **{**PLAIN, **TRAINERS[name]}),
        train_dataset=sentences(21, 1),
        eval_dataset=sentences(13, 2),
        data_collator=padded,
        compute_metrics=counted,
        callbacks=[EarlyStoppingCallback(1)] if name == "stopped" else [],
    )
    result = trainer.train(f"{place}/checkpoint-4" if name == "resumed" else None)
    kept = ("loss", "grad_norm", "eval_loss", "eval_count", "eval_right", "learning_rate")
    logs = [{k: v for k, v in log.items() if k in kept} for log in trainer.state.log_history]
    return {
        "steps": trainer.state.global_step,
        "loss": result.training_loss,
        "logs": logs,
        "evaluated": {k: v for k, v in trainer.evaluate().items() if k in kept},
        "predicted": len(trainer.predict(sentences(7, 3)).predictions),
        "weights": flat(trainer.model).tolist(),
    }


def flat(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def table(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    return TensorDataset(x, torch.randint(0, 3, (rows,), generator=generator))


def looped(accelerator, folder, rows=48, steps=1, limit=None, *, shuffle=False, drop_last=False):
    """A loop of one's own; a global batch has four rows in any number of processes."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
    loader = DataLoader(
        table(rows, 1),
        4 // accelerator.num_processes,
        shuffle=shuffle,
        drop_last=drop_last,
        generator=torch.Generator().manual_seed(5) if shuffle else None,
    )
    accelerator.gradient_accumulation_steps = steps
    accelerator.step_scheduler_with_optimizer = False
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    losses = []
    for _ in range(2):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    if limit is not None:
                        accelerator.clip_grad_norm_(model.parameters(), limit)
                    scheduler.step()
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "mean").item())
    seen = right = 0
    for x, y in accelerator.prepare(DataLoader(table(11, 2), 2)):
        best, labels = accelerator.gather_for_metrics((model(x).argmax(-1), y))
        seen, right = seen + len(labels), right + int((best == labels).sum())
    whole = accelerator.unwrap_model(model)
    weights = flat(whole).clone()
    accelerator.save_state(folder)
    accelerator.wait_for_everyone()  # process 0 writes the weights
    with torch.no_grad():
        whole[0].weight.zero_()
    accelerator.load_state(folder)
    accelerator.wait_for_everyone()  # the next case writes there
    return {
        "losses": losses,
        "metrics": [seen, right],
        "weights": weights.tolist(),
        "restored": torch.equal(flat(whole), weights),
    }


def main(folder, loops_only=None):
    import transformers
    from accelerate import Accelerator

    transformers.logging.set_verbosity_error()
    chosen = () if loops_only else TRAINERS
    answer = {f"trainer: {name}": trained(name, folder) for name in chosen}
    accelerator = Accelerator(cpu=True)
    for name, case in LOOPS.items():
        answer[f"loop: {name}"] = looped(accelerator, f"{folder}/state", **case)
        accelerator.free_memory()
    answer["processes"] = accelerator.num_processes
    answer["popdist exchanges"] = "popdist_torch.ddp" in sys.modules
    Path(folder, f"answer.{accelerator.process_index}.json").write_text(json.dumps(answer))
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
