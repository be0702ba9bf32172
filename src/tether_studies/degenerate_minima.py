"""Minima of networks with more weights than points are degenerate, and weight decay can mend that (GD-dynamics slides).

Networks without biases and with ten times as many weights as points are brought to a minimum of the square loss by
L-BFGS. There the errors vanish and the Hessian is Σ ∇f ∇fᵀ: as many positive eigenvalues as points, the others 0. At
the start, where errors remain, it has more. A minimum with ½λ|w|² is one of another loss, whose Hessian has λI added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss

from tether.measure import hessian_spectrum
from tether_studies.drawing import subplots
from tether_studies.judges import less, yes
from tether_studies.lab import Lab
from tether_studies.study import Claim, Claims, Figures, Results, Study, Table, at

STUDY = Study(
    "degeneracy",
    "minima of overparametrized networks are degenerate; weight decay can make them hyperbolic",
    "GD-dynamics slides, square loss, deep networks",
    notes="The slides have no numbers of an experiment. Starts are torch's own; λ is added to the mean of the squares.",
)
ACTIVATIONS = {"ReLU": nn.ReLU, "tanh": nn.Tanh}
KINDS = ("start", "minimum", "minimum, + λI", "minimum with decay", "minimum with decay, + λI")
ZERO = 1e-6  # of the largest eigenvalue
STILL = 1e-6  # |∇| where a minimum is


@dataclass(frozen=True)
class Config:
    runs: int = at(10, quick=2, full=50)
    points: int = at(12, quick=6, full=30)
    features: int = 5
    hidden: int = at(20, quick=10, full=100)
    steps: int = at(10_000, quick=400)  # of L-BFGS, at most
    decay: float = 1e-2


def run(config: Config, lab: Lab) -> Results:
    """Spectra at starts and minima, for smooth networks and for ReLU networks; run i of both has the same points."""
    seeds = {i: lab.named_seed(f"run {i}") for i in range(config.runs)}
    work = {f"{name}, {i}": partial(spectra, config, name, seeds[i]) for name in ACTIVATIONS for i in seeds}
    return lab.pieces(work)


def spectra(config: Config, activation: str, seed: int) -> Results:
    """Counts of negative, zero and positive eigenvalues and the extreme ones, a row for each of KINDS."""
    torch.manual_seed(seed)
    data = torch.randn(config.points, config.features).double(), torch.randn(config.points, 1).double()
    net = nn.Sequential(
        nn.Linear(config.features, config.hidden, bias=False),
        ACTIVATIONS[activation](),
        nn.Linear(config.hidden, 1, bias=False),
    ).double()
    first = {name: x.clone() for name, x in net.state_dict().items()}
    begun = hessian_spectrum(net, data, mse_loss, zero=ZERO)
    slopes = [descend(net, data, 0.0, config.steps)]
    free = hessian_spectrum(net, data, mse_loss, zero=ZERO)
    net.load_state_dict(first)
    slopes.append(descend(net, data, config.decay, config.steps))
    held = hessian_spectrum(net, data, mse_loss, zero=ZERO)
    found = (begun, free, free.regularized(config.decay), held, held.regularized(config.decay))
    return {
        "counts": [(one.negative, one.zero, one.positive) for one in found],
        "eigenvalues": torch.stack([one.eigenvalues for one in found]),
        "slopes": slopes,
        "losses": [free.loss, held.loss],
        "cutoffs": [one.cutoff for one in found],
    }


def descend(net: nn.Module, data: tuple[torch.Tensor, torch.Tensor], decay: float, steps: int) -> float:
    """Bring a network to a minimum of the square loss with weight decay; returns |∇| there."""
    x, y = data
    parameters = list(net.parameters())
    opt = torch.optim.LBFGS(parameters, 1, steps, 4 * steps, 1e-14, 1e-30, 100, "strong_wolfe")

    def closure() -> torch.Tensor:
        opt.zero_grad()
        total = mse_loss(net(x), y) + 0.5 * decay * sum(p.square().sum() for p in parameters)
        total.backward()
        return total

    opt.step(closure)
    closure()
    return math.hypot(*[float(p.grad.norm()) for p in parameters if p.grad is not None])


def claims(results: Results, config: Config) -> Claims:
    parameters = config.hidden * (config.features + 1)
    found = {name: stacked(results, name, config) for name in ACTIVATIONS}
    at = {kind: i for i, kind in enumerate(KINDS)}
    smooth, kinked = found["tanh"], found["ReLU"]
    zeros = {name: one["counts"][:, at["minimum"], 1] for name, one in found.items()}
    positive = np.concatenate([one["counts"][:, at["minimum"], 2] for one in found.values()])
    worst = max(one["losses"][:, 0].max() for one in found.values())
    begun = smooth["counts"][:, at["start"], 1]
    firm = smooth["counts"][:, at["minimum with decay, + λI"], 2] == parameters
    arrived = smooth["slopes"][:, 1] < STILL
    lifted = np.concatenate([one["counts"][:, at["minimum, + λI"], 2] for one in found.values()])
    kinks = kinked["slopes"][:, 1]
    yield Claim(
        "the Hessian of an overparametrized network has zero eigenvalues at a minimum",
        "at least one zero eigenvalue (Theorem 4)",
        f"of {parameters} eigenvalues {span(zeros['ReLU'])} are 0 with ReLU and {span(zeros['tanh'])} with tanh",
        *yes(
            bool(min(x.min() for x in zeros.values()) >= 1 and worst < 1e-10),
            f"{config.runs} networks of each kind at minima with losses up to {worst:.0e}",
        ),
    )
    yield Claim(
        "where the points are fitted only directions in the span of their ∂f/∂W are curved",
        f"if N < number of weights there is degeneracy: here N = {config.points}",
        f"{span(positive)} positive eigenvalues",
        *yes(bool((positive == config.points).all()), f"{2 * config.runs} minima; 0 is {ZERO:g} of the largest"),
    )
    yield Claim(
        "directions that are degenerate near a minimum are not during descent",
        "the degenerate directions near a minimum will not be degenerate during GD",
        f"{span(begun)} zero eigenvalues at the start, {span(zeros['tanh'])} at the minimum (tanh)",
        *less(begun, zeros["tanh"], paired=True),
    )
    yield Claim(
        "λI makes the Hessian at such a minimum positive definite",
        "H + λI can be positive definite",
        f"{span(lifted)} of {parameters} eigenvalues positive, λ = {config.decay:g}",
        *yes(bool((lifted == parameters).all()), f"{2 * config.runs} minima of the loss without λ"),
    )
    yield Claim(
        "the minimum with weight decay is hyperbolic, if the network is smooth",
        "regularization can transform a degenerate Hessian at a minimum into a hyperbolic one",
        f"positive definite in {int(firm[arrived].sum())} of {int(arrived.sum())} tanh networks that arrived",
        *yes(
            bool(firm[arrived].all() and arrived.mean() > 0.5),
            f"|∇| < {STILL:g} there; {int((~arrived).sum())} of {config.runs} were still on their way after "
            f"{config.steps:,} steps",
        ),
    )
    yield Claim(
        "and so it is if its units are ReLUs",
        "the same, for deep networks with ReLUs",
        f"|∇| does not vanish in {int((kinks > STILL).sum())} of {config.runs}: {np.median(kinks):.0e} (median)",
        *yes(
            bool((kinks < STILL).all()),
            "a point where a unit switches pulls the weights to its kink, where there is no Hessian",
        ),
    )


def stacked(results: Results, name: str, config: Config) -> dict[str, np.ndarray]:
    """What all runs of an activation found, run by run."""
    runs = [results[f"{name}, {i}"] for i in range(config.runs)]
    return {key: np.stack([one[key] for one in runs]) for key in runs[0]}


def span(counts: np.ndarray) -> str:
    """The least and the most."""
    low, high = int(counts.min()), int(counts.max())
    return str(low) if low == high else f"{low} to {high}"


def tables(results: Results, config: Config) -> list[Table]:
    rows = []
    for name in ACTIVATIONS:
        counts = stacked(results, name, config)["counts"].mean(0)
        rows += [(name, kind, *(f"{x:.1f}" for x in counts[i])) for i, kind in enumerate(KINDS)]
    return [Table(("units", "where", "negative", "zero", "positive"), rows, "Hessian, means over the runs")]


def draw(results: Results, config: Config) -> Figures:
    figure, panels = subplots(1, 2, figsize=(9, 4), sharey=True)
    marks = {"start": ("0.6", 2), "minimum": ("#1f5fa8", 6), "minimum, + λI": ("#c2452d", 4)}
    marks["minimum with decay, + λI"] = ("#3a8f4d", 2)
    for axis, name in zip(panels, ACTIVATIONS, strict=True):
        first = results[f"{name}, 0"]
        for kind, (colour, size) in marks.items():
            values = first["eigenvalues"][KINDS.index(kind)][::-1]
            ranks = range(1, len(values) + 1)
            axis.plot(ranks, values, "o", ms=size, mew=0, color=colour, label=kind)
        cutoff = first["cutoffs"][KINDS.index("minimum")]
        axis.axhspan(-cutoff, cutoff, color="0.9", zorder=0)
        axis.axvline(config.points + 0.5, color="0.7", lw=0.8, zorder=0)
        axis.set_yscale("symlog", linthresh=1e-6)
        axis.set(title=f"{name} units, {config.points} points", xlabel="rank", ylabel="eigenvalue of the Hessian")
    panels[0].legend()
    return {"degeneracy": figure}
