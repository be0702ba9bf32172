"""Sampling: the loop of `train` with draws kept, their statistics and convergence diagnostics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from tether.engine.advice import warn
from tether.ensemble.replicas import Replicas
from tether.loop.minibatches import whole_number
from tether.loop.record import Record
from tether.loop.train import train
from tether.optimizer import Optimizer

__all__ = ["Draws", "sample"]

Quantity = Callable[[Any], torch.Tensor]
ALMOST = 1.4  # a factor by which a kinetic temperature may miss its target without a word


@dataclass
class Draws:
    """Draws of named quantities, each a tensor of shape (chains, draws, …)."""

    values: dict[str, torch.Tensor]
    record: Record
    weights: torch.Tensor | None = None  # of the draws, chains × draws, where steps have lengths of their own

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.values:
            more = "; outputs are kept with sample(..., inputs=x)" if name == "output" else ""
            raise KeyError(f"no quantity {name!r} was kept, but {', '.join(map(repr, self.values))}{more}")
        return self.values[name]

    @property
    def chains(self) -> int:
        """How many there are."""
        return len(next(iter(self.values.values())))

    def mean(self, name: str) -> torch.Tensor:
        """The mean over all chains and draws; of the outputs this is the posterior-predictive mean."""
        return self._mean(self[name].flatten(0, 1))

    def variance(self, name: str) -> torch.Tensor:
        """Over all chains and draws."""
        x = self[name].flatten(0, 1)
        return x.var(0) if self.weights is None else self._mean((x - self._mean(x)).square())

    def _mean(self, x: torch.Tensor) -> torch.Tensor:
        """The mean over the first axis, with the weights of the draws if there are some."""
        if self.weights is None:
            return x.mean(0)
        w = self.weights.flatten() / self.weights.sum()
        return torch.tensordot(w.to(x), x, 1)

    def rhat(self, method: str = "rank") -> dict[str, torch.Tensor]:
        """R-hat of every quantity, entry by entry, by arviz-stats: 1 where the chains agree; it takes two at least."""
        if self.chains < 2:
            raise ValueError("R-hat compares chains, and there is one: sample tether.Replicas(factory, n=4)")
        return self._by_arviz("rhat", method)

    def ess(self, method: str = "bulk") -> dict[str, torch.Tensor]:
        """Effective sample size of every quantity, entry by entry, by arviz-stats."""
        return self._by_arviz("ess", method)

    def _by_arviz(self, name: str, method: str) -> dict[str, torch.Tensor]:
        try:
            from arviz_stats.base import array_stats  # type: ignore[attr-defined]
        except ImportError as error:
            raise ImportError(f"{name}() needs arviz-stats: pip install 'tether[diagnostics]'") from error
        function = getattr(array_stats, name)
        return {
            label: torch.as_tensor(function(x.double().numpy(), chain_axis=0, draw_axis=1, method=method))
            for label, x in self.values.items()
        }

    def __str__(self) -> str:
        chains, draws = next(iter(self.values.values())).shape[:2]
        rhat = self.rhat() if chains > 1 else dict.fromkeys(self.values, torch.tensor(torch.nan))
        ess = self.ess()
        head = f"{'quantity':<20} {'mean':>10} {'sd':>10} {'R-hat':>7} {'ESS':>8}"
        lines = [f"{chains} chains of {draws} draws", head]
        for name in self.values:
            mean, sd = float(self.mean(name).mean()), float(self.variance(name).mean().sqrt())
            worst = f"{float(rhat[name].max()):>7.3f} {float(ess[name].min()):>8.0f}"
            lines.append(f"{name:<20} {mean:>10.4g} {sd:>10.4g} {worst}")
        return "\n".join(lines)


def sample(
    model: torch.nn.Module,
    opt: torch.optim.Optimizer,
    data: Any,
    loss: Any = functional.cross_entropy,
    draws: int = 100,
    thin: int = 10,
    burn_in: int = 0,
    batch: int | None = None,
    *,
    quantities: Mapping[str, Quantity] | None = None,
    inputs: torch.Tensor | None = None,
    **options: Any,
) -> Draws:
    """Draw from the density exp(−loss/τ) that the optimizer samples, one chain for each replica.

    The temperature of a posterior over N points depends on the loss. If it is the mean negative log-likelihood, as
    cross entropy is, τ = 1/N. `mse_loss` leaves out the noise: with observation noise of variance σ², τ = 2σ²/N. A
    normal prior of variance v is ``weight_decay=τ/v``. The spread of outputs is that of the network alone: add σ²
    for the spread of observations. With `tether.Pace` the draws have weights, which `mean` and `variance` of the
    result use; R-hat and the effective sample size are those of the draws as they come. Warns if the momenta have
    another temperature on average, for then the draws have, too.

    >>> from tether import methods
    >>> ens = Replicas(lambda: torch.nn.Linear(1, 1), n=4)
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> y = 2 * x + 0.3 * torch.randn(20, 1)
    >>> opt = methods.langevin(ens, lr=0.2, friction=1.0, temperature=2 * 0.3**2 / 20)
    >>> found = sample(ens, opt, (x, y), torch.nn.functional.mse_loss, draws=50, thin=5, burn_in=100, inputs=x)
    >>> found["weight"].shape, found.mean("output").shape
    (torch.Size([4, 50, 1, 1]), torch.Size([20, 1]))

    Args:
        model: a module, or `Replicas` for several chains.
        opt: an optimizer with a temperature.
        data: as in `tether.train`; None for a target of your own.
        loss: as in `tether.train`; with ``data=None`` a function of the model that returns its energy, one for each
            replica.
        draws: draws to keep of each chain.
        thin: steps between two of them.
        burn_in: steps before the first, rounded up to a multiple of `thin`.
        batch: points in a minibatch; None takes all.
        quantities: what to keep, as functions of the model by name; None keeps all parameters.
        inputs: if given, the outputs of the model on them are kept as ``"output"``, for the posterior predictive.
        options: further arguments of `tether.train`, e.g. ``checkpoint=``.
    """
    draws, thin, burn_in = (
        whole_number("draws", draws, 1),
        whole_number("thin", thin, 1),
        whole_number("burn_in", burn_in),
    )
    _check_temperature(opt)
    _check_whole_loss(opt, batch)
    many = isinstance(model, Replicas)
    kept = dict(quantities) if quantities is not None else _parameters(model)
    weighed = any(row.rhythm.paced for row in getattr(opt, "rows", ()))
    if weighed:
        if "pace" in kept:
            raise ValueError("a quantity named 'pace' would hide the weights of the draws: give it another name")
        kept["pace"] = lambda _: torch.as_tensor(opt.pace())  # type: ignore[attr-defined]
    if inputs is not None:
        kept["output"] = lambda m: m(inputs, each=False) if many else m(inputs)
    burn = -(-burn_in // thin) * thin
    shapes: dict[str, tuple[int, ...]] = {}
    heat = Heat()

    @torch.no_grad()
    def collect(step: int, model: torch.nn.Module, _: Any) -> dict[str, torch.Tensor] | None:
        if step <= burn:
            return None
        heat.read(opt)
        was_training = model.training
        model.eval()
        values = {name: quantity(model) for name, quantity in kept.items()}
        model.train(was_training)
        for name, value in values.items():
            shape = tuple(getattr(value, "shape", ()))
            if shapes.setdefault(name, shape) != shape:
                raise ValueError(
                    f"quantity {name!r} has shape {shape} at step {step} and had {shapes[name]}: draws are stacked, so "
                    "let it return the same shape every time"
                )
        return values

    steps = burn + draws * thin
    record = train(model, opt, data, loss, steps, batch, log_every=thin, callbacks=[collect], **options)
    if not record.metrics:
        raise RuntimeError(f"every chain diverged before step {burn}: lower lr")
    expected = sum(step > burn for step in record.steps)
    for name, rows in record.metrics.items():
        if name not in kept or len(rows) != expected or isinstance(rows, list):
            raise ValueError(
                f"the checkpoint holds {len(rows)} draws of {name!r}, not {expected} of {', '.join(map(repr, kept))}: "
                "it was begun with another burn_in or other quantities; go on with those, or choose another path"
            )
    heat.compare(opt)
    values = {
        name: (rows if many else rows.unsqueeze(1)).transpose(0, 1).contiguous()
        for name, rows in record.metrics.items()
    }
    return Draws(values, record, values.pop("pace") if weighed else None)


class Heat:
    """The kinetic temperature of each part over the draws, beside the one that it should have."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.readings = 0

    def read(self, opt: torch.optim.Optimizer) -> None:
        """Add the present one, the mean over replicas."""
        if isinstance(opt, Optimizer):
            self.readings += 1
            for label, value in opt.temperature().items():
                self.sums[label] = self.sums.get(label, 0.0) + float(torch.as_tensor(value).nanmean())

    def compare(self, opt: torch.optim.Optimizer) -> None:
        """Warn where draws follow another density than the one that was asked for."""
        for (label, total), group in zip(self.sums.items(), opt.param_groups, strict=False):
            found, τ = total / self.readings, group["temperature"]
            count = self.readings * sum(x.numel() for x in group["params"])
            if isinstance(τ, torch.Tensor) or not τ or not math.isfinite(found) or count < 2000:
                continue
            if found < τ / ALMOST:
                cure = "the draws are too narrow: take a longer burn_in"
                cure += ", and a larger coupling, about 1/τ, with normalised=True" * any(
                    x in group["word"] for x in "CE"
                )
            elif found > τ * ALMOST:
                cure = "the draws are too wide: take a smaller lr, or a larger batch"
            else:
                continue
            warn(f"the momenta of part {label!r} had the temperature {found:.2g} on average, not τ = {τ:.2g}: {cure}")


