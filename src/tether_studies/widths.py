"""Figure 6.17: wide layers take the barriers out of deep perceptrons on the spiral.

Six hidden layers of ReLU nodes, trained by Adam as in Figure 6.1A: all narrow, all wide, and wide where the narrow
network's layers meet barriers (1 to 4) with the last ones narrower still.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import tether
from tether.measure import linear_path
from tether_studies.digits import perceptron
from tether_studies.drawing import subplots
from tether_studies.judges import every, less, more, near, yes
from tether_studies.lab import Lab
from tether_studies.lines import by_layer, counted, draw_lines, packed, spirals, state_of
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "fig-6.17",
    "wide layers remove the barriers of deep perceptrons on the spiral",
    "thesis, Figure 6.17",
    notes="The thesis's wide layers have 500 nodes, its batches 500 points; it does not say how long it trains. A "
    "barrier is a rise of more than 2 % of the largest loss on the line.",
)
EARLY, HIDDEN = 4, 6
LAYERS = tuple(str(2 * i) for i in range(HIDDEN + 1))


@dataclass(frozen=True)
class Config:
    runs: int = at(5, quick=2, full=10)
    narrow: int = at(50, quick=20)
    wide: int = at(150, quick=40, full=500)
    last: int = at(25, quick=10)  # nodes of the last hidden layers of the third network
    steps: int = at(8000, quick=100, full=20_000)
    train: int = at(10_000, quick=1000)
    test: int = at(2000, quick=300, full=5000)
    batch: int = at(100, full=500)
    lr: float = 5e-4
    points: int = at(26, quick=11, full=51)

    @property
    def widths(self) -> dict[str, tuple[int, ...]]:
        """The nodes of the hidden layers of the three networks."""
        return {
            "narrow": (self.narrow,) * HIDDEN,
            "wide": (self.wide,) * HIDDEN,
            "wide, then narrow": (self.wide,) * EARLY + (self.last,) * (HIDDEN - EARLY),
        }


def run(config: Config, lab: Lab) -> Results:
    """Lines of the whole network and of each layer; run i of the three networks sees the same minibatches."""
    seed = lab.named_seed("data")
    return lab.pieces({name: partial(lines_of, name, config, seed, lab.checkpoint(name)) for name in config.widths})


def lines_of(name: str, config: Config, seed: int, checkpoint: Any) -> Results:
    """Train some replicas and go back along the lines."""
    data, test = spirals(config.train, seed), spirals(config.test, seed + 1)
    nets = tether.Replicas(lambda: perceptron(2, *config.widths[name], 1), config.runs, seed=seed)
    start = state_of(nets)
    opt = torch.optim.Adam(nets.parameters(), lr=config.lr)
    options: dict[str, Any] = {"seed": seed, "checkpoint": checkpoint, "progress": False}
    tether.train(nets, opt, data, bce, config.steps, config.batch, **options)
    end = nets.state_dict()
    whole = packed("net", linear_path(nets, start, end, test, config.points, loss=bce))
    return whole | by_layer(nets, start, end, test, config.points, bce)


def claims(results: Results, config: Config) -> Claims:
    barriers, shapes, accuracies = (
        {name: found[f"net: {key}"] for name, found in results.items()} for key in ("barriers", "shapes", "accuracies")
    )
    widths = {name: "-".join(map(str, nodes)) for name, nodes in config.widths.items()}
    yield Claim(
        "all three networks learn the spiral",
        "100 % test accuracy",
        ", ".join(f"{name}: {x.mean():.1f} %" for name, x in accuracies.items()),
        *every({name: near(x, 100, 0.5) for name, x in accuracies.items()}),
    )
    early, late = (barred(results["narrow"], layers) for layers in (LAYERS[:EARLY], LAYERS[EARLY:]))
    yield Claim(
        "early layers meet barriers, later ones fall monotonically",
        "Figure 6.17, left: barriers in layers 1 to 4, none in layers 5 to 8",
        f"barriers on {100 * early.mean():.0f} % of the lines of layers 1 to 4 and "
        f"{100 * late.mean():.0f} % of later ones ({widths['narrow']})",
        *more(early, late, paired=True),
    )
    yield Claim(
        "the narrow network as a whole meets a barrier",
        "Figure 6.17, left: a barrier for 50 nodes",
        counted(shapes["narrow"]),
        *yes(bool((shapes["narrow"] == "barrier").mean() > 0.5), f"more than half of {config.runs} runs"),
    )
    for name, text, published in (
        ("wide", "more nodes in all layers remove it", "Figure 6.17, middle: none for 500 nodes"),
        (
            "wide, then narrow",
            "and so do more nodes where barriers are, with fewer elsewhere",
            "Figure 6.17, right: none for 500-500-500-500-25-25",
        ),
    ):
        narrow = f", {barriers['narrow'].mean():.2f} in the narrow one" if name == "wide" else ""
        gone = yes(not (shapes[name] == "barrier").any(), counted(shapes[name]))
        yield Claim(
            text,
            published,
            f"{counted(shapes[name])}: {barriers[name].mean():.2f} high{narrow} ({widths[name]})",
            *every({"lower": less(barriers[name], barriers["narrow"]), "gone": gone}),
        )


def barred(found: Results, layers: tuple[str, ...]) -> Any:
    """Of each run: on how many of these layers' lines there is a barrier, as a fraction."""
    return np.mean([found[f"layer {layer}: shapes"] == "barrier" for layer in layers], axis=0)


def tables(results: Results, config: Config) -> list[Table]:
    rows = []
    lines = {"net": "net"} | {f"layer {layer}": f"layer {i + 1}" for i, layer in enumerate(LAYERS)}
    for (name, found), (line, label) in product(results.items(), lines.items()):
        losses, shapes, barriers = (found[f"{line}: {key}"] for key in ("losses", "shapes", "barriers"))
        rows.append((name, label, counted(shapes), f"{barriers.mean():.3g}", f"{losses[:, 0].mean():.3g}"))
    return [Table(("network", "line", "shapes", "barrier", "loss at the start"), rows, "Means over the runs")]


def draw(results: Results, config: Config) -> Figures:
    from matplotlib import colormaps

    figure, panels = subplots(1, 3, figsize=(11, 3.8), sharey=True)
    for axis, (name, widths) in zip(panels, config.widths.items(), strict=True):
        for i, layer in enumerate(LAYERS):
            losses, shade = results[name][f"layer {layer}: losses"], colormaps["viridis"](i / len(LAYERS))
            draw_lines(axis, losses, shade, f"layer {i + 1}", mean=True, lw=1)
        draw_lines(axis, results[name]["net: losses"], "#1f5fa8", "whole network", mean=True, ls=":", lw=2.5)
        axis.set(title="-".join(map(str, widths)), ylabel="test loss" if axis is panels[0] else "")
        axis.set_yscale("symlog", linthresh=1.0)
        axis.set_ylim(0, None)
    panels[0].legend(fontsize=7, ncols=2)
    return {"widths": figure}
