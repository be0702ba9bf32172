"""One dynamics of the window: its networks, its optimizer, and all that has been changed on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tether.loop.record import Log, Record
from tether.loop.run import Run
from tether.optimizer import Optimizer
from tether.window.dynamics import adjust, optimizer_of, same_kind
from tether.window.problems import Problem
from tether.window.setting import Setting

__all__ = ["Change", "Runner", "Snapshot"]

KEPT = 3000  # points of a trajectory


@dataclass(frozen=True)
class Change:
    """What was changed before a step: numbers of the optimizer, or the whole row that it is made from."""

    step: int
    numbers: tuple[tuple[int, str, float], ...] = ()
    row: Mapping[str, Any] | None = None
    seed: int = 0


@dataclass(frozen=True)
class Snapshot:
    """The state of one dynamics between two steps, copied, so that it can be drawn while training goes on."""

    step: int
    tensors: list[torch.Tensor]
    names: list[str]
    groups: list[dict[str, Any]]
    temperatures: list[float]
    violation: float
    trail: torch.Tensor
    visits: torch.Tensor | None  # places of a particle since the last snapshot
    stopped: int
    word: str  # what went wrong last, if anything


class Runner:
    """Trains the replicas of one dynamics step by step, exactly as `tether.train` does."""

    def __init__(self, setting: Setting, problem: Problem, row: Mapping[str, Any]) -> None:
        self.setting, self.problem, self.row, self.first = setting, problem, row, row
        self.nets = problem.replicas(setting)
        self.opt = optimizer_of(row, self.nets, setting.seed)
        self.log, self.step, self.rebuilt = Log(Record()), 0, 0
        self.word, self.failed = "", False
        self.changes: list[Change] = []
        self.pair: tuple[int, int] = (0, 1)
        self.replica = 0
        self.trail: list[tuple[float, float]] = []
        self.visits: list[torch.Tensor] = []
        self._begin()

    def _begin(self) -> None:
        s = self.setting
        data = self.problem.train
        self.batch = None if data is None or s.batch is None or s.batch >= len(data[0]) else s.batch
        self.run = Run(
            self.nets, self.opt, data, self.problem.loss, self.batch, False, False, s.seed, True, resumable=False
        )

    def advance(self) -> None:
        """One step of the optimizer. What the library refuses is kept to be shown; then the run rests."""
        if self.over:
            return
        try:
            self.run.step(self.step, None if self.run.stream is None else self.run.stream(self.step), self.log)
            self.step += 1
        except (RuntimeError, ValueError) as error:
            self.word, self.failed = str(error), True
        if self.log.stopped:
            numbers = ", ".join(map(str, self.log.stopped))
            self.word = f"replica {numbers} diverged at step {max(self.log.stopped.values())}: lower lr"

    @property
    def over(self) -> bool:
        """Has every replica diverged, or does the optimizer refuse to go on?"""
        return self.failed or len(self.log.stopped) == len(self.nets)

    def alter(self, row: Mapping[str, Any], wanted: torch.optim.Optimizer) -> None:
        """Go on by another row. `wanted` is its optimizer, built for networks of no other use."""
        if same_kind(self.opt, wanted):
            numbers = tuple(adjust(self.opt, wanted))
            if numbers:
                self.changes.append(Change(self.step, numbers))
        else:
            self.run.release()
            self.rebuilt += 1
            seed = self.setting.seed + self.rebuilt  # the noise of a new optimizer begins anew: by another name
            self.opt = optimizer_of(row, self.nets, seed)
            self.changes.append(Change(self.step, row=row, seed=seed))
            self.log.stopped.clear()
            self._begin()
        self.row, self.failed, self.word = row, False, ""

    def watch(self, replica: int, pair: tuple[int, int]) -> None:
        """Follow another pair of weights."""
        if (replica, pair) != (self.replica, self.pair):
            self.replica, self.pair = replica, pair
            self.trail.clear()

    def note(self) -> None:
        """Add the present place of the pair to its trail."""
        x = list(self.nets.parameters())
        if self.problem.train is None and len(self.visits) < KEPT:
            self.visits.append(x[0].detach().clone())
        place: list[float] = []
        offset = 0
        wanted = sorted(set(self.pair))
        for tensor in x:
            size = tensor[0].numel()
            while wanted and wanted[0] < offset + size:
                place.append(float(tensor.detach()[self.replica].reshape(-1)[wanted.pop(0) - offset]))
            offset += size
        if len(place) == 2:
            self.trail.append((place[0], place[1]) if self.pair[0] <= self.pair[1] else (place[1], place[0]))
            if len(self.trail) > KEPT:
                del self.trail[: KEPT // 3]

    @torch.no_grad()
    def snapshot(self) -> Snapshot:
        """A copy of everything that is drawn. Sleeping weights have their values in it."""
        with self.run.shown():
            tensors = [x.detach().clone() for x in self.nets.parameters()]
        names = [name for name, _ in self.nets.named_parameters()]
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.opt.param_groups]
        heat: list[float] = []
        violation = 0.0
        if isinstance(self.opt, Optimizer):
            heat = [float(x.nanmean()) for x in self.opt.temperature().values()]
            violation = float(self.opt.violation().max())
        visits, self.visits = (torch.cat(self.visits) if self.visits else None), []
        rest = len(self.log.stopped), self.word
        return Snapshot(self.step, tensors, names, groups, heat, violation, torch.tensor(self.trail), visits, *rest)
