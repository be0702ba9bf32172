"""Configurational temperature: the temperature of the parameters, computed from forces alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tether.loop.sample import Draws
from tether.measure.batches import batches, loss_of
from tether.measure.each import each
from tether.measure.series import mean_and_error
from tether.measure.untouched import untouched

__all__ = ["Configurational", "configurational_temperature"]

SMALL = 1000  # parameters up to which the Laplacian is exact by default
PROBES = 10
ROWS = 64  # of the Hessian at a time


@dataclass(frozen=True)
class Configurational:
    """Two estimates of the temperature without momenta; both are τ if θ is distributed as exp(−U/τ)."""

    mean: float  # ⟨|∇U|²⟩/⟨ΔU⟩; nan where ⟨ΔU⟩ is not positive
    error: float  # standard error
    virial: float  # ⟨θ·∇U⟩/N
    virial_error: float
    degrees: int
    probes: int  # random vectors in the estimate of ΔU; 0 where it is exact
    gradient_squares: torch.Tensor  # |∇U|², chains × draws
    laplacians: torch.Tensor  # ΔU
    virials: torch.Tensor  # θ·∇U

    def __str__(self) -> str:
        shown = [
            f"{value:.4g}" + ("" if math.isnan(error) else f" ± {error:.2g}")
            for value, error in ((self.mean, self.error), (self.virial, self.virial_error))
        ]
        form = "none, as ⟨ΔU⟩ ≤ 0" if math.isnan(self.mean) else shown[0]
        count = self.laplacians.numel()
        return f"configurational temperature {form}, virial {shown[1]}, from {count} draw{'s' * (count > 1)}"

    def plot(self, ax: Any = None) -> Any:
        """Both estimates as functions of the number of draws."""
        import matplotlib.pyplot as plt

        ax = plt.subplots(layout="constrained")[1] if ax is None else ax
        a, b, c = (x.mean(0).cumsum(0) for x in (self.gradient_squares, self.laplacians, self.virials))
        count = torch.arange(1, len(a) + 1)
        ax.plot(count, a / b, label="⟨|∇U|²⟩/⟨ΔU⟩")
        ax.plot(count, c / (count * self.degrees), label="⟨θ·∇U⟩/N")
        ax.set(xlabel="draws of a chain", ylabel="configurational temperature")
        ax.legend(frameon=False)
        return ax


@each()
def configurational_temperature(
    model: nn.Module,
    data: Any = None,
    loss: Any = None,
    *,
    draws: Draws | Sequence[Mapping[str, torch.Tensor]] | None = None,
    weight_decay: float = 0.0,
    probes: int | None = None,
    seed: int = 0,
) -> Configurational:
    """⟨|∇U|²⟩/⟨ΔU⟩ and ⟨θ·∇U⟩/N: both are τ under exp(−U/τ), by an integration by parts.

    U(θ) is the mean loss plus ``weight_decay``/2 |θ|², with θ the parameters that require gradients. If the kinetic
    temperature of a sampler is right and this one is not, its steps are too long or its gradients too noisy.

    >>> well = nn.Linear(50, 1, bias=False)
    >>> stiffness = torch.linspace(1, 9, 50)
    >>> energy = lambda m: (stiffness * m.weight.square()).sum() / 2
    >>> _ = torch.manual_seed(0)
    >>> draws = [{"weight": (0.3 / stiffness).sqrt() * torch.randn(1, 50)} for _ in range(100)]  # exp(−U/0.3)
    >>> print(configurational_temperature(well, loss=energy, draws=draws))
    configurational temperature 0.2957 ± 0.0064, virial 0.2977 ± 0.0069, from 100 draws

    For ReLU networks part of ΔU comes from kinks, which autograd does not see: only the virial is valid for them.

    Args:
        model: its current parameters are the only draw, unless `draws` are given.
        data: a pair, a loader or an iterable of batches; None for an energy of the model alone, ``loss(model)``.
        loss: ``loss(output, target)``; the default is cross-entropy, or the model's own.
        draws: the result of `tether.sample`, all chains together, or a list of state dicts.
        weight_decay: as in the optimizer that sampled.
        probes: random vectors for ΔU by Hutchinson's estimate; 0 takes the exact one. None is 0 up to 1000 parameters,
            and 10 above.
        seed: of these vectors.
    """
    named = {name: x for name, x in model.named_parameters() if x.requires_grad}
    n = sum(x.numel() for x in named.values())
    if not n:
        raise ValueError("no parameter requires a gradient: there is no temperature to measure; unfreeze some")
    if data is None and loss is None:
        raise ValueError("give data, or the energy itself as loss=, a function of the model")
    count = (0 if n <= SMALL else PROBES) if probes is None else probes
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"probes={probes!r} must be 0, for the exact Laplacian, or more")
    generator = torch.Generator().manual_seed(seed)
    kept = None if data is None else batches(data)
    found: list[list[tuple[float, float, float]]] = []
    with untouched(model), sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivatives
        for chain in _chains(draws, named):
            found.append([])
            for state in chain:
                with torch.no_grad():
                    for name, value in state.items():
                        named[name].copy_(value.reshape(named[name].shape))
                found[-1].append(_terms(model, list(named.values()), kept, loss, weight_decay, count, generator))
    squares, laplacians, virials = torch.tensor(found, dtype=torch.float64).movedim(-1, 0)
    ratio = float(squares.mean() / laplacians.mean())
    error = mean_and_error(squares - ratio * laplacians)[1] / float(laplacians.mean())
    if not laplacians.mean() > 0:
        ratio = error = math.nan
    virial, virial_error = mean_and_error(virials / n)
    return Configurational(ratio, error, virial, virial_error, n, count, squares, laplacians, virials)


def _chains(draws: Any, named: Mapping[str, torch.Tensor]) -> Iterator[list[Mapping[str, torch.Tensor]]]:
    """The values of the parameters, chain by chain and draw by draw."""
    if draws is None:
        yield [{}]
        return
    if isinstance(draws, Draws):
        missing = [name for name in named if name not in draws.values]
        if missing:
            raise ValueError(f"the draws lack {', '.join(map(repr, missing))}: keep all parameters, quantities=None")
        chains, length = draws[next(iter(named))].shape[:2]
        for c in range(chains):
            yield [{name: draws[name][c, t] for name in named} for t in range(length)]
        return
    states = list(draws)
    if not states:
        raise ValueError("draws is empty: give draws of tether.sample or a list of state dicts")
    for state in states:
        missing = [name for name in named if name not in state]
        if missing:
            raise ValueError(f"a draw lacks {', '.join(map(repr, missing))}: give the model's whole state_dict()")
    yield [{name: state[name] for name in named} for state in states]


def _terms(
    model: nn.Module,
    params: list[nn.Parameter],
    data: Any,
    loss: Any,
    decay: float,
    probes: int,
    generator: torch.Generator,
) -> tuple[float, float, float]:
    """|∇U|², ΔU and θ·∇U at the model's parameters."""
    θ = torch.cat([x.detach().reshape(-1).double() for x in params])
    gradient, laplacian = decay * θ, decay * len(θ)
    rows = 1 if data is None else sum(batch.rows for batch in data)
    for batch in [None] if data is None else data:
        with torch.enable_grad():
            energy = loss(model).sum() if batch is None else loss_of(model, batch, loss) * (batch.rows / rows)
            flat = _flat(torch.autograd.grad(energy, params, create_graph=True, allow_unused=True), params)
            gradient = gradient + flat.detach().double()
            laplacian += _trace(flat, params, probes, generator) if flat.requires_grad else 0.0
    return float(gradient.square().sum()), laplacian, float((θ * gradient).sum())


