"""Figures 3.18 and 3.19: AdLaLa on two tables, chess endgames and poker hands.

Chess: two hidden layers of 500 and 200 ReLU nodes, batches of 1024. Poker: one hidden layer of 200, batches of 500.
Adam and SGD with momentum have the step sizes that the thesis found best.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn

import tether
from tether_studies.drawing import subplots
from tether_studies.judges import every, more, plus_minus
from tether_studies.lab import Lab
from tether_studies.planar import Recipe, draw_curve, optimizer
from tether_studies.study import Claim, Results, Study, Table, at

STUDY = Study(
    "fig-3.18",
    "AdLaLa on chess endgames and poker hands",
    "thesis, Figures 3.18, 3.19",
    data=("krkopt", "poker-hand"),
    notes="Neither the split, nor the scaling of the inputs, nor the number of epochs is given: a fifth of the "
    "shuffled rows to test, and columns with mean 0 and deviation 1, are ours. The poker hands are the 25,010 of the "
    "training file.",
)


CHESS: dict[str, Recipe] = {
    "Adam": ("Adam", {"lr": 0.005}),
    "SGD, momentum": ("SGD", {"lr": 0.05, "momentum": 0.95}),
    "AdLaLa": (
        "adlala",
        {
            "lr": 0.2,
            "friction": 0.1,
            "coupling": 0.01,
            "noise": 0.001,
            "temperature": 1e-5,
            "output_temperature": 1e-6,
        },
    ),
}
POKER: dict[str, Recipe] = {
    "Adam": ("Adam", {"lr": 0.005}),
    "SGD, momentum": ("SGD", {"lr": 0.005, "momentum": 0.9}),
    "AdLaLa": (
        "adlala",
        {
            "lr": 0.05,
            "friction": 5.0,
            "coupling": 0.01,
            "noise": 0.001,
            "temperature": 1e-4,
            "output_temperature": 1e-6,
        },
    ),
}
CLASSES = {"chess": 18, "poker": 10}


@dataclass(frozen=True)
class Config:
    rows: int = at(100_000, quick=1500)  # at most
    chess_nodes: tuple[int, ...] = at((500, 200), quick=(20, 10))
    chess_batch: int = at(1024, quick=200)
    chess_steps: int = at(1500, quick=20, full=10_000)
    chess_runs: int = at(3, quick=2, full=5)
    poker_nodes: tuple[int, ...] = at((200,), quick=(20,))
    poker_batch: int = at(500, quick=100)
    poker_steps: int = at(5000, quick=20, full=40_000)
    poker_runs: int = at(5, quick=2)
    records: int = at(15, quick=4)


Split = tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@lru_cache(2)
def split(game: str, rows: int, seed: int) -> Split:
    """Four fifths to train on and one to test, shuffled; every column with mean 0 and deviation 1."""
    x, y = tether.data.krkopt() if game == "chess" else tether.data.poker_hand()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:rows]
    x, y = x[order].float(), y[order]
    x = (x - x.mean(0)) / x.std(0)
    cut = len(x) * 4 // 5
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def run(config: Config, lab: Lab) -> Results:
    """Test loss and accuracy over time."""
    work: dict[str, Any] = {}
    for game, methods in (("chess", CHESS), ("poker", POKER)):
        for name in methods:
            work[f"{game}, {name}"] = partial(learn, config, lab, game, methods[name], f"{game}, {name}")
    return lab.pieces(work)


def learn(config: Config, lab: Lab, game: str, recipe: Recipe, piece: str) -> Results:
    """All runs of a method at once, each from its own start and with its own minibatches."""
    chess = game == "chess"
    steps, runs = (config.chess_steps, config.chess_runs) if chess else (config.poker_steps, config.poker_runs)
    batch, nodes = (config.chess_batch, config.chess_nodes) if chess else (config.poker_batch, config.poker_nodes)
    data, (x, y) = split(game, config.rows, lab.named_seed(f"split of {game}"))
    widths = (x.shape[1], *nodes, CLASSES[game])
    nets = tether.Replicas(lambda: network(widths), runs, seed=lab.named_seed(game))

    @torch.no_grad()
    def test(step: int, model: nn.Module, opt: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        out = nets(x, each=False)
        losses = nn.functional.cross_entropy(out.flatten(0, 1), y.repeat(runs), reduction="none").view(runs, -1)
        return {"accuracy": 100 * (out.argmax(2) == y).float().mean(1), "loss": losses.mean(1)}

    seed = lab.named_seed(f"minibatches of {game}")
    log = tether.train(
        nets,
        optimizer(recipe, nets, seed),
        data,
        steps=steps,
        batch=batch,
        log_every=max(1, steps // config.records),
        callbacks=[test],
        seed=seed,
        checkpoint=lab.checkpoint(piece),
        progress=False,
    )
    return {"epochs": torch.tensor(log.steps) * batch / len(data[0]), **log.metrics}


def network(widths: tuple[int, ...]) -> nn.Sequential:
    """Linear layers with ReLUs between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def claims(results: Results, config: Config) -> list[Claim]:
    found = []
    for game, figure in (("chess", "3.18"), ("poker", "3.19")):
        of = {name: results[f"{game}, {name}"]["accuracy"][-1] for name in CHESS}
        epochs = float(results[f"{game}, AdLaLa"]["epochs"][-1])
        found.append(
            Claim(
                f"{game}: AdLaLa has a higher test accuracy than Adam and SGD with momentum",
                f"Figure {figure}: enhanced performance may be obtained",
                f"after {epochs:.0f} epochs: " + ", ".join(f"{name} {plus_minus(x)} %" for name, x in of.items()),
                *every({f"AdLaLa > {name}": more(of["AdLaLa"], of[name]) for name in of if name != "AdLaLa"}),
            )
        )
    return found


def tables(results: Results, config: Config) -> list[Table]:
    rows = []
    for piece, found in results.items():
        best = int(found["accuracy"].mean(1).argmax())
        game, _, name = piece.partition(", ")
        when = f"{plus_minus(found['accuracy'][best])} (epoch {found['epochs'][best]:.0f})"
        rows.append([game, name, plus_minus(found["accuracy"][-1]), when, plus_minus(found["loss"][-1], 3)])
    return [Table(["", "method", "test accuracy %, end", "test accuracy %, best", "test loss, end"], rows)]


def draw(results: Results, config: Config) -> dict[str, Any]:
    figure, panels = subplots(2, 2, figsize=(8.2, 6.4), sharex="col")
    for column, (game, number) in enumerate((("chess", "3.18"), ("poker", "3.19"))):
        for name in CHESS:
            found = results[f"{game}, {name}"]
            draw_curve(panels[0, column], found["epochs"], found["accuracy"], name)
            draw_curve(panels[1, column], found["epochs"], found["loss"], name)
        panels[0, column].set(title=f"{game} (Figure {number})", ylabel="test accuracy %")
        panels[1, column].set(xlabel="epochs", ylabel="test loss")
    panels[0, 0].legend(frameon=False, fontsize=9)
    return {"endgames": figure}
