"""Tempering: chains that cross barriers at high temperatures (section 1.3.2.3 of the thesis).

The temperature is a field of the parts, so it is saved and restored with the optimizer. The uniform numbers are named
by the seed and the step: call either function once between two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from tether.engine.commit import Write, commit, local, write
from tether.noise import bits

if TYPE_CHECKING:
    from tether.optimizer import Optimizer

__all__ = ["exchange", "temper", "tempering_weights"]


@torch.no_grad()
def exchange(opt: Optimizer, energies: Any) -> torch.Tensor:
    """Let neighbouring replicas exchange their states, by Metropolis: replica exchange, or parallel tempering.

    Replicas i and j = i + 1 exchange with probability min(1, e^{(1/τ_i − 1/τ_j)(U_i − U_j)}). Each keeps its
    temperature, so that replica i samples exp(−U/τ_i) all along. Order the temperatures so that neighbours are close,
    e.g. ``methods.hmc(ens, lr=0.1, temperature=torch.logspace(-1, 0, 8))``; for several ladders, up and down in turn.
    Momenta are scaled to their new temperature.

    Args:
        opt: an optimizer of `Replicas` with a temperature for each.
        energies: what its closure returns at the current parameters, one for each replica.

    Returns:
        for each replica the place its state came from.
    """
    rows, group = opt.lanes.rows, opt.param_groups[0]
    if not opt.replicas:
        raise ValueError("exchange is for replicas: make the model tether.Replicas, with a temperature for each")
    U, τ = _energies(opt, energies), _temperature(opt)
    first = int(_uniform(opt, "exchange order/")[0] < 0.5)
    lower = torch.arange(rows - 1, device="cpu")[first::2]
    upper = lower + 1
    gain = (1 / τ[lower] - 1 / τ[upper]) * (U[lower] - U[upper])
    yes = _uniform(opt, "exchange/")[lower].log() <= gain
    still = torch.zeros(rows, dtype=torch.bool, device="cpu")
    still[list(group["stopped"])] = True
    yes &= ~(still[lower] | still[upper])
    source = torch.arange(rows, device="cpu")
    source[lower[yes]], source[upper[yes]] = upper[yes], lower[yes]
    if bool(yes.any()):
        commit(_moved(opt, source, (τ / τ[source]).sqrt()))
    return source


@torch.no_grad()
def temper(opt: Optimizer, energies: Any, temperatures: Sequence[float], weights: Sequence[float]) -> Any:
    """Move the temperature one step up or down a ladder, by Metropolis: simulated tempering (1.66).

    The temperature is a variable of the chain, of each replica on its own: (θ, k) has the density e^{−U/τ_k + w_k}.
    Those draws that are made at τ_k sample exp(−U/τ_k). All temperatures are visited equally often if w_k =
    −log Z(τ_k), up to a constant; `tempering_weights` estimates it.

    Args:
        opt: an optimizer whose parts all have one of the temperatures.
        energies: what its closure returns at the current parameters.
        temperatures: the ladder, neighbours close to each other.
        weights: w, one for each temperature.

    Returns:
        the place in the ladder, of each replica.
    """
    ladder, w = _ladder(temperatures, "weights", weights)
    U, τ = _energies(opt, energies), _temperature(opt)
    distance, place = (τ.unsqueeze(1) / ladder - 1).abs().min(1)
    if bool((distance > 1e-6).any()):
        raise ValueError(f"temperature={float(τ[distance.argmax()]):g} is not one of the ladder: start with one of it")
    up = _uniform(opt, "temper order/") < 0.5
    new = place + torch.where(up, 1, -1)
    inside = (new >= 0) & (new < len(ladder))
    new = new.clamp(0, len(ladder) - 1)
    gain = U * (1 / ladder[place] - 1 / ladder[new]) + w[new] - w[place]
    yes = inside & (_uniform(opt, "temper/").log() <= gain)
    if opt.replicas:
        yes[list(opt.param_groups[0]["stopped"])] = False
    place = torch.where(yes, new, place)
    if bool(yes.any()):
        found = ladder[place]
        writes = _moved(opt, None, (found / τ).sqrt())
        for group in opt.param_groups:
            writes.append(write(group.__setitem__, "temperature", found.clone() if opt.replicas else float(found)))
        commit(writes)
    return place if opt.replicas else int(place)


def tempering_weights(temperatures: Sequence[float], energies: Sequence[float]) -> torch.Tensor:
    """−log Z of each temperature, relative to the first, from the mean energies there: ∫⟨U⟩ d(1/τ), by trapezia.

    One run of `Replicas` at all temperatures, with `exchange`, gives the energies.

    >>> tempering_weights([1.0, 2.0], [0.5, 1.0]).tolist()  # ⟨U⟩ = τ/2; trapezia: (0.5 + 1)/2 · (1/2 − 1)
    [0.0, -0.375]
    """
    ladder, U = _ladder(temperatures, "energies", energies)
    β = 1 / ladder
    steps = (U[1:] + U[:-1]) / 2 * β.diff()
    return torch.cat((torch.zeros(1, dtype=torch.float64, device="cpu"), steps.cumsum(0)))


def _ladder(temperatures: Sequence[float], name: str, values: Sequence[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Temperatures, and a number for each."""
    ladder, found = (_numbers(x) for x in (temperatures, values))
    if ladder.dim() != 1 or not 2 <= len(ladder) == len(ladder.unique()) or not bool((ladder > 0).all()):
        raise ValueError(f"temperatures={temperatures!r} must be two or more different positive numbers")
    if ladder.shape != found.shape:
        raise ValueError(f"{name}={values!r} must be {len(ladder)} finite numbers, one for each temperature")
    return ladder, found