def _trace(flat: torch.Tensor, params: list[nn.Parameter], probes: int, generator: torch.Generator) -> float:
    """The trace of the Hessian, exactly or by Hutchinson's estimate ⟨vᵀHv⟩ over random signs v."""
    n, total = len(flat), 0.0
    if probes:
        for _ in range(probes):
            v = torch.randint(0, 2, (n,), generator=generator).to(flat) * 2 - 1
            product = torch.autograd.grad(flat @ v, params, retain_graph=True, allow_unused=True)
            total += float((_flat(product, params).double() * v).sum())
        return total / probes
    for first in range(0, n, ROWS):
        rows = torch.eye(n, dtype=flat.dtype, device=flat.device)[first : first + ROWS]
        found = torch.autograd.grad(flat, params, rows, retain_graph=True, allow_unused=True, is_grads_batched=True)
        blocks = [
            flat.new_zeros(len(rows), x.numel()) if block is None else block.reshape(len(rows), -1)
            for block, x in zip(found, params, strict=True)
        ]
        total += float(torch.cat(blocks, dim=1)[:, first:].diagonal().double().sum())
    return total


def _flat(parts: Sequence[torch.Tensor | None], params: Sequence[torch.Tensor]) -> torch.Tensor:
    zipped = zip(parts, params, strict=True)
    return torch.cat([(torch.zeros_like(x) if part is None else part).reshape(-1) for part, x in zipped])
