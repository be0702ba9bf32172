"""The local learning coefficient: how much volume the loss leaves around a trained point."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tether.engine.advice import warn
from tether.ensemble.losses import checked_loss
from tether.ensemble.replicas import Replicas
from tether.loop.minibatches import Minibatches, whole_number
from tether.loop.train import train
from tether.measure.autocorrelation import autocorrelation_time
from tether.measure.batches import batches
from tether.measure.each import each
from tether.measure.localised import Chains, Excess, Near
from tether.measure.series import split_rhat
from tether.measure.untouched import untouched
from tether.optimizer import Optimizer
from tether.surfaces import Surface

__all__ = ["LearningCoefficient", "llc"]

APART = 1.1  # R-hat above which chains do not agree
OFF = 0.1  # how far the temperature of the parameters may be from τ, as a share of it
Method = Callable[..., torch.optim.Optimizer]


@dataclass(frozen=True)
class LearningCoefficient:
    """λ̂ = nβ (⟨L⟩ − L(w*)) and what tells whether to believe it."""

    value: float
    error: float  # standard error: by the autocorrelation of the chains or by their means, the larger of the two
    rhat: float  # split R-hat of the losses: 1 where the chains agree
    temperature: float  # ⟨(w − w*)·∇U⟩/d over τ: more than 1: lr too large; less: chains too short; nan on surfaces
    temperature_error: float
    draws: torch.Tensor  # nβ (L − L(w*)), chains × draws
    start: float  # L(w*)
    points: int  # n
    parameters: int  # d, of those that move
    inverse: float  # nβ, which is 1/τ
    localisation: float  # γ

    def __str__(self) -> str:
        chains, draws = self.draws.shape
        heat = f", temperature {self.temperature:.3f} ± {self.temperature_error:.3f} τ"
        heat = "" if math.isnan(self.temperature) else heat
        return (
            f"λ̂ = {self.value:.4g} ± {self.error:.2g} of {self.parameters} parameters ({chains} chains of {draws} "
            f"draws, R-hat {self.rhat:.3f}{heat})"
        )

    def plot(self, ax: Any = None) -> Any:
        """λ̂ of each chain as a function of the number of draws, and the value with two standard errors."""
        import matplotlib.pyplot as plt

        ax = plt.subplots(layout="constrained")[1] if ax is None else ax
        count = torch.arange(1, self.draws.shape[1] + 1)
        for chain in self.draws.cumsum(1) / count:
            ax.plot(count, chain, color="C0", alpha=0.4, linewidth=1)
        ax.axhline(self.value, color="black", linewidth=1)
        ax.axhspan(self.value - 2 * self.error, self.value + 2 * self.error, color="black", alpha=0.12, linewidth=0)
        ax.set(xlabel="draws of a chain", ylabel="local learning coefficient", xlim=(1, len(count)))
        return ax


@each(file="checkpoint")
def llc(
    model: nn.Module,
    /,
    data: Any,
    loss: Any = functional.cross_entropy,
    *,
    lr: float,
    chains: int = 4,
    draws: int = 200,
    thin: int = 10,
    burn_in: int | None = None,
    batch: int | None = None,
    localisation: float = 1.0,
    inverse: float | None = None,
    method: Method = Optimizer,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    **settings: Any,
) -> LearningCoefficient:
    """The local learning coefficient λ̂ = nβ (⟨L⟩ − L(w*)) at the parameters w* of a model (Lau et al., 2025).

    ⟨·⟩ is over exp(−nβ L(w) − γ/2 |w − w*|²), with L the mean loss of n points and nβ = n/log n: all chains start at w*
    and run as `tether.Replicas`. The model is used in eval mode and not changed. If w* is a minimum whose Hessian is
    regular, λ = d/2 with d parameters; where the minima are degenerate it is smaller.

    L must be the mean negative log-likelihood: cross entropy is one, `mse_loss` of noise σ² must be divided by 2σ²,
    or `inverse` be.

    What the number depends on: γ keeps the chains in the basin of w*, but narrows it as well. A direction of curvature
    k counts nβk/(nβk + γ) halves instead of one: take γ small beside nβk of the directions that should count. A small
    γ lets flat directions spread as far as 1/√γ, where they take long and may meet another basin: compare two values
    of γ. At n points λ̂ of a singular minimum of multiplicity m is lower than λ by about (m − 1)/log(nβ).

    Warns if λ̂ is negative (w* is no minimum), if the chains do not agree, and if the parameters have another
    temperature than τ = 1/(nβ), by the virial ⟨(w − w*)·∇U⟩ = dτ, with U = L + γτ/2 |w − w*|²: above it lr is too large
    or the minibatches too small, below it the chains are too short.

    >>> x = torch.linspace(-1, 1, 200).unsqueeze(1)
    >>> net = nn.Linear(1, 1)  # y = 2x + 1, observed with σ = 1
    >>> _ = net.weight.data.fill_(2.0), net.bias.data.fill_(1.0)
    >>> half = lambda output, target: (output - target).square().mean() / 2
    >>> print(llc(net, (x, 2 * x + 1), half, lr=0.2, word="BAOAB", draws=500, localisation=0.01))
    λ̂ = 1.003 ± 0.031 of 2 parameters (4 chains of 500 draws, R-hat 1.002, temperature 1.004 ± 0.031 τ)

    Args:
        model: a trained module; of `Replicas` each one is measured. Frozen parameters stay.
        data: a pair (inputs, targets), or a loader or an iterable of such pairs, which are read once and kept.
        loss: the mean loss of a batch.
        lr: the step size h. Half of it should give the same number.
        chains: how many, in one stacked pass.
        draws: of each chain.
        thin: steps between two draws.
        burn_in: steps before the first draw, rounded up to a multiple of `thin`; None takes a quarter of the others.
        batch: points in a minibatch, for the steps and for the losses of the draws; None takes all.
        localisation: γ.
        inverse: nβ; None is n/log n.
        method: what builds the optimizer, ``method(chains, lr=, temperature=, seed=, **settings)``, e.g.
            `tether.methods.langevin`.
        seed: of noise and minibatches.
        checkpoint: a file, as in `tether.train`: a run that was killed and is called again ends with the same bits.
            Each of `Replicas` has its own: replica 3 "run-3.pt" where "run.pt" is given.
        settings: of the optimizer, e.g. ``word="BAOAB"``, ``friction=``, ``metric=``, ``parts=``; SGLD without any.
    """
    draws, thin = whole_number("draws", draws, 2), whole_number("thin", thin, 1)
    burn_in = draws * thin // 4 if burn_in is None else whole_number("burn_in", burn_in)
    burn = -(-burn_in // thin) * thin
    with untouched(model):
        pair = _pair(data)
    n, loss = len(pair[0]), checked_loss(loss)
    inverse = n / math.log(n) if inverse is None and n > 1 else inverse
    inverse, localisation = (
        _positive("inverse", inverse, 100.0),
        _positive("localisation", localisation, 1.0, zero=True),
    )
    with untouched(model):
        ens = Chains(lambda: copy.deepcopy(model), whole_number("chains", chains, 1), seed)
        near = Near(_moving(ens), localisation / inverse)
        opt = _built(method, ens, near, lr=lr, temperature=1 / inverse, seed=seed, **settings)
        reading = Excess(ens, pair, loss, Minibatches(n, batch, ens.replicas, seed + 1), near)
        record = train(
            *(ens, opt, pair, loss, burn + draws * thin, batch, thin),
            callbacks=[reading],
            seed=seed,
            checkpoint=checkpoint,
            penalty=near,
            progress=False,
        )
    alive = [i for i in range(chains) if i not in record.stopped]
    if not alive:
        raise RuntimeError(f"every chain diverged: lower lr={lr!r}, or keep the chains closer by a larger localisation")
    excess, virials = (record.metrics[name][-draws:, alive].transpose(0, 1) for name in ("excess", "virials"))
    degrees = sum(x[0].numel() for x in near.start.values())
    λ = inverse * excess
    heat, spread = _mean_and_error(virials * inverse / degrees) if _flat(opt) else (math.nan, math.nan)
    value, error = _mean_and_error(λ)
    found = LearningCoefficient(
        *(value, error, split_rhat(λ), heat, spread, λ, reading.start),
        *(n, degrees, inverse, localisation),
    )
    _warn(found)
    return found


def _positive(name: str, value: Any, example: float, zero: bool = False) -> float:
    rule = "a finite number, 0 or more" if zero else "a finite number above 0"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name}={value!r} must be {rule}, e.g. {name}={example}")
    if value < 0 or not (value or zero):
        raise ValueError(f"{name}={value!r} must be {rule}, e.g. {name}={example}")
    return float(value)


def _pair(data: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """All points as one pair of tensors."""
    kept = list(batches(data))
    for one in kept:
        if len(one.args) != 1 or one.kwargs or not all(isinstance(x, torch.Tensor) for x in (*one.args, one.targets)):
            raise TypeError("llc needs batches that are pairs (inputs, targets) of tensors")
    x, y = torch.cat([one.args[0] for one in kept]), torch.cat([one.targets for one in kept])
    if len(x) < 3:
        raise ValueError(f"{len(x)} points are too few: β = 1/log n needs 3 or more")
    return x, y


def _moving(ens: Replicas) -> Replicas:
    if not any(x.requires_grad for x in ens.parameters()):
        raise ValueError("no parameter requires a gradient, so that nothing can move: unfreeze some")
    return ens


def _built(method: Method, ens: Replicas, near: Near, **fields: Any) -> torch.optim.Optimizer:
    """The optimizer of the chains. Raises unless it samples at the temperature asked for, from w*."""
    if method is Optimizer:
        fields = {**fields, "batch_dims": 1}
    opt = method(ens, **fields)
    for group in opt.param_groups:
        if group.get("temperature") != fields["temperature"]:
            raise ValueError(
                f"method= has built a part of temperature {group.get('temperature')}, not {fields['temperature']:.4g}: "
                "let it take temperature=, as tether.methods.langevin does, and let no part set its own"
            )
    if any(bool(x.any()) for x in near.away(ens).values()):
        raise ValueError(
            "the surface of a part does not hold w*, and moved it: train on that surface, or leave out on="
        )
    return opt


def _flat(opt: torch.optim.Optimizer) -> bool:
    """Are all parts free? Across a surface w − w* does not lie along it, and its virial says nothing."""
    rows: Any = getattr(opt, "rows", ())
    return not any(isinstance(row.surface, Surface) for row in rows)


def _mean_and_error(series: torch.Tensor) -> tuple[float, float]:
    """The mean of chains × draws and its standard error, the larger of two: by autocorrelation and between chains."""
    chains, count = len(series), series.numel()
    if not series.std() > 0:
        return float(series.mean()), 0.0
    time = max(autocorrelation_time(series).time, 0.0)
    along = float(series.std()) * math.sqrt(time / count)
    between = float(series.mean(1).std()) / math.sqrt(chains) if chains > 1 else 0.0
    return float(series.mean()), max(along, between)


def _warn(found: LearningCoefficient) -> None:
    """Warn where the number should not be believed."""
    if found.value < 0:
        warn(
            f"λ̂ = {found.value:.3g} is negative: the chains found lower losses than L(w*) = {found.start:.4g}, so w* "
            "is no minimum; train longer, or keep the chains closer by a larger localisation"
        )
    if found.rhat > APART:
        warn(f"R-hat is {found.rhat:.3f}, so the chains do not agree yet: take more draws, or a longer burn_in")
    off = found.temperature - 1
    if abs(off) > OFF + 3 * found.temperature_error:
        cure = (
            "lower lr, or take a larger batch" if off > 0 else "take more draws and burn_in, or a larger localisation"
        )
        warn(f"the parameters have {found.temperature:.3f} of the temperature τ = {1 / found.inverse:.3g}: {cure}")
