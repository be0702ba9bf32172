"""peft: LoRA on a tiny BERT, its matrix A orthogonal; by the Trainer, and by hand with adapters from a folder."""

from pathlib import Path

import peft
import small
import torch
from killed import SAVE, STEPS, die
from trainer_cases import fitted

import tether

EXAMPLE = Path(__file__).parents[2] / "examples" / "with_peft.py"
LORA = {"r": 4, "target_modules": ["query", "value"], "task_type": "SEQ_CLS"}
PARTS = [tether.Part("*lora_A*", on=tether.Orthogonal()), tether.Part("*lora_B*"), tether.Part("*", lr=0.01)]


def optimizer(model):
    return tether.Optimizer(model, PARTS, lr=0.05, word="BAOAB", temperature=1e-6)


def by_trainer(folder, at, count):
    model = peft.get_peft_model(small.bert(), peft.LoraConfig(**LORA))
    opt = count(optimizer(model))
    fitted(folder, at, model, optimizers=(opt, None))
    return model, opt


def by_hand(folder, at, count):
    """Adapters and the optimizer's dict in the folder; dropout is named by the step."""
    base, saved, done = small.bert(), folder / "adapter", 0
    if saved.exists():
        model = peft.PeftModel.from_pretrained(base, saved, is_trainable=True)
        opt, done = count(optimizer(model)), SAVE
        opt.load_state_dict(torch.load(folder / "opt.pt"))
    else:
        model = peft.get_peft_model(base, peft.LoraConfig(**LORA))
        opt = count(optimizer(model))
    x, y = small.phrases()
    model.train()
    for step in range(done, STEPS):
        torch.manual_seed(step)
        opt.zero_grad()
        model(input_ids=x[8 * step : 8 * step + 8], labels=y[8 * step : 8 * step + 8]).loss.backward()
        opt.step()
        if step + 1 == SAVE:
            torch.save(opt.state_dict(), folder / "opt.pt")
            model.save_pretrained(saved)
        if step + 1 == at:
            die()
    assert opt.violation() < 1e-6
    return model, opt


CASES = {"by the Trainer": by_trainer, "by hand": by_hand}
