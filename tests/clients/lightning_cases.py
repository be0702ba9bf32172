"""Lightning: MNIST; it restores the model, makes the optimizer after that, and loads its state into it."""

import logging
import warnings
from pathlib import Path

import lightning
import small
import torch
from killed import DIE, SAVE, STEPS, die
from lightning.pytorch.callbacks import ModelCheckpoint

EXAMPLE = Path(__file__).parents[2] / "examples" / "with_lightning.py"
BATCH = 16
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


class Batches:
    """Minibatches that can be continued in the middle: Lightning keeps the state of a loader that has one."""

    def __init__(self):
        self.data, self.next = small.digits(), 0

    def __iter__(self):
        while self.next < len(self):
            at = slice(BATCH * self.next, BATCH * (self.next + 1))
            self.next += 1
            yield [x[at] for x in self.data]
        self.next = 0

    def __len__(self):
        return len(self.data[0]) // BATCH

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class Digits(lightning.LightningModule):
    def __init__(self, make, manual):
        super().__init__()
        self.net, self.make, self.automatic_optimization = small.convolution(), make, not manual

    def configure_optimizers(self):
        self.opt = self.make(self.net)
        return self.opt

    def training_step(self, batch, _):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        if self.automatic_optimization:
            return loss
        opt = self.optimizers()
        opt.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(opt, 0.5, "norm")
        opt.step()
        return None


class Death(lightning.Callback):
    """Kills the process in the middle of training."""

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == DIE:
            die()


def fitted(make, manual=False, **options):
    def case(folder, at, count):
        module = Digits(lambda net: count(make(net)), manual)
        saved = ModelCheckpoint(folder, every_n_train_steps=SAVE, save_top_k=-1, filename="{step}")
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_steps=STEPS,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[saved, Death()] if at else [saved],
            **options,
        )
        last = folder / f"step={SAVE}.ckpt"
        trainer.fit(module, Batches(), ckpt_path=last if last.exists() else None)
        return module.net, module.opt

    return case


CASES = {
    "orthogonal, bf16, accumulated, clipped": fitted(
        small.orthogonal, accumulate_grad_batches=2, gradient_clip_val=0.5, precision="bf16-mixed"
    ),
    "circle": fitted(small.circle),
    "AdLaLa, by hand": fitted(small.adlala, manual=True),
    "multirate": fitted(small.multirate),
    "random subset, accumulated": fitted(small.subset, accumulate_grad_batches=2),
}
