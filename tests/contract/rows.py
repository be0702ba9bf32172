"""The one table of the contract tests: every method, and the model and loop they are tried on.

A test of this folder takes a row's name and must hold for all of them; to put a new method under the
contract, add its row here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import pytest
import torch
from torch import nn

import tether
from tether import methods

LR = 0.05


@dataclass(frozen=True)
class Row:
    """How to build a method's optimizer, and what it is like."""

    method: Callable[..., tether.Optimizer]
    fields: dict[str, Any]
    noisy: bool = True
    closure: bool = False
    constrained: bool = False
    activation: Callable[[], nn.Module] = nn.Tanh
    measured: bool = False  # by a metric: a step depends on all weights, and the network must be one it knows
    whole: bool = False  # a step needs matrices that no rank of a sharded model has
    trains_at: float = 0.2  # a step size at which sixty steps help
    gradients: int = 1  # in a step
    tested: bool = False  # accepted or rejected by the energies
    paced: bool = False  # all parameters share one clock, which their gradients set

    def build(self, model: nn.Module, **options: Any) -> tether.Optimizer:
        return self.method(model, **{"lr": LR, **self.fields, **options})


def cola(method: Callable[..., tether.Optimizer]) -> Row:
    return Row(method, {"temperature": 1e-3}, constrained=True)


def word(text: str, **fields: Any) -> Row:
    return Row(tether.Optimizer, {"word": text, "temperature": 1e-3, **fields})


def path(**fields: Any) -> Row:
    fields["lr"] = 0.01
    return Row(methods.path_sgd, fields, noisy=False, activation=nn.ReLU, measured=True, trains_at=0.02)


ROWS = {
    "sgd": Row(methods.sgd, {}, noisy=False),
    "sgld": Row(methods.sgld, {"temperature": 1e-3}),
    "rms_sgld": Row(methods.rms_sgld, {"lr": 0.01, "temperature": 1e-4, "eps": 1e-3}, trains_at=0.02),
    "RMS with momenta": word("BAOAB", temperature=1e-4, metric=tether.RMS(0.9, eps=1e-3)),
    "langevin": Row(methods.langevin, {"temperature": 1e-3}),
    "samadams": Row(methods.samadams, {"temperature": 1e-3}, whole=True, paced=True),
    "hmc": Row(methods.hmc, {"steps": 3, "temperature": 1e-3}, closure=True, gradients=4, tested=True),
    "mala": Row(methods.mala, {"lr": 0.01, "temperature": 1e-3}, closure=True, gradients=2, tested=True, trains_at=0.1),
    "langevin_in_layers": Row(methods.langevin_in_layers, {"friction": 0.5, "temperature": 1e-3}),
    "lol": Row(methods.lol, {"output_temperature": 1e-3}),
    "dhsgd": Row(methods.dhsgd, {}, noisy=False),
    "dhsgd_contractive": Row(methods.dhsgd_contractive, {}, noisy=False),
    "dhsgd_contractive_heun": Row(
        methods.dhsgd_contractive, {"scheme": "heun"}, noisy=False, closure=True, gradients=2
    ),
    "adaptive_langevin": Row(methods.adaptive_langevin, {"temperature": 1e-3}),
    "adlala": Row(methods.adlala, {"temperature": 1e-3}),
    "circle_cola_od": cola(methods.circle_cola_od),
    "circle_cola_ud": cola(methods.circle_cola_ud),
    "sphere_cola_od": cola(methods.sphere_cola_od),
    "sphere_cola_ud": cola(methods.sphere_cola_ud),
    "orthogonal_cola_od": cola(methods.orthogonal_cola_od),
    "orthogonal_cola_ud": cola(methods.orthogonal_cola_ud),
    # fast are the last layers of the models here: 2 and 4, third, c and outer
    "multirate_sgd": Row(methods.multirate_sgd, {"fast": "[24tco]*", "k": 3}, noisy=False),
    "random_subset": Row(methods.random_subset, {"k": 3}, noisy=False, trains_at=0.05),
    "composite_sgd": Row(methods.composite_sgd, {"k": 3}, noisy=False),
    "path_sgd": path(),
    "path_sgd with momentum": path(momentum=0.9),
    "muon": Row(methods.muon, {"lr": 0.01, "weight_decay": 0.0}, noisy=False, whole=True, trains_at=0.02),
    "L": word("L"),
    "BAFEFAB": word("BAFEFAB"),
    "OBABO": word("OBABO"),
    "ABOBA": word("ABOBA"),
    "UBU": word("UBU"),
    "BAOAB at infinite friction": word("BAOAB", friction=inf),
}

every_method = pytest.mark.parametrize("name", ROWS)
every_noisy_method = pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.noisy])
one_gradient_methods = pytest.mark.parametrize("name", [name for name, row in ROWS.items() if not row.closure])


def network(name: str, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Sequential:
    """3-8-1 with the method's activation; equal weights for equal seeds, leaving the global generator as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 8), ROWS[name].activation(), nn.Linear(8, 1)).to(dtype)


def refused(name: str, model: nn.Module, message: str) -> None:
    """The method does not take the model, and says why."""
    with pytest.raises((ValueError, TypeError), match=message):
        push(model, ROWS[name].build(model))


def batch(step: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Sixteen points of a smooth function, fresh at each step."""
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(1000 + step))
    return x.to(dtype), x.sum(1, keepdim=True).sin().to(dtype)


def closure_for(model: nn.Module, opt: torch.optim.Optimizer, step: int) -> Callable[[], torch.Tensor]:
    x, y = batch(step, next(model.parameters()).dtype)

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    return closure


def train(model: nn.Module, opt: torch.optim.Optimizer, steps: int, start: int = 0) -> list[float]:
    """The usual loop; returns the losses."""
    return [float(opt.step(closure_for(model, opt, step)).detach()) for step in range(start, start + steps)]


def push(model: nn.Module, opt: torch.optim.Optimizer, scale: float = 1.0, steps: int = 1, without: str = "") -> None:
    """Steps on gradients that are the same constants whatever the parameters; `without` one has none.

    The closure returns their energy, which is linear, so that Verlet conserves it and every proposal is accepted.
    """

    def closure() -> torch.Tensor:
        energy = torch.zeros((), dtype=torch.float64)
        for i, (name, param) in enumerate(model.named_parameters()):
            ramp = torch.linspace(-1, 1, max(param.numel(), 1), dtype=torch.float64)[: param.numel()]
            absent = not param.requires_grad or name == without
            grad = (scale * (ramp + 0.1 * i)).view(param.shape).to(param.dtype)
            param.grad = None if absent else grad
            energy = energy if absent else energy + (grad.double() * param.detach().double()).sum()
        return energy

    for _ in range(steps):
        opt.step(closure)


def snapshot(model: nn.Module, opt: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """All that a step may change: parameters, their state, and the groups' counters and thermostats."""
    values = {f"θ {name}": param.detach().clone() for name, param in model.named_parameters()}
    for name, param in model.named_parameters():
        for key, value in opt.state.get(param, {}).items():
            if key != "step":  # counted in the groups; here it only stands for a parameter without momenta
                values[f"{key} {name}"] = torch.as_tensor(value).clone()
    for i, group in enumerate(opt.param_groups):
        for key in ("step", "previous_lr", "thermostat", "tested"):
            if key in group:
                values[f"{key} of group {i}"] = torch.as_tensor(group[key]).clone()
    return values


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    """Equal bit for bit, signs of zero apart."""
    assert left.keys() == right.keys()
    different = {key: (left[key] - right[key]).abs().max() for key in left if not torch.equal(left[key], right[key])}
    assert not different
