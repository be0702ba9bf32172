"""Figure 6.17: wide layers take the barriers out of deep perceptrons on the spiral.

Six hidden layers of ReLU nodes, trained by Adam as in Figure 6.1A: all narrow, all wide, and wide where the narrow
network's layers meet barriers (1 to 4) with the last ones narrower still.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import tether
from tether.measure import layer_paths, linear_path
from tether_studies.drawing import subplots
from tether_studies.judges import every, less, more, near, yes
from tether_studies.lab import Lab
from tether_studies.lines import counted, draw_lines, packed
from tether_studies.straight_lines import perceptron, spirals
from tether_studies.study import Claim, Results, Study, Table, at

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
    return lab.pieces(
        {name: partial(lines_of, widths, config, seed, lab.checkpoint(name)) for name, widths in config.widths.items()}
    )


def lines_of(widths: tuple[int, ...], config: Config, seed: int, checkpoint: Any) -> Results:
    """Train some replicas and go back along the lines."""
    data, test = spirals(config.train, seed), spirals(config.test, seed + 1)
    nets = tether.Replicas(lambda: perceptron(2, *widths, 1), config.runs, seed=seed)
    start = copy.deepcopy(nets.state_dict())
    opt = torch.optim.Adam(nets.parameters(), lr=config.lr)
    options: dict[str, Any] = {"seed": seed, "checkpoint": checkpoint, "progress": False}
    tether.train(nets, opt, data, bce, config.steps, config.batch, **options)
    end = nets.state_dict()
    results = packed("net", linear_path(nets, start, end, test, config.points, loss=bce))
    by_layer = layer_paths(nets, start, end, test, config.points, loss=bce)
    for layer in LAYERS:
        results |= packed(f"layer {layer}", [paths[layer] for paths in by_layer])
    return results


def claims(results: Results, config: Config) -> list[Claim]:
    early = {layer: results["narrow"][f"layer {layer}: shapes"] for layer in LAYERS[:EARLY]}
    late = {layer: results["narrow"][f"layer {layer}: shapes"] for layer in LAYERS[EARLY:]}
    share = {name: fraction(shapes) for name, shapes in (("early", early), ("late", late))}
    barriers = {name: found["net: barriers"] for name, found in results.items()}
    shapes = {name: found["net: shapes"] for name, found in results.items()}
    accuracies = {name: found["net: accuracies"].mean() for name, found in results.items()}
    widths = {name: "-".join(map(str, nodes)) for name, nodes in config.widths.items()}
    return [
        Claim(
            "all three networks learn the spiral",
            "100 % test accuracy",
            ", ".join(f"{name}: {x:.1f} %" for name, x in accuracies.items()),
            *every({name: near(results[name]["net: accuracies"], 100, 0.5) for name in results}),
        ),
        Claim(
            "early layers meet barriers, later ones fall monotonically",
            "Figure 6.17, left: barriers in layers 1 to 4, none in layers 5 to 8",
            f"barriers on {100 * share['early'].mean():.0f} % of the lines of layers 1 to 4 and "
            f"{100 * share['late'].mean():.0f} % of later ones ({widths['narrow']})",
            *more(share["early"], share["late"], paired=True),
        ),
        Claim(
            "the narrow network as a whole meets a barrier",
            "Figure 6.17, left: a barrier for 50 nodes",
            counted(shapes["narrow"]),
            *yes(bool((shapes["narrow"] == "barrier").mean() > 0.5), f"more than half of {config.runs} runs"),
        ),
        Claim(
            "more nodes in all layers remove it",
            "Figure 6.17, middle: none for 500 nodes",
            f"{counted(shapes['wide'])}: {barriers['wide'].mean():.2f} high, {barriers['narrow'].mean():.2f} in the "
            f"narrow one ({widths['wide']})",
            *every({
                "lower": less(barriers["wide"], barriers["narrow"]),
                "gone": yes(not (shapes["wide"] == "barrier").any(), counted(shapes["wide"])),
            }),
        ),
        Claim(
            "and so do more nodes where barriers are, with fewer elsewhere",
            "Figure 6.17, right: none for 500-500-500-500-25-25",
            f"{counted(shapes['wide, then narrow'])}: {barriers['wide, then narrow'].mean():.2f} high "
            f"({widths['wide, then narrow']})",
            *every({
                "lower": less(barriers["wide, then narrow"], barriers["narrow"]),
                "gone": yes(
                    not (shapes["wide, then narrow"] == "barrier").any(), counted(shapes["wide, then narrow"])
                ),
            }),
        ),
    ]  # fmt: skip


def fraction(shapes: dict[str, Any]) -> Any:
    """Of each run: on how many of these layers' lines there is a barrier."""
    return sum((one == "barrier").astype(float) for one in shapes.values()) / len(shapes)


def tables(results: Results, config: Config) -> list[Table]:
    rows = []
    for name, found in results.items():
        for line in ("net", *(f"layer {layer}" for layer in LAYERS)):
            losses, number = found[f"{line}: losses"], line
            if line != "net":
                number = f"layer {int(line.split()[1]) // 2 + 1}"
            height = f"{found[f'{line}: barriers'].mean():.3g}"
            rows.append((name, number, counted(found[f"{line}: shapes"]), height, f"{losses[:, 0].mean():.3g}"))
    return [Table(("network", "line", "shapes", "barrier", "loss at the start"), rows, "Means over the runs")]


def draw(results: Results, config: Config) -> dict[str, Any]:
    figure, panels = subplots(1, 3, figsize=(11, 3.8), sharey=True)
    from matplotlib import colormaps

    shades = colormaps["viridis"]
    for axis, (name, widths) in zip(panels, config.widths.items(), strict=True):
        for i, layer in enumerate(LAYERS):
            losses = results[name][f"layer {layer}: losses"]
            draw_lines(axis, losses, shades(i / len(LAYERS)), f"layer {i + 1}", mean=True, lw=1)
        draw_lines(axis, results[name]["net: losses"], "#1f5fa8", "whole network", mean=True, ls=":", lw=2.5)
        axis.set(title="-".join(map(str, widths)), ylabel="test loss" if axis is panels[0] else "")
        axis.set_yscale("symlog", linthresh=1.0)
        axis.set_ylim(0, None)
    panels[0].legend(frameon=False, fontsize=7, ncols=2)
    return {"widths": figure}
