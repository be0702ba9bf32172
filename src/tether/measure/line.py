"""The loss along the straight line between two states of a network (section 6.1 of the thesis)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from tether.measure.along import CHUNK, evaluate
from tether.measure.batches import Loss
from tether.measure.each import each
from tether.measure.shape import Barrier, classify
from tether.measure.states import State, chosen, fitting, owners, statistics

__all__ = ["LinearPath", "layer_paths", "linear_path"]

TOLERANCE = 0.02
BATCHNORM = ("lerp", "end", "recalibrate")


@dataclass(frozen=True)
class LinearPath:
    """Losses along a line."""

    alphas: torch.Tensor  # positions: 0 is the start, 1 the end
    losses: torch.Tensor  # mean losses there
    accuracies: torch.Tensor | None  # accuracies there, if the targets are classes
    shape: str  # "monotone", "barrier", "plateau" or "not finite"
    barrier: Barrier  # its height, 0 if there is none; `barrier.alpha` is the position of its top
    plateau: float  # the length in α of the longest flat stretch in the upper half of the curve
    finite: bool  # False if some loss is inf or nan
    tolerance: float  # of the shape, as a fraction of the largest loss
    moving: str = "everything"  # what moves along the line; the rest stays at its end

    def __str__(self) -> str:
        ends = f"loss {self.losses[0]:.4g} → {self.losses[-1]:.4g}"
        text = f"{self.moving}, {len(self.alphas)} points: {ends}, {self.shape}"
        if self.barrier > 0:
            return f"{text} of {self.barrier:.4g} at α = {self.barrier.alpha:.3g}"
        if self.shape == "plateau":
            return f"{text} of length {self.plateau:.3g}"
        if not self.finite:
            bad = self.alphas[~self.losses.isfinite()]
            return f"{text} at {len(bad)} of them, the first at α = {bad[0]:.3g}"
        return text

    def plot(self, ax: Any = None, **line: Any) -> Any:
        """Draw the losses over α, and the top of a barrier as a dot; keywords go to matplotlib's line."""
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots()[1]
        (drawn,) = ax.plot(self.alphas, self.losses, **{"label": self.moving, **line})
        if self.barrier > 0:
            top = self.losses[self.alphas == self.barrier.alpha]
            ax.plot(self.barrier.alpha, top, "o", color=drawn.get_color(), alpha=drawn.get_alpha(), markersize=4)
        ax.set(xlabel="α (0 start, 1 end)", ylabel="loss")
        return ax


@each("start", "end")
def linear_path(
    model: nn.Module,
    start: State,
    end: State,
    data: Any,
    points: int | Sequence[float] = 51,
    *,
    loss: Loss | None = None,
    batchnorm: str = "lerp",
    calibration: Any = None,
    tolerance: float = TOLERANCE,
    chunk: int | None = CHUNK,
    fast: bool = True,
) -> LinearPath:
    """The loss along θ_α = (1 − α) θ_i + α θ_f, and whether it is monotone or has a barrier or a plateau (6.1).

    >>> net = nn.Linear(1, 1, bias=False)
    >>> start, end = {"weight": torch.tensor([[-1.0]])}, {"weight": torch.tensor([[1.0]])}
    >>> data = torch.ones(1, 1), torch.zeros(1, 1)
    >>> path = linear_path(net, start, end, data, points=5, loss=nn.functional.mse_loss)
    >>> path.losses.tolist()  # (2α − 1)²
    [1.0, 0.25, 0.0, 0.25, 1.0]
    >>> print(path)
    everything, 5 points: loss 1 → 1, barrier of 1 at α = 1

    Args:
        model: the network; its own state is not used and does not change.
        start: the state dict θ_i, buffers included.
        end: θ_f.
        data: the data of the loss; call twice for training and test loss.
        points: the number of points, evenly from 0 to 1; or the values of α, increasing.
        loss: ``loss(output, target)``, a mean over rows; other means (class weights, ignored targets) need chunk=None.
        batchnorm: the running statistics at a point: ``"lerp"`` interpolates them as parameters, ``"end"`` takes those
            of the end, ``"recalibrate"`` computes them at every point.
        calibration: the data to compute them from; None takes `data`.
        tolerance: a rise of up to this fraction of the largest loss on the line is no barrier (`shape.classify`).
        chunk: rows of a pair to take at a time.
        fast: False runs the whole network at every point; otherwise common parts of an nn.Sequential are run once.
    """
    if batchnorm not in BATCHNORM:
        raise ValueError(f"batchnorm={batchnorm!r} must be one of {', '.join(map(repr, BATCHNORM))}")
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance={tolerance!r} must be at least 0 and less than 1; e.g. tolerance={TOLERANCE}")
    first, last = fitting(model, start=start, end=end)
    if batchnorm == "end":
        first = {**first, **{name: last[name] for name in statistics(model)}}
    if isinstance(data, Iterator):
        data = list(data)
    anew = (data if calibration is None else calibration) if batchnorm == "recalibrate" else None
    alphas = _places(points)
    weights = [(1 - a, a) for a in alphas.tolist()]
    losses, accuracies = evaluate(model, [first, last], weights, data, loss, chunk=chunk, recalibrate=anew, fast=fast)
    finite = bool(losses.isfinite().all())
    return LinearPath(alphas, losses, accuracies, *classify(alphas, losses, tolerance), finite, tolerance)


