"""A module of Lightning with an optimizer for some losses of the table, by popdist's strategy."""

import lightning
import torch
from torch import nn

import popdist_torch.lightning  # noqa: F401 - makes the strategy known
from tests.properties.programs.plain_loop import RATE, ROWS, UPDATES, batches, nets
from tests.properties.torch_losses import SOME


class Losses(lightning.LightningModule):
    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.losses, held = zip(*nets(SOME), strict=True)
        self.nets = nn.ModuleList(held)

    def configure_optimizers(self):
        return [torch.optim.SGD(net.parameters(), lr=RATE) for net in self.nets]

    def training_step(self, batch, _):
        for loss, net, optimizer in zip(self.losses, self.nets, self.optimizers(), strict=True):
            optimizer.zero_grad()
            self.manual_backward(loss(net, *batch))
            optimizer.step()


def main():
    torch.set_num_threads(1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="popdist",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    whole = [torch.cat(parts) for parts in zip(*batches(0, 1), strict=True)]
    data = torch.utils.data.TensorDataset(*whole)
    loader = torch.utils.data.DataLoader(data, batch_size=ROWS // trainer.world_size)
    assert len(loader) == UPDATES * trainer.world_size
    trainer.fit(Losses(), loader)


if __name__ == "__main__":
    main()
