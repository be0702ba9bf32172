"""Kinetic temperature and equipartition: has every tensor the kinetic energy of its temperature?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.optim import SGD

from tether.constrain import is_constrained
from tether.engine.given import named as named_in
from tether.engine.readings import squares
from tether.loop.train import Record
from tether.measure.series import mean_and_error
from tether.optimizer import Optimizer

__all__ = ["Equipartition", "Reading", "equipartition", "kinetic_temperature", "thermometer"]

PREFIX = "kinetic temperature of "


class Reading(NamedTuple):
    """⟨p²⟩ of one tensor, or of all that a surface holds together."""

    name: str
    part: str
    mean: float
    error: float  # standard error
    target: float  # τ; nan where none is set
    degrees: int


@dataclass(frozen=True)
class Equipartition:
    """⟨p_i²⟩ = τ (3.38), tensor by tensor."""

    rows: list[Reading]
    times: int  # how many readings each row is the mean of

    @property
    def mean(self) -> float:
        """Over all degrees of freedom."""
        return sum(row.mean * row.degrees for row in self.rows) / sum(row.degrees for row in self.rows)

    @property
    def parts(self) -> dict[str, float]:
        """Kinetic temperature of each part, as ``opt.temperature()``."""
        squares: dict[str, list[tuple[float, int]]] = {}
        for row in self.rows:
            squares.setdefault(row.part, []).append((row.mean, row.degrees))
        return {part: sum(x * n for x, n in rows) / sum(n for _, n in rows) for part, rows in squares.items()}

    @property
    def largest(self) -> float:
        """The largest deviation from a target, in standard errors."""
        away = [abs(row.mean - row.target) / row.error for row in self.rows if row.error > 0]
        return max((x for x in away if not math.isnan(x)), default=math.nan)

    @property
    def table(self) -> str:
        """A row for each tensor."""
        width = max(len(row.name) for row in self.rows)
        lines = [f"{'':<{width}}  degrees      ⟨p²⟩      error          τ"]
        for row in self.rows:
            numbers = f"{row.mean:>9.4g}  {row.error:>9.2g}  {row.target:>9.4g}"
            lines.append(f"{row.name:<{width}}  {row.degrees:>7}  {numbers}")
        return "\n".join(lines)

    def __str__(self) -> str:
        degrees = sum(row.degrees for row in self.rows)
        text = f"kinetic temperature {self.mean:.4g} over {degrees} degrees of freedom in {len(self.rows)} tensors"
        return text + ("" if math.isnan(self.largest) else f", at most {self.largest:.2g} standard errors off")

    def plot(self, ax: Any = None) -> Any:
        """⟨p²⟩ of every tensor with its standard error, and the τ it should have."""
        import matplotlib.pyplot as plt

        ax = plt.subplots(layout="constrained")[1] if ax is None else ax
        places = range(len(self.rows))
        means, errors, targets = ([getattr(row, x) for row in self.rows] for x in ("mean", "error", "target"))
        ax.errorbar(places, means, errors, fmt="o", markersize=4, capsize=3, label="⟨p²⟩")
        ax.hlines(targets, [k - 0.4 for k in places], [k + 0.4 for k in places], color="#c2452d", label="τ")
        ax.set_xticks(list(places), [row.name for row in self.rows], rotation=45, ha="right")
        ax.set(xlabel="tensor", ylabel="kinetic temperature")
        if min(means) > 0 and max(means) > 30 * min(means):
            ax.set_yscale("log")
        ax.legend(frameon=False)
        return ax


def kinetic_temperature(opt: torch.optim.Optimizer) -> Any:
    """pᵀp/N of every tensor, as the last step left its momenta; a list of results where the optimizer holds replicas.

    The standard error is that of independent Gaussian momenta, ``τ √(2/N)``. At which point of a step the momenta are
    read is documented in `tether.Optimizer.temperature`. Overdamped parts have no momenta and are left out.

    >>> from tether import methods
    >>> net = torch.nn.Linear(100, 100)
    >>> opt = methods.langevin(net, lr=0.1, temperature=0.01, friction=float("inf"))
    >>> net(torch.ones(1, 100)).sum().backward(); opt.step()
    >>> print(kinetic_temperature(opt))  # infinite friction draws the momenta anew
    kinetic temperature 0.009996 over 10100 degrees of freedom in 2 tensors, at most 0.73 standard errors off

    Args:
        opt: a tether.Optimizer, or ``torch.optim.SGD`` with momentum. SGD with momentum is Langevin dynamics without
            noise (word OBA) with step √lr and p = −√lr v, where v is the momentum buffer; it is read after the kick.
            Other optimizers, such as Adam, have no kinetic energy.
    """
    readings = list(_readings(opt))
    many = isinstance(opt, Optimizer) and opt.replicas
    results = []
    for i in range(len(readings[0].squares)):
        rows = []
        for r in readings:
            mean, target = float(r.squares[i]) / r.degrees, float(r.targets[i])
            error = (mean if math.isnan(target) else target) * math.sqrt(2 / r.degrees)
            rows.append(Reading(r.name, r.part, mean, error, target, r.degrees))
        results.append(Equipartition(rows, 1))
    return results if many else results[0]


def thermometer(step: int, model: torch.nn.Module, opt: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """A callback of `tether.train` that records the kinetic temperature of every tensor, for `equipartition`."""
    found = {PREFIX + r.name: r.squares / r.degrees for r in _readings(opt)}
    many = isinstance(opt, Optimizer) and opt.replicas
    return found if many else {name: x.squeeze(0) for name, x in found.items()}


def equipartition(record: Record, opt: torch.optim.Optimizer, burn_in: int = 0) -> Equipartition:
    """The table of ⟨p_i²⟩ = τ (3.38) over a run, with standard errors; over all replicas where there are some.

    >>> from tether import methods, train
    >>> net = torch.nn.Linear(20, 20)
    >>> opt = methods.langevin(net, lr=0.5, friction=1.0, temperature=0.01)
    >>> harmonic = lambda net: sum(x.square().sum() / 2 for x in net.parameters())
    >>> record = train(net, opt, None, harmonic, steps=1000, log_every=2, callbacks=[thermometer])
    >>> print(equipartition(record, opt, burn_in=100).table)
            degrees      ⟨p²⟩      error          τ
    weight      400    0.01003    2.9e-05       0.01
    bias         20    0.01045    0.00021       0.01

    Args:
        record: of `tether.train` with ``callbacks=[thermometer]``.
        opt: its optimizer, which has the target temperatures.
        burn_in: leave out the readings of so many first steps.
    """
    kept = [k for k, step in enumerate(record.steps) if step > burn_in]
    names = [name for name in record.metrics if name.startswith(PREFIX)]
    if not kept or not names:
        raise ValueError(
            f"the record holds no reading after step {burn_in}: train(..., callbacks=[tether.measure.thermometer])"
        )
    rows = []
    for r in _readings(opt):
        series = record.metrics[PREFIX + r.name][kept]
        mean, error = mean_and_error(series.reshape(len(kept), -1).T)
        rows.append(Reading(r.name, r.part, mean, error, float(r.targets.mean()), r.degrees))
    return Equipartition(rows, series.numel())


class _Squares(NamedTuple):
    name: str
    part: str
    squares: torch.Tensor  # pᵀp of each replica
    targets: torch.Tensor  # τ of each replica
    degrees: int


def _readings(opt: torch.optim.Optimizer) -> Iterator[_Squares]:
    found = list(_own(opt) if isinstance(opt, Optimizer) else _torch(opt))
    if not found:
        raise ValueError(
            "no part has momenta, so there is no kinetic temperature: take a step first, by a word that kicks momenta "
            "such as BAOAB"
        )
    return iter(found)


def _own(opt: Optimizer) -> Iterator[_Squares]:
    for part, row in zip(opt.labels(), opt.rows, strict=True):
        targets = torch.as_tensor(row.group["temperature"], dtype=torch.float64).cpu().expand(opt.lanes.rows)
        for name, sums, degrees in squares(opt, row):
            if degrees:
                yield _Squares(name or part, part, sums, targets, degrees)


def _torch(opt: torch.optim.Optimizer) -> Iterator[_Squares]:
    if not isinstance(opt, SGD):
        raise TypeError(
            f"{type(opt).__name__} has no momenta with a kinetic energy: pass a tether.Optimizer, or torch.optim.SGD "
            "with momentum"
        )
    if is_constrained(opt):
        raise TypeError("the degrees of freedom under tether.constrain are not known: use tether.Optimizer with on=")
    first = 0
    for number, group in enumerate(opt.param_groups):
        named = named_in(group, first)
        first += len(named)
        if group["nesterov"] or not group["momentum"]:
            raise ValueError(
                f"group {number} has momentum={group['momentum']}, nesterov={group['nesterov']}: only plain momentum, "
                "e.g. SGD(..., momentum=0.9), is Langevin dynamics"
            )
        # θ −= lr v and v ← μ v + (1 − d) g are OBA with h² = lr (1 − d) and p = −(lr/h) v.
        scale = float(group["lr"]) / (1 - group["dampening"])
        for name, x in named:
            v = opt.state.get(x, {}).get("momentum_buffer")
            if v is not None and v.numel():
                squares = scale * v.detach().double().square().sum().reshape(1).cpu()
                yield _Squares(name, f"group {number}", squares, torch.full((1,), math.nan), v.numel())
