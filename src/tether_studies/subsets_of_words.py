"""Figure 5.8: random subsets of the weights asleep, against dropout, in a small transformer on Penn Treebank.

The transformer of table-4.2: two encoder layers with two heads and 200 feed-forward nodes. Random subset (5.5.1): a
share of the weights of the encoder is 0 for k steps, then woken and moved with h·k. Beside it SGD without dropout, and
with it. Of several rates of dropout, and of several shares asleep, the one with the least validation loss counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

import tether
from tether_studies.drawing import subplots
from tether_studies.judges import less
from tether_studies.lab import Lab
from tether_studies.language import LEAST, Rows, Transformer, mean_loss, read, tested
from tether_studies.quantities import at_end, tabulated
from tether_studies.recipes import recipe
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "fig-5.8",
    "random subsets of the weights asleep regularize a transformer better than dropout",
    "thesis, Figure 5.8",
    data=("ptb",),
    notes="By default little text and few words, so that SGD overfits within minutes. The thesis gives neither k, the "
    "share asleep, the rate of dropout nor the width of the embedding. Dropout is that of the embedding too.",
)
SGD, DROPOUT, OURS = "SGD", "dropout", "random subset"
MATRICES = "layers.*linear?.weight|layers.*proj*weight"


@dataclass(frozen=True)
class Config:
    runs: int = at(3, quick=2, full=10)
    epochs: int = at(30, quick=3, full=200)
    tokens: int = at(10_000, quick=3000, full=3_000_000)  # to train on
    validation: int = at(5000, quick=700, full=300_000)
    words: int | None = at(1000, quick=100, full=None)  # the most common; the others are unknown
    width: int = at(64, quick=8, full=200)  # of the embedding
    rows: int = at(20, full=128)  # of text that are read at once
    length: int = 35  # how many words of a row
    lr: float = 0.1
    momentum: float = 0.9
    dropouts: tuple[float, ...] = at((0.1, 0.3), full=(0.1, 0.2, 0.3, 0.5))
    shares: tuple[float, ...] = at((0.1, 0.3), full=(0.1, 0.2, 0.3, 0.5))  # asleep
    k: int = 5

    @property
    def methods(self) -> dict[str, tuple[float, float]]:
        """Rates of dropout and shares asleep."""
        dropped = {f"{DROPOUT} {rate:g}": (rate, 0.0) for rate in self.dropouts}
        return {SGD: (0.0, 0.0), **dropped, **{f"{OURS} {share:g}": (0.0, share) for share in self.shares}}


def run(config: Config, lab: Lab) -> Results:
    """Run i of every method has the same start."""
    return lab.runs(config.methods, config.runs, lambda name, seed: piece(*config.methods[name], config, seed))


def piece(dropout: float, share: float, config: Config, seed: int) -> Results:
    """Validation losses on the way, those of random subsets with all weights awake."""
    (numbers, words), (valid, _) = (read("Penn Treebank", split, config.words) for split in ("train", "valid"))
    data = Rows(numbers[: config.tokens], config.rows, config.length)
    held_out = Rows(valid[: config.validation], 20, config.length)
    torch.manual_seed(seed)
    net = Transformer(len(words), config.width, config.length, dropout=dropout)
    made = partial(recipe, "random_subset", k=config.k, probabilities={MATRICES: share})
    opt = (made if share else partial(recipe, "SGD"))(lr=config.lr, momentum=config.momentum)(net, seed)
    cycle = config.k + 1
    steps = config.epochs * len(data) // cycle * cycle - 1  # all are awake before the last step of a cycle
    often = max(1, steps // 15 // cycle) * cycle
    marks: list[int] = []

    def look(step: int, model: nn.Module, opt: torch.optim.Optimizer) -> dict[str, float]:
        if (step + 1) % often:
            return {}
        marks.append(step)
        return {"validation": tested(net, held_out)}

    record = tether.train(net, opt, data, mean_loss, steps, log_every=1, callbacks=[look])
    return {"steps": marks, "validation": record.metrics["validation"], "loss": record.losses[[i - 1 for i in marks]]}


def best(found: Results, kind: str) -> str:
    """The setting of this kind with the least mean."""
    return min((name for name in found if name.startswith(kind)), key=lambda name: found[name].mean())


def claims(results: Results, config: Config) -> Claims:
    found = LEAST.of(results)
    ours = best(found, OURS)
    texts = ("random subsets reach a lower validation loss than SGD", "and than SGD with tuned dropout")
    for kind, text in zip((SGD, DROPOUT), texts, strict=True):
        other = best(found, kind)
        measured = f"{LEAST.text(found[ours])} ({ours}) against {LEAST.text(found[other])} ({other})"
        yield Claim(text, "Figure 5.8: lower", measured, *less(found[ours], found[other], paired=True))


def tables(results: Results, config: Config) -> list[Table]:
    caption = f"{config.tokens:,} tokens, {config.epochs} epochs, k = {config.k}; {config.runs} runs"
    return [tabulated("method", results, [LEAST, at_end("validation", "at the end", 3)], caption)]


def draw(results: Results, config: Config) -> Figures:
    figure, axis = subplots(figsize=(6, 4.2))
    for name, one in results.items():
        style = "-" if name.startswith(OURS) else "--" if name.startswith(DROPOUT) else ":"
        axis.plot(one["steps"][:, 0], one["validation"].mean(1), style, label=name)
    low = min(one["validation"].min() for one in results.values())
    axis.set(xlabel="step", ylabel="validation loss", title="a transformer on Penn Treebank")
    axis.set_ylim(low - 0.05, low + 0.8)
    axis.legend()
    return {"subsets_of_words": figure}
