"""Accelerate: MNIST in a loop by hand, with accumulated and clipped gradients, a schedule, save_state, load_state."""

from pathlib import Path

import small
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DataLoaderConfiguration
from killed import SAVE, STEPS, die
from torch.utils.data import DataLoader, TensorDataset

EXAMPLE = Path(__file__).parents[2] / "examples" / "with_accelerate.py"
EACH = 2  # batches for a step


def looped(make, precision="no"):
    def case(folder, at, count):
        order = DataLoaderConfiguration(use_seedable_sampler=True)  # the same order when it is drawn again
        accelerator = Accelerator(
            cpu=True, mixed_precision=precision, gradient_accumulation_steps=EACH, dataloader_config=order
        )
        net = small.convolution()
        opt = count(make(net))
        schedule = torch.optim.lr_scheduler.LinearLR(opt, total_iters=STEPS)
        data = DataLoader(TensorDataset(*small.digits()), 16, shuffle=True)
        model, wrapped, data, schedule = accelerator.prepare(net, opt, data, schedule)
        done = 0
        if (folder / "state").exists():
            accelerator.load_state(str(folder / "state"))
            done = SAVE
        for x, y in accelerator.skip_first_batches(data, EACH * done):
            with accelerator.accumulate(model):
                accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                wrapped.step()
                schedule.step()
                wrapped.zero_grad()
            done += accelerator.sync_gradients
            if accelerator.sync_gradients and done == SAVE:
                accelerator.save_state(str(folder / "state"))
            if done == at:
                die()
            if done == STEPS:
                break
        AcceleratorState._reset_state(True)
        return net, opt

    return case


CASES = {
    "orthogonal, bf16": looped(small.orthogonal, "bf16"),
    "circle": looped(small.circle),
    "AdLaLa": looped(small.adlala),
    "multirate": looped(small.multirate),
    "random subset": looped(small.subset),
}
