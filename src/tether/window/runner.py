"""One dynamics of the window: its networks, its optimizer, and all that has been changed on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tether.loop.record import Log, Record
from tether.loop.run import Run
from tether.window.dynamics import adjust, optimizer_of, same_kind
from tether.window.problems import Problem
from tether.window.readings import Readings, read
from tether.window.setting import Setting

__all__ = ["Change", "Runner", "Snapshot"]

KEPT, SHOWN = 3000, 1000  # points of a trajectory, and those of a snapshot


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
    weights: np.ndarray  # all parameters of each replica, one after another: (replicas, weights)
    readings: Readings | None  # None: as in the snapshot before
    trail: np.ndarray
    visits: np.ndarray | None  # places of a particle since the last snapshot
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
        self.trail, self.noted = np.empty((KEPT, 2), np.float32), 0
        self.visits: list[torch.Tensor] = []
        self._where: list[int] = []  # of the parameters in memory
        self._rows: list[np.ndarray] = []
        self._begin()

    def _begin(self) -> None:
        s = self.setting
        data = self.problem.train
        self.parameters = list(self.nets.parameters())
        self.batch = None if data is None or s.batch is None or s.batch >= len(data[0]) else s.batch
        how = (False, "shuffled", False, s.seed, True)
        self.run = Run(self.nets, self.opt, data, self.problem.loss, self.batch, *how, resumable=False)

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
            self.replica, self.pair, self.noted = replica, pair, 0

    def note(self) -> None:
        """Add the present place of the pair to its trail."""
        if self.problem.train is None and len(self.visits) < KEPT:
            self.visits.append(self.parameters[0].detach().clone())
        place = [_entry(self._values(), self.replica, i) for i in self.pair]
        if self.noted == KEPT:
            self.noted -= KEPT // 3
            self.trail[: self.noted] = self.trail[KEPT // 3 :].copy()
        self.trail[self.noted] = place
        self.noted += 1

    def snapshot(self, measured: bool = True, trail: bool = True) -> Snapshot:
        """A copy of what is drawn. Sleeping weights have their values in it. `measured`: with readings."""
        with getattr(self.opt, "awake", nullcontext)():
            weights = np.concatenate(self._values(), 1)
            readings = read(self.opt, [name for name, _ in self.nets.named_parameters()]) if measured else None
        visits, self.visits = (torch.cat(self.visits).numpy() if self.visits else None), []
        path = self.trail[max(0, self.noted - SHOWN) : self.noted].copy() if trail else self.trail[:0]
        return Snapshot(self.step, weights, readings, path, visits, len(self.log.stopped), self.word)

    def _values(self) -> list[np.ndarray]:
        """The parameters as rows of numbers, one for each replica. The arrays share their memory."""
        where = [x.data_ptr() for x in self.parameters]
        if where != self._where:
            self._where = where
            self._rows = [x.detach().view(len(x), -1).numpy() for x in self.parameters]
        return self._rows


def _entry(rows: Sequence[np.ndarray], replica: int, i: int) -> float:
    """Entry i of a replica's parameters, counted through all of them."""
    for values in rows:
        if i < values.shape[1]:
            return float(values[replica, i])
        i -= values.shape[1]
    raise IndexError(i)
