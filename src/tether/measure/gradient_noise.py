"""The noise that minibatches bring into the gradient, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from tether.measure.batches import Batch, Loss, batches, loss_of
from tether.measure.each import each
from tether.measure.untouched import untouched

__all__ = ["GradientNoise", "gradient_noise"]

ROOM = 1 << 24  # numbers: the gradients of so many points are held at once


@dataclass(frozen=True)
class GradientNoise:
    """G̃ = G + Σ R (3.8): the gradient G of all points and the noise Σ that a minibatch adds.

    Attributes:
        signal: ‖G‖² of each layer.
        noise: the mean of ‖G̃ − G‖² of each layer, which is the trace of ΣΣᵀ.
        sizes: the number of parameters of each layer.
        batch: points in a minibatch.
        points: points in all.
    """

    signal: dict[str, float]
    noise: dict[str, float]
    sizes: dict[str, int]
    batch: int
    points: int

    def temperature(self, lr: float) -> dict[str, float]:
        """The temperature h σ²/2 of each layer at which SGLD's own noise is as strong, with σ² the noise per parameter.

        θ ← θ − h G + h Σ R (3.8) against θ ← θ − h G + √(2τh) R.
        """
        return {name: lr * noise / (2 * self.sizes[name]) for name, noise in self.noise.items()}

    def __str__(self) -> str:
        ratios = (f"{name or 'model'} {x:.3g} of {self.signal[name]:.3g}" for name, x in self.noise.items())
        return f"noise of {self.batch} of {self.points} points, E‖G̃ − G‖² of ‖G‖²: {', '.join(ratios)}"

    def plot(self, ax: Any = None) -> Any:
        """Signal and noise of each layer."""
        import matplotlib.pyplot as plt

        ax = plt.subplots(layout="constrained")[1] if ax is None else ax
        places = range(len(self.noise))
        ax.plot(places, list(self.signal.values()), "o", label="‖G‖²")
        ax.plot(places, list(self.noise.values()), "s", label="E‖G̃ − G‖²")
        ax.set_xticks(list(places), list(self.noise), rotation=45, ha="right")
        ax.set(xlabel="layer", ylabel="squared norm", yscale="log" if min(self.noise.values()) > 0 else "linear")
        ax.legend(frameon=False)
        return ax


@each()
def gradient_noise(
    model: nn.Module,
    data: Any,
    batch: int,
    loss: Loss | None = None,
    *,
    per: str = "layer",
    replacement: bool = False,
    one_by_one: bool = False,
) -> GradientNoise:
    """The variance of a minibatch's gradient (3.8), from the gradients of all single points.

    It is exact: for n points with the covariance C of their gradients (divided by n − 1), b of them drawn without
    replacement have a mean of covariance C/b (1 − b/n).

    >>> net = nn.Linear(1, 1, bias=False)
    >>> _ = net.weight.data.zero_()
    >>> x, y = torch.ones(3, 1), torch.tensor([[1.0], [2.0], [3.0]])  # gradients w − y of ½(w − y)²
    >>> print(gradient_noise(net, (x, y), 2, lambda f, y: (f - y).square().mean() / 2, per="tensor"))
    noise of 2 of 3 points, E‖G̃ − G‖² of ‖G‖²: weight 0.167 of 4

    Args:
        model: any network; it is measured in eval mode. Frozen parameters are left out.
        data: a pair (inputs, targets), a loader or an iterable of batches.
        batch: b, the number of points in a minibatch.
        loss: the mean loss of a batch; None takes the model's own, or cross-entropy.
        per: "layer" puts the parameters of a module together, "tensor" does not.
        replacement: every point of a minibatch is drawn from all, as by ``tether.train(replacement=True)``.
        one_by_one: a backward pass for each point, for models that `torch.func.vmap` cannot take.
    """
    if per not in ("layer", "tensor"):
        raise ValueError(f"per={per!r} must be 'layer' or 'tensor'")
    with untouched(model):
        found = _Spread()
        for one in batches(data):
            for gradients in _by_point(model, one, loss, one_by_one):
                found.add(gradients)
    n = found.count
    if not 1 <= batch <= n or n < 2:
        raise ValueError(f"batch={batch} must be from 1 to the number of points, {n}, of which there must be two")
    factor = 1 / (n * batch) if replacement else (1 - batch / n) / ((n - 1) * batch)
    signal, noise, sizes = dict[str, float](), dict[str, float](), dict[str, int]()
    for name, mean in found.means.items():
        key = name.rpartition(".")[0] if per == "layer" else name
        signal[key] = signal.get(key, 0.0) + mean.square().sum().item()
        noise[key] = noise.get(key, 0.0) + found.squares[name] * factor
        sizes[key] = sizes.get(key, 0) + mean.numel()
    return GradientNoise(signal, noise, sizes, batch, n)


class _Spread:
    """Means of vectors and sums of their squared distances from it, of vectors that come some at a time."""

    def __init__(self) -> None:
        self.count, self.means, self.squares = 0, dict[str, torch.Tensor](), dict[str, float]()

    def add(self, gradients: dict[str, torch.Tensor]) -> None:
        rows = len(next(iter(gradients.values())))
        for name, x in gradients.items():
            x = x.detach().flatten(1).double()
            mean = x.mean(0)
            apart = mean - self.means.get(name, torch.zeros_like(mean))
            between = apart.square().sum().item() * self.count * rows / (self.count + rows)
            self.squares[name] = self.squares.get(name, 0.0) + (x - mean).square().sum().item() + between
            self.means[name] = mean - apart * (self.count / (self.count + rows))
        self.count += rows


def _by_point(model: nn.Module, batch: Batch, loss: Loss | None, one_by_one: bool) -> Iterator[dict[str, torch.Tensor]]:
    """The gradients of the single points of a batch, some points at a time."""
    free = {name: x.detach() for name, x in model.named_parameters() if x.requires_grad}
    if not free:
        raise ValueError(f"{type(model).__name__} has no parameter that requires a gradient: unfreeze some")
    rows = batch.rows
    fixed = {name: x.detach() for name, x in model.named_parameters() if name not in free} | dict(model.named_buffers())
    leaves, again = _sliced(batch, rows)

    def loss_at(state: dict[str, torch.Tensor], *point: torch.Tensor) -> torch.Tensor:
        alone = again([x.unsqueeze(0) for x in point])
        return loss_of(lambda *args, **kwargs: functional_call(model, state | fixed, args, kwargs), alone, loss)

    slope = grad(loss_at)
    size = 1 if one_by_one else max(1, ROOM // sum(x.numel() for x in free.values()))
    for first in range(0, rows, size):
        points = [x[first : first + size] for x in leaves]
        if one_by_one:
            yield {name: x.unsqueeze(0) for name, x in slope(free, *(x[0] for x in points)).items()}
            continue
        try:
            yield vmap(slope, (None, *(0 for _ in points)))(free, *points)
        except RuntimeError as error:
            raise RuntimeError(f"vmap cannot take {type(model).__name__}: pass one_by_one=True ({error})") from error


def _sliced(batch: Batch, rows: int) -> tuple[list[torch.Tensor], Any]:
    """The tensors of a batch that have a row for each point, and how to make a batch of such tensors again."""
    given: list[tuple[str | int, Any]] = [*enumerate(batch.args), *batch.kwargs.items(), ("", batch.targets)]
    mine = [key for key, x in given if isinstance(x, torch.Tensor) and x.dim() and len(x) == rows]
    held = dict(given)

    def again(tensors: list[torch.Tensor]) -> Batch:
        now = held | dict(zip(mine, tensors, strict=True))
        return Batch(tuple(now[i] for i in range(len(batch.args))), {key: now[key] for key in batch.kwargs}, now[""])

    return [held[key] for key in mine], again
