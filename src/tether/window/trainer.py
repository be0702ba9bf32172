"""What a page asks for, carried out: commands are plain values, snapshots go out when the page has drawn the last."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tether.window.catalogue import about_word
from tether.window.dynamics import optimizer_of, parts_of
from tether.window.problems import Problem, problem_of
from tether.window.runner import Runner, Snapshot
from tether.window.script import script
from tether.window.setting import Setting, SettingError, as_values, read_setting

__all__ = ["Shots", "Trainer"]

NOTES, UNSEEN = 400.0, 50.0  # places of a trail in a second, at most: while it is shown, and while it is not
PAUSE = 1 / 36  # seconds between two snapshots, at least: less than the painter's, so that it never waits for one
FULL, SHARE = 0.4, 8.0  # a full frame comes after so many seconds, and after so many times what the last one took
SHOWS = ("weights", "heat", "trail", "network")  # the instruments
Send = Callable[["dict[str, Any] | Shots"], None]


@dataclass(frozen=True)
class Shots:
    """Snapshots of all dynamics at one moment, and how they are to be painted."""

    snapshots: list[Snapshot]
    view: dict[str, Any]
    setting: Setting | None  # with the first snapshots of a run
    full: bool
    told: dict[str, Any]  # what the header of the frame says beside what is painted


class Trainer:
    """Trains what a page asks for. Commands may come from any thread; `work` does everything else in its own."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._commands: deque[Any] = deque()
        self._wake, self._over = threading.Event(), False
        self._ready = True  # has the page drawn the last frame?
        self._moved = self._changed = False  # since then: has there been a step, has there been a command?
        self._next = self._full = 0.0  # when the next frame may come, and the next full one
        self._last = (0.0, False)  # when the last one was taken, and was it full?
        self._shown = 0  # the last run of which there were snapshots
        self._ahead = self._noted = 0.0  # when the next step may come, when the trails were noted
        self._rate = Rate()
        self.setting: Setting | None = None
        self.begun = 0  # runs
        self.runners: list[Runner] = []
        self.running, self.speed, self.left = False, 0.0, 0
        self.view: dict[str, Any] = {"replica": 0, "pair": (0, 1), "shows": "weights"}

    def receive(self, command: Any) -> None:
        """Take a command of the page; it is carried out between two steps."""
        if isinstance(command, Mapping) and command.get("type") == "ack":
            taken, full = self._last
            if full:
                self._full = taken + max(FULL, SHARE * (time.perf_counter() - taken))
            self._ready = True
        elif len(self._commands) < 1000:
            self._commands.append(command)
        self._wake.set()

    def close(self) -> None:
        """Let `work` return after the present step."""
        self._over = True
        self._wake.set()

    def work(self) -> None:
        """Carry out commands, train and take snapshots until `close`."""
        while not self._over:
            while self._commands:
                self._obey(self._commands.popleft())
            now = time.perf_counter()
            wanted = self._ready and (self._moved or self._changed) and bool(self.runners)
            if wanted and now >= self._next:
                self._shoot(now)
            elif not self.running or not self.runners:
                self._rest(self._next - now if wanted else None)
                self._ahead = time.perf_counter()
            elif self.speed and now < self._ahead:
                self._rest(min(self._ahead - now, PAUSE))
            else:
                self._advance(now)

    def _rest(self, seconds: float | None) -> None:
        self._wake.wait(seconds)
        self._wake.clear()

    def _shoot(self, now: float) -> None:
        """Snapshots of all dynamics, for one frame."""
        full = self._changed or not self.running or now >= self._full
        self._ready = self._moved = self._changed = False
        self._next, self._last = now + PAUSE, (now, full)
        trail = self.view["shows"] == "trail"
        snapshots = [runner.snapshot(full, trail) for runner in self.runners]
        told = {"rate": self._rate(max(one.step for one in snapshots)), "on": self.running, "time": now}
        new, self._shown = self.begun != self._shown, self.begun
        self._send(Shots(snapshots, self.view, self.setting if new else None, full, told))

    def _advance(self, now: float) -> None:
        self._step()
        self._moved = True
        self._ahead = max(self._ahead, now - 0.1) + (1 / self.speed if self.speed else 0.0)
        seen = self.view["shows"] == "trail" or self.problem.train is None  # a particle's places are its field
        if now - self._noted > 1 / (NOTES if seen else UNSEEN) or self.speed:
            self._noted = now
            for runner in self.runners:
                runner.note()

    # what the page asks for

    def _obey(self, command: Any) -> None:
        self._changed = True
        told: dict[str, Any] = {"at": [], "caret": None, "id": None}
        try:
            if not isinstance(command, Mapping):
                raise SettingError([], "a command is an object with a type")
            kind, told["id"] = command.get("type"), command.get("id")
            action = getattr(self, f"on_{kind}", None) if isinstance(kind, str) and kind.isidentifier() else None
            if action is None:
                raise SettingError([], f"unknown command {kind!r}")
            action(command)
        except SettingError as error:
            told |= {"at": error.at, "caret": error.caret}
            self._send({"type": "error", "message": str(error), **told})
        except Exception as error:  # a page must not be able to end the process
            self._send({"type": "error", "message": f"{type(error).__name__}: {error}", **told})

    def on_set(self, command: Mapping[str, Any]) -> None:
        """Go on with another setting; with ``fresh`` from the start. If it is wrong, nothing changes."""
        setting = read_setting(command.get("setting"))
        old, fresh = self.setting, bool(command.get("fresh"))
        problem = problem_of(setting)
        if old is None or fresh or setting.network != old.network:
            self.runners = [self._runner(i, setting, problem) for i in range(len(setting.dynamics))]
            self.begun += 1
        else:
            self._follow(setting)
        self.setting, self.problem = setting, problem
        self._watch()
        tables = [parts_of(runner.opt) for runner in self.runners]
        reply = {"type": "setting", "setting": as_values(setting), "tables": tables, "id": command.get("id")}
        self._send({**reply, "names": self._names(), "points": _points(problem)})

    def _runner(self, i: int, setting: Setting, problem: Problem) -> Runner:
        try:
            return Runner(setting, problem, setting.dynamics[i])
        except SettingError as error:
            raise error.inside("dynamics", i) from None

    def _follow(self, setting: Setting) -> None:
        """Give every dynamics its new row. All are built first, so that an error changes none."""
        assert self.setting is not None
        wanted = []
        spare = self.problem.replicas(setting)
        for i, row in enumerate(setting.dynamics):
            try:
                wanted.append(optimizer_of(row, spare, setting.seed))
            except SettingError as error:
                raise error.inside("dynamics", i) from None
            release = getattr(wanted[-1], "release", None)
            if release is not None:
                release()
        kept = self.runners[: len(wanted)]
        for runner, row, opt in zip(kept, setting.dynamics, wanted, strict=False):
            if row != runner.row:
                runner.alter(row, opt)
        for i in range(len(kept), len(wanted)):  # one that is added begins at the start and catches up
            kept.append(self._runner(i, setting, self.problem))
        self.runners = kept

    def on_word(self, command: Mapping[str, Any]) -> None:
        """Say what a word is, or what is wrong with it, while it is being typed."""
        word = str(command.get("word", ""))[:200]
        self._send({"type": "word", "word": word, "id": command.get("id"), **about_word(word)})

    def on_run(self, command: Mapping[str, Any]) -> None:
        """Start or pause; ``steps`` makes so many and then rests."""
        steps = command.get("steps", 0)
        self.left = int(steps) if isinstance(steps, int | float) and 0 < steps <= 1_000_000 else 0
        self.running = bool(command.get("on", True)) or self.left > 0
        self._send({"type": "running", "on": self.running})

    def on_speed(self, command: Mapping[str, Any]) -> None:
        """Steps in a second; 0 is as fast as it goes."""
        speed = command.get("speed", 0)
        self.speed = min(1e6, max(0.0, float(speed))) if isinstance(speed, int | float) else 0.0

    def on_view(self, command: Mapping[str, Any]) -> None:
        """Draw another replica (−1 is the mean of all), follow another pair of weights, show another instrument."""
        replica, pair, shows = command.get("replica", -1), command.get("pair", [0, 1]), command.get("shows", SHOWS[0])
        numbers = [replica, *(pair if isinstance(pair, list) and len(pair) == 2 else [None])]
        if not all(isinstance(x, int) for x in numbers) or shows not in SHOWS:
            whole = "a replica and a pair of weights, all whole numbers"
            raise SettingError(["view"], f"a view has {whole}, and shows one of {', '.join(SHOWS)}")
        self.view = {"replica": replica, "pair": (pair[0], pair[1]), "shows": shows}
        self._watch()

    def _watch(self) -> None:
        if not self.runners:
            return
        count = sum(x[0].numel() for x in self.runners[0].nets.parameters())
        chosen = [min(max(0, i), count - 1) for i in self.view["pair"]]
        replica = min(max(0, self.view["replica"]), len(self.runners[0].nets) - 1)
        for runner in self.runners:
            runner.watch(replica, (chosen[0], chosen[1]))

    def on_code(self, command: Mapping[str, Any]) -> None:
        """Send the program that makes what is shown."""
        if self.setting is not None:
            self._send({"type": "code", "code": script(self.setting, self.runners), "id": command.get("id")})

    def _names(self) -> list[list[Any]]:
        """Name and shape of every parameter of one network."""
        first = self.runners[0].nets
        return [[name, list(x.shape[1:])] for name, x in first.named_parameters()]

    # training

    def _step(self) -> None:
        """One step of every dynamics; those that were added late make theirs until they have caught up."""
        alive = [runner for runner in self.runners if not runner.over]
        last = max((runner.step for runner in alive), default=0)
        late = [runner for runner in alive if runner.step < last]
        for runner in late or alive:
            runner.advance()
        if late:
            return
        if all(runner.over for runner in alive):
            self.running = False
            self._send({"type": "running", "on": False})
        if self.left:
            self.left -= 1
            if not self.left:
                self.running = False
                self._send({"type": "running", "on": False})


class Rate:
    """Steps in a second, smoothed over the last frames."""

    def __init__(self) -> None:
        self.time, self.step, self.smooth = time.perf_counter(), 0, 0.0

    def __call__(self, step: int) -> float:
        now = time.perf_counter()
        new = max(0, step - self.step) / max(1e-6, now - self.time)
        self.time, self.step, self.smooth = now, step, 0.8 * self.smooth + 0.2 * new
        return self.smooth


def _points(problem: Problem) -> list[list[float]]:
    """The points that are drawn: x, y, class."""
    if problem.train is None:
        return []
    x, y = (values[:1000].double().reshape(len(values[:1000]), -1) for values in problem.train)
    rows = torch.cat((x, y, 0 * y), 1) if problem.classes == 0 else torch.cat((x, y), 1)
    return [[round(value, 4) for value in row] for row in rows.tolist()]