@each("start", "end")  # type: ignore[arg-type]  # `options` might hold a "model"
def layer_paths(
    model: nn.Module,
    start: State,
    end: State,
    data: Any,
    points: int | Sequence[float] = 51,
    groups: str | Mapping[str, str | Sequence[str]] = "layers",
    **options: Any,
) -> dict[str, LinearPath]:
    """As `linear_path`, one layer at a time with all others at their end (6.2): a path for each, by name.

    Args:
        model: as for `linear_path`.
        start: θ_i.
        end: θ_f.
        data: where the loss is taken.
        points: how many, or the α themselves.
        groups: what moves together: ``"layers"``, the modules that hold tensors; ``"blocks"``, the children of the
            model; ``"tensors"``, every tensor by itself; ``"statistics"``, the running statistics of all BatchNorms
            alone; or names of your own with globs, e.g. ``{"third block": "layer3.*"}``.
        options: of `linear_path`.
    """
    first, last = fitting(model, start=start, end=end)
    if isinstance(data, Iterator):
        data = list(data)
    paths = {}
    for name, moving in _groups(model, groups).items():
        begin = {**last, **{key: first[key] for key in moving}}
        paths[name] = replace(linear_path(model, begin, last, data, points, **options), moving=name)
    return paths


def _places(points: int | Sequence[float]) -> torch.Tensor:
    if isinstance(points, int):
        if points < 2:
            raise ValueError(f"points={points!r} must be 2 or more, or a list of places; e.g. points=51")
        return torch.linspace(0, 1, points, dtype=torch.float64)
    places = torch.as_tensor(points, dtype=torch.float64)
    if places.dim() != 1 or len(places) < 2 or not bool((places.diff() > 0).all()):
        raise ValueError(f"points={points!r} must be two or more increasing numbers; e.g. points=[0, 0.5, 1]")
    return places


def _groups(model: nn.Module, groups: str | Mapping[str, str | Sequence[str]]) -> dict[str, list[str]]:
    """The names of tensors that move together; tied tensors are in the same group."""
    state = owners(model)
    if isinstance(groups, Mapping):
        found = {name: chosen(state, where) for name, where in groups.items()}
    elif groups == "statistics":
        found = {"running statistics": statistics(model)}
        if not found["running statistics"]:
            raise ValueError(f"{type(model).__name__} keeps no running statistics: choose other groups")
    elif groups in ("layers", "blocks", "tensors"):
        found = {}
        for name in state:
            key = {"layers": name.rpartition(".")[0], "blocks": name.partition(".")[0], "tensors": name}[groups]
            found.setdefault(key or name, []).append(name)
    else:
        raise ValueError(
            f"groups={groups!r} must be 'layers', 'blocks', 'tensors', 'statistics' or names with globs, "
            "e.g. {'third block': 'layer3.*'}"
        )
    distinct: dict[tuple[str, ...], str] = {}
    for key, names in found.items():
        held = {state[name] for name in names}
        distinct.setdefault(tuple([name for name, owner in state.items() if owner in held]), key)
    return {key: list(names) for names, key in distinct.items()}