def _numbers(x: Any) -> torch.Tensor:
    """Finite real numbers in double precision; empty if they are anything else."""
    try:
        found = (x if isinstance(x, torch.Tensor) else torch.as_tensor(x, dtype=torch.float64)).detach()
    except (TypeError, ValueError, RuntimeError):
        return torch.empty(0)
    real = not found.is_complex() and bool(found.isfinite().all())
    return found.to("cpu", torch.float64) if real else torch.empty(0)


def _energies(opt: Optimizer, energies: Any) -> torch.Tensor:
    """One energy for each replica."""
    found = _numbers(energies).flatten()
    if len(found) != opt.lanes.rows:
        raise ValueError(f"energies={energies!r} must be {opt.lanes.rows} finite number(s), one for each replica")
    return found


def _temperature(opt: Optimizer) -> torch.Tensor:
    """The one temperature of all parts, for each replica."""
    found = [torch.as_tensor(group["temperature"], dtype=torch.float64).cpu() for group in opt.param_groups]
    if not all(torch.equal(x, found[0]) for x in found):
        raise ValueError("the parts have several temperatures: the energy of the whole loss has one; give all the same")
    if not bool((found[0] > 0).all()):
        raise ValueError(f"temperature={opt.param_groups[0]['temperature']!r} must be positive")
    return found[0].expand(opt.lanes.rows)


def _uniform(opt: Optimizer, name: str) -> torch.Tensor:
    """A number in (0, 1) for each replica, named by the seed and the step."""
    group = opt.param_groups[0]
    found = bits(1, group["seed"], int(group["step"]), name, opt.lanes.rows, opt.lanes.numbers)
    return (found.flatten().double() + 0.5) * 2.0**-32


def _moved(opt: Optimizer, source: torch.Tensor | None, scale: torch.Tensor) -> list[Write]:
    """The writes that give each replica the state of another one, with momenta scaled."""
    writes: list[Write] = []
    for row in opt.rows:
        for param in row.group["params"]:
            tensors = {"": param, **row.state.get(param, {})}
            for key, x in tensors.items():
                if not x.dim():
                    continue
                old = local(x).detach()
                value = old if source is None else old[source.to(old.device)]
                if key == "momentum":
                    size = scale.to(old).view(-1, *[1] * (old.dim() - 1)) if opt.replicas else scale.to(old)
                    value = value * size
                if value is not old:
                    writes.append(write(old.copy_, value))
        ξ = row.group["thermostat"]
        if source is not None and isinstance(ξ, torch.Tensor) and ξ.dim():
            writes.append(write(row.group.__setitem__, "thermostat", ξ[source.to(ξ.device)]))
    return writes
