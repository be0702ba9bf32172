"""Tables 4.2 and 4.4: a small transformer with bounded weights on Penn Treebank and WikiText-2.

Two encoder layers with two heads and 200 feed-forward nodes predict the next word. c-CoLA-ud (h = 0.4; γ = 0.5 on Penn
Treebank, 1 on WikiText-2; radius 0.1 for linear layers, 1 for norms and self-attention, 0.5 for the rest) beside SGD
with momentum, with weight decay and without; the least validation loss in some epochs counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tether
from tether_studies.drawing import draw_curves, subplots
from tether_studies.judges import every, less, more
from tether_studies.lab import Lab
from tether_studies.quantities import Quantity
from tether_studies.recipes import Recipe, recipe
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "table-4.2",
    "a transformer with bounded weights reaches a lower validation loss",
    "thesis, Tables 4.2, 4.4; ICML paper, Table 2",
    data=("ptb", "wikitext-2"),
    notes="By default the first 25,000 words of the texts, a vocabulary of 2000 and an embedding of 64; validation "
    "losses have their least value within the epochs, as in the thesis, but compare only with each other. The thesis "
    "does not give the width of the embedding, dropout (0.2 here), the length of a sequence (35), the start, nor which "
    "layers have which radius.",
)
COLA = "c-CoLA-ud"
TEXTS = {"Penn Treebank": tether.data.ptb, "WikiText-2": tether.data.wikitext2}
FRICTIONS = {"Penn Treebank": 0.5, "WikiText-2": 1.0}
RADII = {"*norm*.weight": 1.0, "*self_attn*weight": 1.0, "*linear*.weight": 0.1, "*.weight": 0.5}  # the first that fits
PUBLISHED = {  # Tables 4.2 and 4.4
    COLA: (4.81, 5.09),
    "SGD h=0.1 mom=0.7": (4.87, 5.13),
    "SGD h=0.1 mom=0.8": (4.83, 5.13),
    "SGD h=0.1 mom=0.9": (4.84, 5.13),
    "SGD h=0.2 mom=0.7": (4.83, 5.13),
    "SGD h=0.2 mom=0.8": (4.83, 5.14),
    "SGD h=0.1 mom=0.7 WD": (4.84, 5.01),
    "SGD h=0.1 mom=0.8 WD": (4.77, 5.02),
    "SGD h=0.1 mom=0.9 WD": (4.77, 5.02),
}
LEAST = Quantity("least validation loss", lambda one: one["validation"].min(0), 3)
SETTINGS = ((0.1, 0.7), (0.1, 0.8), (0.1, 0.9), (0.2, 0.7), (0.2, 0.8))


@dataclass(frozen=True)
class Config:
    runs: int = at(3, quick=2, full=3)
    epochs: int = at(12, quick=2, full=200)
    tokens: int = at(25_000, quick=1500, full=3_000_000)  # to train on
    validation: int = at(20_000, quick=700, full=300_000)
    words: int | None = at(2000, quick=100, full=None)  # the most common; the others are unknown
    width: int = at(64, quick=8, full=200)  # of the embedding
    batches: tuple[int, int] = at((10, 10), full=(1024, 128))  # rows of text that are read at once
    length: int = 35  # how many words of a row
    settings: tuple[tuple[float, float], ...] = at(((0.1, 0.9),), full=SETTINGS)  # step sizes and momenta of SGD
    decay: float = 1e-4


class Transformer(nn.Module):
    """Embedding and position, two encoder layers that see only what came before, and a score for every word."""

    def __init__(self, words: int, width: int, length: int, nodes: int = 200, dropout: float = 0.2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        layer = nn.TransformerEncoderLayer(width, 2, nodes, dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.decoder = nn.Linear(width, words)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("position", waves(length, width), persistent=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[1]
        position, mask = self.get_buffer("position")[:n], self.get_buffer("mask")[:n, :n]
        seen = self.dropout(self.embedding(x) * math.sqrt(position.shape[1]) + position)
        return self.decoder(self.layers(seen, mask=mask, is_causal=True))


def waves(length: int, width: int) -> torch.Tensor:
    """Sine and cosine of the place by turns, their lengths from 2π to 10,000 · 2π."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angles = torch.arange(length).unsqueeze(1) * rates
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)


