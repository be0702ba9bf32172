"""Lightning with AdLaLa on a spiral: the optimizer is one line of configure_optimizers.

Stop it and run it again: it goes on from its last epoch.
"""

import sys
from pathlib import Path

import lightning
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tether

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "out/with_lightning")


class Spiral(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 100), nn.ReLU(), nn.Linear(100, 1))

    def configure_optimizers(self):
        return tether.methods.adlala(self.net, lr=0.25, friction=0.5)

    def training_step(self, batch, _):
        return nn.functional.binary_cross_entropy_with_logits(self.net(batch[0])[:, 0], batch[1].float())


lightning.seed_everything(0, verbose=False)
x, y = tether.data.spiral(n=500, turns=1)
module, data = Spiral(), DataLoader(TensorDataset(x, y), batch_size=25, shuffle=True)
saved, last = ModelCheckpoint(FOLDER, save_last=True), FOLDER / "last.ckpt"
trainer = lightning.Trainer(max_epochs=20, accelerator="cpu", logger=False, callbacks=[saved])
trainer.fit(module, data, ckpt_path=last if last.exists() else None)
right = (module.net(x)[:, 0] > 0) == (y > 0)
print(f"epoch {trainer.current_epoch}, {100 * right.float().mean():.0f} % of the points are right")