def _check_temperature(opt: torch.optim.Optimizer) -> None:
    """Raise if nothing is sampled: at temperature 0 a chain goes to a minimum and stays there."""
    if any("temperature" in group for group in opt.param_groups):
        if not any(
            bool(torch.as_tensor(group.get("temperature", 0.0), device="cpu").any()) for group in opt.param_groups
        ):
            raise ValueError(
                "every part has temperature 0, so there is nothing to sample: set it, e.g. "
                "tether.methods.langevin(model, lr=0.1, temperature=1 / points)"
            )
    elif type(opt).__module__.startswith("torch.optim"):
        raise TypeError(
            f"torch's {type(opt).__name__} has no temperature, so its draws follow no known density: use e.g. "
            "tether.methods.langevin(model, lr=0.1, temperature=1 / points), or tether.train"
        )


def _check_whole_loss(opt: torch.optim.Optimizer, batch: int | None) -> None:
    """Raise for minibatches where the energies are tested: they are not those of the density."""
    rows: Any = getattr(opt, "rows", ())
    if batch is not None and any(row.rhythm.tested for row in rows):
        raise ValueError(
            f"batch={batch}: {rows[0].rhythm!r} accepts by the whole loss, and a minibatch has another: leave out "
            "batch=, or sample by tether.methods.langevin"
        )


def _parameters(model: torch.nn.Module) -> dict[str, Quantity]:
    def keep(name: str) -> Quantity:
        return lambda m: m.get_parameter(name).detach()

    return {name: keep(name) for name, _ in model.named_parameters()}