class Rows:
    """A text cut into rows that are read in parallel: pairs of words and the words that follow them."""

    def __init__(self, numbers: torch.Tensor, rows: int, length: int) -> None:
        rows = min(rows, len(numbers) // 2)
        self.rows, self.length = numbers[: len(numbers) // rows * rows].view(rows, -1), length

    def __len__(self) -> int:
        return -(-(self.rows.shape[1] - 1) // self.length)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for i in range(0, self.rows.shape[1] - 1, self.length):
            following = self.rows[:, i + 1 : i + 1 + self.length]
            yield self.rows[:, i : i + following.shape[1]], following


def run(config: Config, lab: Lab) -> Results:
    """Run i of every method has the same start."""
    pairs = {f"{text}, {method}": (text, method) for text in TEXTS for method in methods(config, text)}
    return lab.runs(pairs, config.runs, lambda name, seed: piece(*pairs[name], config, seed))


def name(h: float, momentum: float, decay: float) -> str:
    """Of a setting of SGD."""
    return f"SGD h={h:g} mom={momentum:g}" + (" WD" if decay else "")


def methods(config: Config, text: str) -> dict[str, Recipe]:
    made = {COLA: cola(FRICTIONS[text])}
    for h, momentum in config.settings:
        for decay in (0.0, config.decay):
            made[name(h, momentum, decay)] = recipe("SGD", lr=h, momentum=momentum, weight_decay=decay)
    return made


def cola(friction: float) -> Recipe:
    """c-CoLA-ud with a radius for each kind of layer; biases are free."""
    parts = [tether.Part(where, on=tether.Circle(radius)) for where, radius in RADII.items()]
    table = [*parts, tether.Part("*")]
    return lambda net, seed: tether.Optimizer(net, table, lr=0.4, word="OBA", friction=friction, seed=seed)


def piece(text: str, method: str, config: Config, seed: int) -> Results:
    """Train once; training and validation loss after every epoch."""
    (numbers, words), (valid, _) = (read(text, split, config.words) for split in ("train", "valid"))
    rows = config.batches[list(TEXTS).index(text)]
    data = Rows(numbers[: config.tokens], rows, config.length)
    held_out = Rows(valid[: config.validation], 20, config.length)
    torch.manual_seed(seed)
    net = Transformer(len(words), config.width, config.length)

    def test(step: int, model: nn.Module, opt: torch.optim.Optimizer) -> dict[str, float]:
        return {"validation": tested(net, held_out)}

    steps, opt = config.epochs * len(data), methods(config, text)[method](net, seed)
    record = tether.train(net, opt, data, mean_loss, steps, log_every=len(data), callbacks=[test])
    return {"epochs": np.array(record.steps) / len(data), "loss": record.losses, **record.metrics}


@lru_cache(4)
def read(text: str, split: str, words: int | None) -> tuple[torch.Tensor, list[str]]:
    return TEXTS[text](split, words)


def mean_loss(scores: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return cross_entropy(scores.flatten(0, 1), following.flatten())


@torch.no_grad()
def tested(net: nn.Module, data: Rows) -> float:
    """Mean loss of a word."""
    net.eval()
    losses = [(float(mean_loss(net(x), y)), y.numel()) for x, y in data]
    net.train()
    return sum(loss * count for loss, count in losses) / sum(count for _, count in losses)


def claims(results: Results, config: Config) -> Claims:
    found = {text: LEAST.of(by_method(results, text)) for text in TEXTS}
    claimed = {
        0.0: (
            "bounded weights reach a lower validation loss than SGD-m",
            "Table 4.2: Penn Treebank 4.81 against 4.83–4.87, WikiText-2 5.09 against 5.13–5.14",
            less,
        ),
        config.decay: (
            "but not than SGD-m with weight decay",
            "Table 4.4: Penn Treebank 4.81 against 4.77, WikiText-2 5.09 against 5.01",
            more,
        ),
    }
    for decay, (claim, published, judge) in claimed.items():
        pairs = {}
        for text, of in found.items():
            best = min((name(*s, decay) for s in config.settings), key=lambda method: of[method].mean())
            pairs[text] = of[COLA], of[best]
        said = "; ".join(f"{text} {LEAST.text(a)} against {LEAST.text(b)}" for text, (a, b) in pairs.items())
        yield Claim(claim, published, said, *every({text: judge(a, b, paired=True) for text, (a, b) in pairs.items()}))


def by_method(results: Results, text: str) -> dict[str, Results]:
    return {label.removeprefix(f"{text}, "): one for label, one in results.items() if label.startswith(f"{text}, ")}


def tables(results: Results, config: Config) -> list[Table]:
    rows = []
    for method in methods(config, "Penn Treebank"):
        cells = [LEAST.cell(results[f"{text}, {method}"]) for text in TEXTS]
        published = PUBLISHED.get(method, ("", ""))
        rows.append([method, cells[0], published[0], cells[1], published[1]])
    head = ["method", "Penn Treebank", "thesis", "WikiText-2", "thesis"]
    words = f"{config.words:,} words" if config.words else "all words"
    trained = f"{config.epochs} epochs of {config.tokens:,} tokens with {words}"
    return [Table(head, rows, f"Least validation loss in {trained}; {config.runs} runs")]


def draw(results: Results, config: Config) -> Figures:
    figure, panels = subplots(1, 2, figsize=(9, 3.6))
    for panel, text in zip(panels, TEXTS, strict=True):
        draw_curves(panel, by_method(results, text), "validation", "epochs", band="")
        draw_curves(panel, by_method(results, text), "loss", "epochs", band="", lw=0.8, ls=":")
        panel.set(title=text, xlabel="epochs")
    lines = panels[0].get_lines()
    panels[0].set_ylabel("loss: validation, and of a batch (dotted)")
    panels[0].legend(handles=lines[: len(lines) // 2])
    return {"language": figure}
