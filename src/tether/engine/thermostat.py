"""Thermostat: whether a step is short enough for its oscillation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tether.engine.advice import warn
from tether.engine.commit import local
from tether.engine.pieces import Ranks

__all__ = ["FASTEST", "STRONGEST", "ThermostatError", "check_thermostat", "furthest_from_zero"]

FASTEST = 1.0  # of (hω)²
STRONGEST = 88.0  # of h|ξ|: e^{88} is the largest power of e in float32
FURTHEST = 700.0  # of h|ξ| where nothing moves: e^{700}, of float64


class ThermostatError(RuntimeError):
    """A thermostat that the step size cannot follow; this step has moved nothing."""


def check_thermostat(
    group: Mapping[str, Any],
    size: Mapping[str, Any],
    state: Mapping[torch.Tensor, Any],
    resting: Sequence[int] = (),
    readable: bool = True,
    ranks: Ranks | None = None,
) -> None:
    """Raise unless the letters C and E can follow the thermostat of a part with this step size.

    Near equilibrium they are leapfrog for K = pᵀp and ξ: dK = −2Nτ ξ dt, dξ = ε(K − Nτ) dt, an oscillator of frequency
    ω² = 2εNτ, and leapfrog is stable for (hω)² < 4. But momenta start at rest: ξ falls until they have grown, and then
    overshoots. Measured on free particles (2,000 steps, three starts), h|ξ| stays below 88 up to (hω)² = 0.8, 1.0, 1.2
    and 2.0 for applied noise of σ²h/τ = 1e-9, 1e-7, 1e-5 and 1e-3; without any noise or force it does not even for
    0.2. So the bound on (hω)² is 1, and hξ is looked at as well, for those with too little noise or a huge gradient:
    above 88 it is a finite friction that ends all momenta, and warns; below −88 it would blow them up, and is refused.
    Where nothing moves, neither momenta nor a force, ξ may fall further: there is nothing that it could drive.
    """
    h, ξ = size["lr"], size["ξ"]
    fast = 2 * h * h * size["ε"] * size["N"] * size["τ"]
    if isinstance(ξ, torch.Tensor):
        # plain numbers are faster; one on another device is not read, for that would wait for it
        ξ = 0.0 if not readable else ξ if ξ.dim() else ξ.item()
    if isinstance(fast, torch.Tensor) and not readable:
        return
    strongest = furthest_from_zero(h * ξ) if isinstance(h, torch.Tensor) else abs(h) * furthest_from_zero(ξ)
    if not (furthest_from_zero(fast) <= FASTEST and strongest <= STRONGEST):
        _look_closer(group, size, state, resting, fast, h * ξ, ranks)


def furthest_from_zero(x: Any) -> float:
    """The largest |x|; nan where one is nan."""
    if not isinstance(x, torch.Tensor):
        return abs(x)
    least, most = torch.aminmax(x)
    return max(-least.item(), most.item())


def _look_closer(
    group: Mapping[str, Any],
    size: Mapping[str, Any],
    state: Mapping[torch.Tensor, Any],
    resting: Sequence[int],
    fast: Any,
    strong: Any,
    ranks: Ranks | None,
) -> None:
    """Some bound is passed: is it that of a replica that moves, and must the step be refused?"""
    numbers = (torch.as_tensor(x, dtype=torch.float64) for x in (fast, strong, size["σ"], size["ω"], size["lr"]))
    fast, strong, σ, ω, h = torch.broadcast_tensors(*numbers)
    moving = _moving(group["params"], state, strong)
    if ranks is not None:  # all must come to the same decision
        moving = ranks.worst(moving.double()) > 0
    driven = (strong < -STRONGEST) & (moving | (σ != 0) | (ω != 0))
    bad = (~(fast <= FASTEST) | driven | (strong < -FURTHEST) | ~strong.isfinite()) & (h != 0)
    stuck = strong > STRONGEST
    if bad.dim():
        bad[list(resting)] = stuck[list(resting)] = False
    if bool(bad.any()):
        first = int(bad.nonzero()[0]) if bad.dim() else None
        values = {symbol: _pick(size[symbol], first) for symbol in ("lr", "ε", "N", "τ", "ξ")}
        raise ThermostatError(_message(group["where"], group["normalised"], values, first))
    if bool(stuck.any()):
        # without the value of ξ, so that python shows it once and not at every step
        warn(
            f"part {group['where']!r}: the thermostat has run away upwards: hξ is more than {STRONGEST:.0f}, so that "
            "no momentum outlives a step, and it comes back by h²εNτ a step only; start anew with a smaller lr or "
            "coupling, or clip the gradient"
        )


def _moving(params: Sequence[torch.Tensor], state: Mapping[torch.Tensor, Any], like: torch.Tensor) -> torch.Tensor:
    """Has any of the parameters a momentum or a gradient that is not 0? One answer, or one for each replica."""
    found = torch.zeros_like(like, dtype=torch.bool)
    for param in params:
        for x in (param.grad, state.get(param, {}).get("momentum")):
            if x is not None and local(x).numel():
                found |= (local(x) != 0).reshape(max(like.numel(), 1), -1).any(1).view(like.shape).to(like.device)
    return found


def _pick(x: Any, replica: int | None) -> float:
    return float(x[replica] if isinstance(x, torch.Tensor) and x.dim() else x)


def _message(where: str, normalised: bool, size: Mapping[str, float], replica: int | None) -> str:
    h, ε, N, τ, ξ = size.values()
    part = f"part {where!r}" + (f", replica {replica}" if replica is not None else "")
    values = f"h = lr = {h:.3g}, ε = {'coupling/N' if normalised else 'coupling'} = {ε:.3g}, N = {N:.0f}, τ = {τ:.3g}"
    fast = 2 * h * h * ε * N * τ
    if fast <= FASTEST:
        return (
            f"{part}: the thermostat has run away: hξ = {h * ξ:.3g} must be finite and at least −{STRONGEST:.0f} "
            f"(ξ = {ξ:.3g}, {values}). Nothing was moved: start anew with a smaller lr or coupling, or clip gradients"
        )
    largest = FASTEST / (2 * h * h * τ)
    cure = f"coupling={0.1 * largest:.2g}" if normalised else f"coupling={0.1 * largest / N:.2g}"
    other = "" if normalised else f", or normalised=True (ε = coupling/N) with coupling={0.1 * largest:.2g}"
    return (
        f"{part}: the thermostat is too fast for the step: 2h²εNτ = {fast:.3g} must be at most {FASTEST:g} ({values}). "
        f"Nothing was moved: use e.g. {cure}{other}, or lower lr"
    )
