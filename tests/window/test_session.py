"""Sessions: a page, the process that trains for it, and what happens when one of them ends."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from tether.window.packing import arrays_of
from tether.window.painter import Painter
from tether.window.problems import problem_of
from tether.window.runner import Runner
from tether.window.session import Session
from tether.window.setting import read_setting
from tether.window.worker import Workers

SETTING = {"replicas": 3, "hidden": [5], "dynamics": [{"method": "adlala"}, {"method": "adam"}]}


class Page:
    """Takes what a session sends, and draws at once."""

    def __init__(self, workers):
        self.got, self.new = [], threading.Condition()
        self.session = Session(self.take, workers)

    def take(self, header, body):
        with self.new:
            self.got.append((header, body))
            self.new.notify_all()
        if header["type"] == "frame":
            self.session.receive({"type": "ack"})

    def wait(self, kind, since=0, **want):
        def found():
            return [m for m in self.got[since:] if m[0]["type"] == kind and all(m[0][k] == v for k, v in want.items())]

        with self.new:
            assert self.new.wait_for(found, timeout=60), f"no {kind}: {[m[0]['type'] for m in self.got[since:]]}"
            return found()[-1]

    def begin(self, setting=SETTING):
        self.session.receive({"type": "set", "setting": setting})
        self.wait("frame")

    @property
    def process(self):
        return self.session._worker._process


@pytest.fixture(scope="module")
def workers():
    workers = Workers()
    yield workers
    workers.close()


def test_a_frame_of_the_process_is_what_this_process_paints(workers):
    page = Page(workers)
    page.begin()
    page.session.receive({"type": "view", "replica": -1, "pair": [0, 1], "shows": "weights"})
    page.session.receive({"type": "run", "steps": 7})
    header, body = page.wait("frame", step=7)
    page.session.close()
    setting = read_setting(SETTING)
    problem = problem_of(setting)
    runners = [Runner(setting, problem, row) for row in setting.dynamics]
    for _ in range(7):
        for runner in runners:
            runner.advance()
    shots = [runner.snapshot() for runner in runners]
    here = Painter(setting, problem).frame(shots, {"replica": -1, "pair": (0, 1), "shows": "weights"}, True)
    one, other = arrays_of(header, body), arrays_of(*here)
    for name in ("fields", "histograms", "most", "weights0", "weights1"):
        assert np.array_equal(one[name], other[name]), name
    assert [row["scores"] for row in header["rows"]] == [row["scores"] for row in here[0]["rows"]]
    assert one["histograms"].sum(-1).tolist() == [[30, 15, 15, 3]] * 2


def test_a_process_that_is_free_serves_the_next_page_and_it_begins_anew(workers):
    first = Page(workers)
    first.begin()
    first.session.receive({"type": "run"})
    process = first.process
    first.session.close()
    second = Page(workers)
    assert second.process is process
    second.begin()
    header, _ = second.wait("frame")
    assert header["step"] == 0
    assert header["first"]
    third = Page(workers)  # two pages at a time: two processes
    assert third.process is not process
    third.begin()
    for page in (second, third):
        page.session.close()
    assert process.poll() is None or third.process.poll() is None  # one is kept
    assert process.poll() is not None or third.process.poll() is not None  # and only one


def test_a_process_that_is_killed_is_told_and_the_next_page_gets_another(workers):
    page, other = Page(workers), Page(workers)
    page.begin()
    other.begin()
    page.session.receive({"type": "run"})
    page.process.kill()
    header, _ = page.wait("gone")
    assert "process that trains has ended" in header["message"]
    page.session.receive({"type": "run"})  # nobody is there: no error, no waiting
    page.session.close()
    other.session.receive({"type": "run", "steps": 3})
    other.wait("frame", step=3)
    again = Page(workers)
    again.begin()
    for one in (other, again):
        one.session.close()


def test_a_process_that_does_not_answer_is_ended_with_its_session(workers, monkeypatch):
    monkeypatch.setattr("tether.window.session.PATIENCE", 0.2)
    page = Page(workers)
    page.begin()
    process = page.process
    os.kill(process.pid, signal.SIGSTOP)
    began = time.monotonic()
    page.session.close()
    assert time.monotonic() - began < 30
    assert process.poll() is not None


def test_closing_everything_ends_a_session_that_waits():
    workers = Workers()
    page = Page(workers)
    page.begin()
    page.session.receive({"type": "run"})
    workers.close()
    page.wait("gone")
    page.session.close()
    assert page.process.poll() is not None


def test_nothing_that_a_page_sends_ends_its_session(workers):
    page = Page(workers)
    page.begin()
    for nonsense in (None, [], "free", 3, {}, {"type": None}, {"type": "close"}):
        since = len(page.got)
        page.session.receive(nonsense)
        page.wait("error", since)
    page.session.receive({"type": "run", "steps": 2})
    page.wait("frame", step=2)
    page.session.close()


def test_the_process_ends_with_the_one_that_started_it():
    code = (
        "from tether.window.worker import Workers; w = Workers(); print(w._free[0]._process.pid, flush=True); input()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    for pipe in (parent.stdin, parent.stdout):
        pipe.close()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the process that trains outlived the one that started it")
