"""Hugging Face's Trainer: a tiny BERT with dropout on SST-2, with Trainer's schedule, data and checkpoints."""

from pathlib import Path

import small
import transformers
from killed import DIE, SAVE, STEPS, die
from transformers.trainer_utils import get_last_checkpoint

import tether

EXAMPLE = Path(__file__).parents[2] / "examples" / "with_trainer.py"
transformers.logging.disable_progress_bar()


class Death(transformers.TrainerCallback):
    """Kills the process in the middle of training."""

    def on_step_end(self, args, state, control, **_):
        if state.global_step == DIE:
            die()


def fitted(folder, at, model, **rest):
    """Train with checkpoints in the folder; from the last one if there is one."""
    accumulated = rest.pop("accumulated", 1)
    arguments = transformers.TrainingArguments(
        str(folder),
        max_steps=STEPS,
        save_steps=SAVE,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=accumulated,
        bf16=accumulated > 1,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    pairs = zip(*small.phrases(), strict=True)
    rows = [{"input_ids": x, "attention_mask": (x > 0).long(), "labels": y} for x, y in pairs]
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[Death()] if at else [], **rest)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)))
    return trainer


def given(make, **options):
    """An optimizer made before the Trainer."""

    def case(folder, at, count):
        model = small.bert()
        opt = count(make(model))
        fitted(folder, at, model, optimizers=(opt, None), **options)
        return model, opt

    return case


def described(make, **kwargs):
    """An optimizer that the Trainer makes: by a factory, or by a class, from the model or from Trainer's own groups."""

    def case(folder, at, count):
        model, made = small.bert(), []

        class Kept(tether.Optimizer):
            def __init__(self, *args, **rest):
                super().__init__(*args, **rest)
                made.append(count(self))

        def factory():
            return lambda model, **rest: made.append(count(make(model, **rest))) or made[0]

        given = {name: model if value is small.bert else value for name, value in kwargs.items()}
        chosen = Kept if make is tether.Optimizer else factory
        fitted(folder, at, model, optimizer_cls_and_kwargs=(chosen, given))
        return model, made[0]

    return case


PARTS = [tether.Part("*dense.weight", on=tether.Orthogonal()), tether.Part("*")]
CASES = {
    "orthogonal, bf16, accumulated": given(lambda m: small.orthogonal(m, ["*embeddings*"]), accumulated=2),
    "circle": given(small.circle),
    "multirate, accumulated": given(lambda m: small.multirate(m, "classifier.*"), accumulated=2),
    "random subset": given(small.subset),
    "AdLaLa, a factory": described(tether.methods.adlala, output="classifier.*", lr=0.1),
    "a class of the model": described(tether.Optimizer, model=small.bert, parts=PARTS, lr=0.05, word="BAOAB"),
    "a class of Trainer's groups": described(tether.Optimizer, lr=0.05, word="BAOAB", temperature=1e-6),
}
