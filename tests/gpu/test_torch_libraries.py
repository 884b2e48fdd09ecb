"""Lightning, Hugging Face's Trainer and accelerate on a GPU, against plain torch on the CPU."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.distributed import test_torch_lightning as on_cpus
from tests.distributed.jobs import LAUNCHER, run_command, run_job
from tests.gpu.conftest import gpus
from tests.popdist_torch.reference import flat

PROGRAM = """
import os
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.manual_seed(1)
rows = [
    {"input_ids": torch.randint(0, 50, (12,)), "labels": torch.tensor(index % 2)}
    for index in range(32)
]
config = BertConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)
arguments = TrainingArguments(
    "OUT", per_device_train_batch_size=8, num_train_epochs=2, learning_rate=0.01,
    gradient_accumulation_steps=2, max_grad_norm=0.5, report_to=[], save_strategy="no",
    disable_tqdm=True, use_cpu=os.environ.get("ON_CPU") == "1",
)
trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=rows)
result = trainer.train()
print(f"{trainer.args.device.type} {arguments.world_size} {result.training_loss:.4f}")
"""

ACCELERATE = """
import os
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=os.environ.get("ON_CPU") == "1", gradient_accumulation_steps=2)
torch.manual_seed(1)
data = TensorDataset(torch.randn(64, 5), torch.randint(0, 3, (64,)))
model = torch.nn.Linear(5, 3)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, 4))
for x, y in loader:
    with accelerator.accumulate(model):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
mean = accelerator.gather(loss.detach()).mean()
print(f"{accelerator.device.type} {accelerator.num_processes} {mean:.4f}")
accelerator.end_training()
"""


def lightning_cases(folder):
    import lightning as L  # noqa: N812 - as its documentation does

    import popdist_torch.lightning  # noqa: F401 - makes the strategy known

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = on_cpus.network()

        def training_step(self, batch, _):
            self.seen = str(batch[0].device.type)
            return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    answer = {}
    for name, case in {**on_cpus.CASES, "16-mixed": {"precision": "16-mixed"}}.items():
        trainer = L.Trainer(
            strategy="popdist",
            accelerator="gpu",
            default_root_dir=f"{folder}/{name}",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            max_epochs=on_cpus.EPOCHS,
            **case,
        )
        torch.manual_seed(1 + trainer.global_rank)  # rank 0's weights are taken
        module = Module()
        rows = on_cpus.data(name)
        trainer.fit(module, DataLoader(rows, on_cpus.ROWS))
        answer[name], answer[f"{name}/device"] = flat(module.network.cpu()), module.seen
        gathered = trainer.strategy.all_gather(torch.ones(2, device="cuda") * trainer.global_rank)
        answer[f"{name}/gathered"] = gathered.tolist()
        mean = trainer.strategy.reduce(torch.tensor([1.0, 3.0][trainer.global_rank]).cuda())
        answer[f"{name}/mean"] = [mean.item(), mean.device.type]
    return answer


def test_lightning_trains_on_a_gpu_as_one_process(tmp_path):
    answers = run_job(lightning_cases, folder=str(tmp_path), timeout=240)
    for name, case in {**on_cpus.CASES, "16-mixed": {}}.items():
        for answer in answers:
            np.testing.assert_array_equal(answer[name], answers[0][name])
            assert answer[f"{name}/device"] == "cuda"
            assert answer[f"{name}/gathered"] == [[0.0, 0.0], [1.0, 1.0]]
            assert answer[f"{name}/mean"] == [2.0, "cuda"]
        tolerance = 2e-3 if "mixed" in name else on_cpus.TOLERANCES.get(name, 1e-6)
        wanted, _ = on_cpus.expected(case, name)
        np.testing.assert_allclose(answers[0][name], wanted, rtol=0, atol=tolerance)


def said(program, path, ranks, *, cpu):
    path.write_text(program.replace("OUT", str(path.parent / "out")))
    code, output = run_command(
        [*LAUNCHER, "-np", str(ranks), "python", str(path)], env={"ON_CPU": str(int(cpu))}
    )
    assert code == 0, output
    return [line.split() for line in output.splitlines() if line[:4] in ("cuda", "cpu ")]


def test_trainer_and_accelerate_train_on_the_gpu(tmp_path):
    ranks = len(gpus())  # NCCL takes no two ranks on one GPU
    for name, program in {"trainer": PROGRAM, "accelerator": ACCELERATE}.items():
        on_gpu = said(program, tmp_path / f"{name}.py", ranks, cpu=False)
        on_cpu = said(program, tmp_path / f"{name}.py", ranks, cpu=True)
        assert [line[:2] for line in on_gpu] == [["cuda", str(ranks)]] * ranks
        for one, other in zip(on_gpu, on_cpu, strict=True):
            assert abs(float(one[2]) - float(other[2])) < 2e-4
