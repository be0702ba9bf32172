"""Distributions of weights and biases during training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from tether.ensemble.replicas import Replicas
from tether.loop.train import Record
from tether.measure.contour import Array
from tether.part import matches

__all__ = ["Distributions", "distributions", "histograms"]

PREFIX, EDGES = "histogram of ", "histogram edges"


@dataclass(frozen=True)
class Distributions:
    """Histograms of each tensor at every record; replicas are counted together."""

    steps: list[int]
    edges: Array
    counts: dict[str, Array]  # records × bins
    outside: dict[str, Array]  # the number of values outside the bins, at every record

    def near_zero(self, name: str, within: float) -> Array:
        """The fraction of values in the bins inside ±within, at every record."""
        inner = (self.edges[:-1] >= -within - 1e-9) & (self.edges[1:] <= within + 1e-9)
        return self.counts[name][:, inner].sum(1) / (self.counts[name].sum(1) + self.outside[name])

    def __str__(self) -> str:
        last = sum(float(x[-1]) for x in self.outside.values())
        total = last + sum(float(x[-1].sum()) for x in self.counts.values())
        return (
            f"histograms of {len(self.counts)} tensors at {len(self.steps)} times up to step {self.steps[-1]:,}, "
            f"{100 * last / total:.2g} % outside ±{max(abs(self.edges)):g} at the end"
        )

    def plot(self, ax: Any = None, name: str | None = None, steps: Sequence[int] | None = None) -> Any:
        """The distribution of one tensor, the first unless named, at a few steps, after Figures 3.6 and 3.7."""
        import matplotlib.pyplot as plt

        ax = plt.subplots(layout="constrained")[1] if ax is None else ax
        name = next(iter(self.counts)) if name is None else name
        shown = self._chosen(steps)
        shades = plt.get_cmap("viridis")(np.linspace(0.15, 0.9, len(shown)))
        for k, colour in zip(shown, shades, strict=True):
            total = self.counts[name][k].sum() + self.outside[name][k]
            density = self.counts[name][k] / (total * np.diff(self.edges))
            ax.stairs(density, self.edges, color=colour, alpha=0.45, fill=True)
            ax.stairs(density, self.edges, color=colour, linewidth=1.0, label=f"step {self.steps[k]:,}")
        ax.set(xlabel=name, ylabel="density")
        ax.legend(frameon=False)
        return ax

    def _chosen(self, steps: Sequence[int] | None) -> list[int]:
        """The rows of the given steps; by default the first, the last and some between, evenly in log(step)."""
        if steps is None:
            spread = np.geomspace(self.steps[0], self.steps[-1], 4)
            return sorted({int(np.abs(np.array(self.steps) - step).argmin()) for step in spread})
        unknown = [step for step in steps if step not in self.steps]
        if unknown:
            raise ValueError(f"step {unknown[0]} was not recorded; there are {self.steps[:5]} … {self.steps[-1]}")
        return [self.steps.index(step) for step in steps]


def histograms(
    limits: tuple[float, float] = (-3.0, 3.0), bins: int = 60, where: str = "*"
) -> Callable[[int, nn.Module, Any], dict[str, torch.Tensor]]:
    """A callback of `tether.train` that records the histogram of every parameter, for `distributions`.

    Args:
        limits: the range of the bins; values outside are counted separately.
        bins: the number of equal bins between the limits.
        where: a glob on names of parameters.
    """
    low, high = limits
    if not (np.isfinite(limits).all() and low < high):
        raise ValueError(f"limits={limits!r} must be (low, high) with low < high; e.g. (-3, 3)")
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise ValueError(f"bins={bins!r} must be an integer, 1 or more")
    edges = torch.linspace(low, high, bins + 1, dtype=torch.float64)

    @torch.no_grad()
    def record(step: int, model: nn.Module, opt: Any) -> dict[str, torch.Tensor]:
        many = len(model) if isinstance(model, Replicas) else 0
        found = {EDGES: edges}
        for name, x in model.named_parameters():
            if x.numel() and matches(name, where):
                rows = x.detach().double().cpu().reshape(max(many, 1), -1)
                # The index of the bin: 0 is below all, bins + 1 above. The last edge belongs to the last bin.
                places = torch.bucketize(rows, edges, right=True)
                places[rows == high] = bins
                places[rows.isnan()] = bins + 1
                ones = torch.ones_like(places)
                counts = torch.zeros(len(rows), bins + 2, dtype=torch.int64).scatter_add_(1, places, ones)
                found[PREFIX + name] = counts if many else counts[0]
        if len(found) == 1:
            raise ValueError(
                f"where={where!r} matches no parameter; there is e.g. {next(iter(model.named_parameters()))[0]!r}"
            )
        return found

    return record


def distributions(record: Record) -> Distributions:
    """What `histograms` recorded in a run.

    >>> from tether import methods, train
    >>> net = nn.Linear(300, 300)
    >>> opt = methods.sgld(net, lr=0.1, temperature=1.0)
    >>> harmonic = lambda net: sum(x.square().sum() / 2 for x in net.parameters())
    >>> run = train(net, opt, None, harmonic, steps=100, log_every=50, callbacks=[histograms()])
    >>> found = distributions(run)
    >>> print(found)
    histograms of 2 tensors at 2 times up to step 100, 0.33 % outside ±3 at the end
    >>> bool(abs(found.near_zero("weight", 1.0)[-1] - 0.67) < 0.01)  # a Gaussian of variance 1/(1 − h/2)
    True

    Args:
        record: of `tether.train` with ``callbacks=[histograms()]``.
    """
    if EDGES not in record.metrics:
        raise ValueError("the record holds no histograms: train(..., callbacks=[tether.measure.histograms()])")
    names = [name for name in record.metrics if name.startswith(PREFIX)]
    tables = {name.removeprefix(PREFIX): record.metrics[name] for name in names}
    tables = {name: x if x.dim() == 2 else x.sum(1) for name, x in tables.items()}
    counts = {name: x[:, 1:-1].double().numpy() for name, x in tables.items()}
    outside = {name: (x[:, 0] + x[:, -1]).double().numpy() for name, x in tables.items()}
    return Distributions(record.steps[-len(record.metrics[EDGES]) :], record.metrics[EDGES][0].numpy(), counts, outside)
