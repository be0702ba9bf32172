"""Sampling: the loop of `train` with draws kept, their statistics and convergence diagnostics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from tether.ensemble.replicas import Replicas
from tether.loop.minibatches import whole_number
from tether.loop.record import Record
from tether.loop.train import train

__all__ = ["Draws", "sample"]

Quantity = Callable[[Any], torch.Tensor]


@dataclass
class Draws:
    """Draws of named quantities, each a tensor of shape (chains, draws, …)."""

    values: dict[str, torch.Tensor]
    record: Record

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.values[name]

    def mean(self, name: str) -> torch.Tensor:
        """The mean over all chains and draws; of the outputs this is the posterior-predictive mean."""
        return self.values[name].flatten(0, 1).mean(0)

    def variance(self, name: str) -> torch.Tensor:
        """Over all chains and draws."""
        return self.values[name].flatten(0, 1).var(0)

    def rhat(self, method: str = "rank") -> dict[str, torch.Tensor]:
        """R-hat of every quantity, entry by entry, by arviz-stats: 1 where the chains agree."""
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
        rhat, ess = self.rhat(), self.ess()
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

    For the posterior of N points under a mean loss the temperature is 1/N; a prior is weight decay.

    >>> from tether import methods
    >>> ens = Replicas(lambda: torch.nn.Linear(1, 1), n=4)
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> opt = methods.langevin(ens, lr=0.2, friction=1.0, temperature=1 / 20)
    >>> found = sample(ens, opt, (x, 2 * x), torch.nn.functional.mse_loss, draws=50, thin=5, burn_in=100, inputs=x)
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
    if inputs is not None:
        kept["output"] = lambda m: m(inputs, each=False) if many else m(inputs)
    burn = -(-burn_in // thin) * thin
    shapes: dict[str, tuple[int, ...]] = {}

    @torch.no_grad()
    def collect(step: int, model: torch.nn.Module, _: Any) -> dict[str, torch.Tensor] | None:
        if step <= burn:
            return None
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
    values = {
        name: (rows if many else rows.unsqueeze(1)).transpose(0, 1).contiguous()
        for name, rows in record.metrics.items()
    }
    return Draws(values, record)


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
