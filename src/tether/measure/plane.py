"""The loss over a plane of states: through a start and two ends (section 3.4), or along random directions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tether.measure.along import CHUNK, evaluate
from tether.measure.batches import Loss
from tether.measure.each import each
from tether.measure.line import BATCHNORM
from tether.measure.states import State, fitting, owners, statistics

__all__ = ["Plane", "random_directions", "surface"]

VECTORS = ("fixed", "scaled")


@dataclass(frozen=True)
class Plane:
    """Losses over a grid of states."""

    alphas: torch.Tensor  # first coordinates
    betas: torch.Tensor  # second coordinates
    losses: torch.Tensor  # mean losses, alphas × betas
    accuracies: torch.Tensor | None  # accuracies, if the targets are classes
    finite: bool  # False if some loss is inf or nan
    coordinates: str  # "start and ends" or "random directions"

    def __str__(self) -> str:
        text = f"{len(self.alphas)} × {len(self.betas)} points over {self.coordinates}"
        if not self.finite:
            return f"{text}: {int((~self.losses.isfinite()).sum())} losses are not finite"
        return f"{text}: losses from {self.losses.min():.4g} to {self.losses.max():.4g}"

    def plot(self, ax: Any = None, **contour: Any) -> Any:
        """Draw levels of the loss over α and β; keywords go to matplotlib's filled contours."""
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots()[1]
        shades = ax.contourf(self.alphas, self.betas, self.losses.T, **{"levels": 30, "cmap": "viridis", **contour})
        ax.figure.colorbar(shades, ax=ax, label="loss")
        ax.set(xlabel="α", ylabel="β")
        return ax


@each("start", "first", "second")
def surface(
    model: nn.Module,
    start: State,
    first: State | None,
    second: State | None,
    data: Any,
    alphas: int | Sequence[float] = 21,
    betas: int | Sequence[float] = 21,
    *,
    loss: Loss | None = None,
    batchnorm: str = "lerp",
    calibration: Any = None,
    seed: int = 0,
    vectors: str = "fixed",
    chunk: int | None = CHUNK,
    fast: bool = True,
) -> Plane:
    """The loss over a plane of states.

    Through a start and two ends (§3.4), from the start at α = 0 to the line between the ends at α = 1:

        θ(α, β) = β F_1(α) + (1 − β) F_2(α),   F_i(α) = θ_0 + α (θ_i − θ_0),   α, β in [0, 1].

    Without ends, around the start along two random directions (`random_directions`):

        θ(α, β) = θ_0 + α d_1 + β d_2,   α, β in [−1, 1].

    Args:
        model: the network; its own state is not used and does not change.
        start: the state dict θ_0.
        first: θ_1, which is at α = 1, β = 1; or None.
        second: θ_2, which is at α = 1, β = 0; or None.
        data: the data of the loss.
        alphas: the number of values, evenly spaced; or the values of α.
        betas: the same for β.
        loss: ``loss(output, target)``, a mean over rows; other means (class weights, ignored targets) need chunk=None.
        batchnorm: the running statistics: ``"lerp"`` interpolates them as parameters (random directions do not change
            them), ``"end"`` takes those of the first end (of the start, without ends), ``"recalibrate"`` computes them
            at every point.
        calibration: the data to compute them from; None takes `data`.
        seed: of the random directions.
        vectors: how they change biases and other vectors (`random_directions`).
        chunk: rows of a pair to take at a time.
        fast: False runs the whole network at every point.
    """
    if (first is None) != (second is None):
        raise ValueError("give both ends or neither; e.g. surface(net, start, None, None, data) for random directions")
    if batchnorm not in BATCHNORM:
        raise ValueError(f"batchnorm={batchnorm!r} must be one of {', '.join(map(repr, BATCHNORM))}")
    if isinstance(data, Iterator):
        data = list(data)
    if first is None or second is None:
        (origin,) = fitting(model, start=start)
        directions = random_directions(origin, seed, vectors)
        own = owners(model)
        ends = [{name: x + d[own[name]] if name in d else x for name, x in origin.items()} for d in directions]
        low = -1.0
    else:
        origin, *ends = fitting(model, start=start, first=first, second=second)
        low = 0.0
    rows, columns = _places(alphas, low, "alphas"), _places(betas, low, "betas")
    if batchnorm == "end":
        fixed = {name: ends[0][name] for name in statistics(model)}
        origin, *ends = ({**state, **fixed} for state in (origin, *ends))
    grid = [(a, b) for a in rows.tolist() for b in columns.tolist()]
    weights = [(1 - a - b, a, b) if first is None else (1 - a, a * b, a * (1 - b)) for a, b in grid]
    anew = (data if calibration is None else calibration) if batchnorm == "recalibrate" else None
    found = evaluate(model, [origin, *ends], weights, data, loss, chunk=chunk, recalibrate=anew, fast=fast)
    losses, accuracies = (None if x is None else x.view(len(rows), len(columns)) for x in found)
    assert losses is not None
    coordinates = "random directions" if first is None else "start and ends"
    return Plane(rows, columns, losses, accuracies, bool(losses.isfinite().all()), coordinates)


def random_directions(state: State, seed: int = 0, vectors: str = "fixed") -> list[dict[str, torch.Tensor]]:
    """Two random directions, normalised filter by filter: d_f ← d_f ‖θ_f‖ / ‖d_f‖ for normal d (Li et al., 2018).

    A filter is the set of weights into one unit: a row of a matrix, or in general one entry along the first axis.

    >>> net = nn.Linear(3, 2)
    >>> first, second = random_directions(net.state_dict())
    >>> torch.allclose(first["weight"].norm(dim=1), net.weight.norm(dim=1))
    True

    Args:
        state: a state dict θ.
        seed: of the normal numbers.
        vectors: tensors of one axis, such as biases and BatchNorm's scales and shifts: ``"fixed"`` does not change
            them, ``"scaled"`` treats each as one filter. If θ is 0, the direction is 0.
    """
    if vectors not in VECTORS:
        raise ValueError(f"vectors={vectors!r} must be one of {', '.join(map(repr, VECTORS))}")
    generator = torch.Generator().manual_seed(seed)
    directions: list[dict[str, torch.Tensor]] = [{}, {}]
    for direction in directions:
        for name, x in state.items():
            vector = x.dim() < 2
            if not x.is_floating_point() or name.endswith(("running_mean", "running_var")):
                continue
            if vector and vectors == "fixed":
                continue
            d = torch.randn(x.shape, generator=generator, dtype=torch.float64)
            θ = x.detach().double().cpu()
            rows = (1, -1) if vector else (len(x), -1)
            size, length = (y.reshape(rows).norm(dim=1) if x.numel() else y.new_ones(rows[0]) for y in (θ, d))
            factor = (size / length).view(-1, *[1] * (x.dim() - 1)) if not vector else size / length
            direction[name] = (d * factor).view(x.shape).to(x.device, x.dtype)
    return directions


def _places(points: int | Sequence[float], low: float, name: str) -> torch.Tensor:
    if isinstance(points, int) and points >= 1:
        return torch.linspace(low, 1, points, dtype=torch.float64)
    if isinstance(points, int) or not len(points):
        raise ValueError(f"{name}={points!r} must be 1 or more, or a list of places; e.g. {name}=21")
    return torch.as_tensor(points, dtype=torch.float64)
