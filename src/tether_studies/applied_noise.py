"""Figure 3.16: noise of one's own, beside that of the minibatches, makes AdLaLa find good minima.

100 ReLU nodes on the four-turn spiral, 1000 points, 20 at a time; h = 0.1, ε = 0.1, γ₂ = 0.03, τ₂ = 1e-8, 50,000 steps.
Every cell of the heat map has its own temperature τ₁ and applied noise σ_A of the first layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from tether_studies.drawing import subplots
from tether_studies.judges import HELD, every, less, more, near, plus_minus, yes
from tether_studies.lab import Lab
from tether_studies.planar import Task, each, learn
from tether_studies.recipes import recipe
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "fig-3.16",
    "applied noise helps AdLaLa find good minima",
    "thesis, Figure 3.16",
    notes="The figure averages ten runs. Its start is not given: all weights are 0 here, as section 3.7 says they "
    "often were, a start that only noise can leave. From another (--set start=0.01) AdLaLa learns a little without it.",
)
NOISES = (0.0, 1e-4, 1e-3, 5e-3, 1e-2, 2e-2, 4e-2, 1e-1)
GOOD = NOISES.index(4e-2)
FEW, MANY = (1e-8, 1e-2), (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


@dataclass(frozen=True)
class Config:
    temperatures: tuple[float, ...] = at((1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2), quick=FEW, full=MANY)
    nodes: int = at(100, quick=20)
    steps: int = at(50_000, quick=150)
    runs: int = at(3, quick=2, full=10)
    start: float = 0.0  # standard deviation of the first weights


def run(config: Config, lab: Lab) -> Results:
    """A row of the map is a piece: all noises at one temperature."""
    return lab.pieces({f"temperature {τ:.0e}": partial(row, config, lab, τ) for τ in config.temperatures})


def row(config: Config, lab: Lab, τ: float) -> Results:
    task = Task("spiral", {"turns": 4.0}, config.nodes, spread=config.start)
    noise = each(NOISES, config.runs)
    made = recipe("adlala", lr=0.1, friction=0.03, coupling=0.1, output_temperature=1e-8, temperature=τ, noise=noise)
    place, seed = lab.checkpoint(f"temperature {τ:.0e}"), lab.named_seed("runs")
    return learn(task, made, config.steps, config.runs, seed, cells=len(NOISES), records=5, checkpoint=place)


def grid(results: Results) -> np.ndarray:
    """Temperature × noise × runs: test accuracies in the end."""
    return np.stack([found["accuracy"][-1] for found in results.values()])


def claims(results: Results, config: Config) -> Claims:
    found = grid(results)
    cold = [i for i, τ in enumerate(config.temperatures) if τ <= 1e-4]
    none, good = found[cold, 0].ravel(), found[cold, GOOD].ravel()
    yield Claim(
        "without applied noise the result is no better than chance",
        "σ_A = 0 or below 1e-3: no better than random",
        f"{plus_minus(none)} % at σ_A = 0 (τ₁ ≤ 1e-4), {plus_minus(found[cold, 1].ravel())} % at {NOISES[1]:.0e}",
        *near(none, 50.0, within=10.0),
    )
    yield Claim(
        "with σ_A = 0.04 the accuracy is near 100 %",
        "near 100 %",
        f"{plus_minus(good)} % (τ₁ ≤ 1e-4)",
        *near(good, 100.0, within=5.0),
    )
    helps = [noise for j, noise in enumerate(NOISES) if more(found[cold, j].ravel(), none)[0] == HELD]
    decades = np.log10(max(helps) / min(helps)) if helps else 0.0
    yield Claim(
        "noise improves the classifier over at least an order of magnitude of σ_A",
        "at least an order of magnitude",
        f"better than without for σ_A in {', '.join(f'{x:g}' for x in helps) or 'nothing tried'}",
        *yes(decades >= 1, f"each by more than two standard errors, over {none.size} runs"),
    )
    means = found[cold, GOOD].mean(1)
    yield Claim(
        "provided it is small, the temperature τ₁ hardly matters",
        "relatively agnostic",
        f"σ_A = 0.04: {means.min():.1f} to {means.max():.1f} % for τ₁ ≤ 1e-4",
        *every({f"{config.temperatures[i]:.0e}": near(found[i, GOOD], good, within=5.0) for i in cold}),
    )
    yield Claim(
        "too large a temperature gives poor accuracy",
        "poor, in words",
        f"σ_A = 0.04, τ₁ = {config.temperatures[-1]:g}: {plus_minus(found[-1, GOOD])} %",
        *less(found[-1, GOOD], good),
    )


def tables(results: Results, config: Config) -> list[Table]:
    rows = [[f"{τ:.0e}", *map(plus_minus, x)] for τ, x in zip(config.temperatures, grid(results), strict=True)]
    head = ["τ₁", *(f"σ_A = {noise:g}" for noise in NOISES)]
    return [Table(head, rows, f"Test accuracy in per cent; {config.runs} runs of {config.steps:,} steps")]


def draw(results: Results, config: Config) -> Figures:
    means = grid(results).mean(2)
    figure, axis = subplots(figsize=(6.4, 4.8))
    image = axis.imshow(means, cmap="viridis", origin="lower", aspect="auto", vmin=50, vmax=100)
    axis.set_xticks(range(len(NOISES)), [f"{noise:g}" for noise in NOISES])
    axis.set_yticks(range(len(config.temperatures)), [f"{τ:.0e}" for τ in config.temperatures])
    axis.set(xlabel="applied noise σ_A", ylabel="temperature τ₁")
    axis.set_title("AdLaLa, 100 nodes, four-turn spiral (Figure 3.16)", fontsize=11)
    for (i, j), value in np.ndenumerate(means):
        axis.text(j, i, f"{value:.0f}", ha="center", va="center", color="w" if value < 80 else "k")
    figure.colorbar(image, label="test accuracy %")
    return {"noise": figure}
