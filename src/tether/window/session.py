"""A session of the window: one page, one thread that trains, one that gets its pictures; commands are plain values."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tether.window.catalogue import about_word
from tether.window.dynamics import optimizer_of, parts_of
from tether.window.gallery import Gallery
from tether.window.problems import Problem, problem_of
from tether.window.runner import Runner, Snapshot
from tether.window.script import script
from tether.window.setting import Setting, SettingError, as_values, read_setting
from tether.window.studio import Studio

__all__ = ["Session"]

SLICE = 0.008  # seconds of training between two looks at what the page wants
NOTES = 400.0  # places of a trail in a second, at most
FULL, SHARE = 0.4, 8.0  # a full frame comes after so many seconds, and after so many times what the last one took
SHOWS = ("weights", "heat", "trail", "network")  # the instruments
Send = Callable[[dict[str, Any], bytes | None], None]
Shots = tuple[list[Snapshot], dict[str, Any], tuple[int, Setting]]  # with the view, and the run with its setting


class Session:
    """Trains what a page asks for and sends it frames; `send` is called from any thread."""

    def __init__(self, send: Send, frames_per_second: float = 32.0, studio: Studio | None = None) -> None:
        self._send, self._pause, self._gallery = send, 1 / frames_per_second, Gallery(studio)
        self._commands: deque[Mapping[str, Any]] = deque()
        self._wake, self._wanted, self._shot = threading.Event(), threading.Event(), threading.Event()
        self._asked = self._over = False
        self._ready = self._changed = True  # has the page drawn the last frame, is there anything new to draw?
        self._full = True  # is the next frame a full one?
        self._shots: Shots | None = None
        self._rate = Rate()
        self.setting: Setting | None = None
        self.begun = 0  # runs
        self.runners: list[Runner] = []
        self.running, self.speed, self.left = False, 0.0, 0
        self.view: dict[str, Any] = {"replica": 0, "pair": (0, 1), "shows": "weights"}
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._train, self._paint)]
        for thread in self._threads:
            thread.start()

    def receive(self, command: Any) -> None:
        """Take a command of the page; it is carried out between two steps."""
        if not isinstance(command, Mapping):
            self._send({"type": "error", "message": "a command is an object with a type", "at": []}, None)
        elif command.get("type") == "ack":
            self._ready = True
            self._wanted.set()
        elif len(self._commands) < 1000:
            self._commands.append(command)
            self._wake.set()

    def close(self) -> None:
        """End both threads."""
        self._over = True
        for event in (self._wake, self._wanted, self._shot):
            event.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=5)
        self._gallery.close()

    # what the page asks for, all in the thread that trains

    def _obey(self, command: Mapping[str, Any]) -> None:
        kind = command.get("type")
        self._changed = True
        try:
            action = getattr(self, f"on_{kind}", None) if isinstance(kind, str) and kind.isidentifier() else None
            if action is None:
                raise SettingError([], f"unknown command {kind!r}")
            action(command)
        except SettingError as error:
            place = {"at": error.at, "caret": error.caret, "id": command.get("id")}
            self._send({"type": "error", "message": str(error), **place}, None)
        except Exception as error:  # a page must not be able to end the thread
            told: dict[str, Any] = {"at": [], "caret": None, "id": command.get("id")}
            self._send({"type": "error", "message": f"{type(error).__name__}: {error}", **told}, None)

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
        self._send({**reply, "names": self._names(), "points": _points(problem)}, None)
        self._wanted.set()

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
        self._send({"type": "word", "word": word, "id": command.get("id"), **about_word(word)}, None)

    def on_run(self, command: Mapping[str, Any]) -> None:
        """Start or pause; ``steps`` makes so many and then rests."""
        steps = command.get("steps", 0)
        self.left = int(steps) if isinstance(steps, int | float) and 0 < steps <= 1_000_000 else 0
        self.running = bool(command.get("on", True)) or self.left > 0
        self._send({"type": "running", "on": self.running}, None)

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
        self._wanted.set()

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
            self._send({"type": "code", "code": script(self.setting, self.runners), "id": command.get("id")}, None)

    def _names(self) -> list[list[Any]]:
        """Name and shape of every parameter of one network."""
        first = self.runners[0].nets
        return [[name, list(x.shape[1:])] for name, x in first.named_parameters()]

    # the two threads

    def _train(self) -> None:
        ahead = time.perf_counter()
        noted = 0.0
        while not self._over:
            while self._commands:
                self._obey(self._commands.popleft())
            if self._asked:
                self._shoot()
            if not self.running or not self.runners:
                self._wake.wait(0.5)
                self._wake.clear()
                ahead = time.perf_counter()
                continue
            until = time.perf_counter() + SLICE
            while (now := time.perf_counter()) < until and not self._commands:
                if self.speed and now < ahead:
                    self._wake.wait(min(ahead - now, until - now))
                    if self._asked:
                        break
                    continue
                self._step()
                ahead = max(ahead, now - 0.1) + (1 / self.speed if self.speed else 0.0)
                if now - noted > 1 / NOTES or self.speed:
                    noted = now
                    for runner in self.runners:
                        runner.note()
                if not self.running or self._asked:
                    break

    def _step(self) -> None:
        """One step of every dynamics; those that were added late make theirs until they have caught up."""
        last = max(runner.step for runner in self.runners if not runner.over) if self._alive() else 0
        late = [runner for runner in self.runners if runner.step < last and not runner.over]
        for runner in late or self.runners:
            runner.advance()
        if late:
            return
        if not self._alive():
            self.running = False
            self._send({"type": "running", "on": False}, None)
        if self.left:
            self.left -= 1
            if not self.left:
                self.running = False
                self._send({"type": "running", "on": False}, None)
            self._changed = True
            self._wanted.set()

    def _alive(self) -> bool:
        return not all(runner.over for runner in self.runners)

    def _shoot(self) -> None:
        if self.setting is not None and self.runners:
            shots = [runner.snapshot(self._full) for runner in self.runners]
            self._shots = shots, dict(self.view), (self.begun, self.setting)
        self._asked = False
        self._shot.set()

    def _paint(self) -> None:
        due = 0.0  # when the next full frame is
        while not self._over:
            if not (self._ready and (self._changed or self.running)):
                self._wanted.wait(1.0)
                self._wanted.clear()
                continue
            began = time.perf_counter()
            self._full = self._changed or not self.running or began >= due
            self._ready = self._changed = False
            found = self._ask()
            if found is None or self._over:
                self._ready = True
                self._wanted.wait(0.1)
                continue
            made = time.perf_counter()
            header, body = self._gallery.frame(*found, self._full)
            if self._full:
                due = began + max(FULL, SHARE * (time.perf_counter() - made))
            header["rate"] = self._rate(found[0][0].step)
            header |= {"on": self.running, "time": made}
            self._send(header, body)
            time.sleep(max(0.0, began + self._pause - time.perf_counter()))

    def _ask(self) -> Shots | None:
        """Snapshots by the thread that trains, as soon as its step is over."""
        self._shot.clear()
        self._asked = True
        self._wake.set()
        while not self._shot.wait(1.0) and not self._over:
            pass
        found, self._shots = self._shots, None
        return found


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
