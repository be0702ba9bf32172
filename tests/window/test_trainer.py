"""The trainer: what a page asks for and gets, without a browser and in this process."""

import threading
import time

import pytest
import torch

import tether
from tether.window.trainer import FULL, Shots, Trainer

SETTING = {"replicas": 2, "hidden": [4], "dynamics": [{"method": "langevin"}, {"method": "adlala"}, {"method": "adam"}]}


class Page:
    """Takes what a trainer sends, and draws at once."""

    def __init__(self, draws=True):
        self.got, self.new, self.draws = [], threading.Condition(), draws
        self.trainer = Trainer(self.take)
        self.thread = threading.Thread(target=self.trainer.work, daemon=True)
        self.thread.start()

    def take(self, message):
        if isinstance(message, Shots):
            message = {"type": "shots", "step": max(one.step for one in message.snapshots), "shots": message}
        with self.new:
            self.got.append(message)
            self.new.notify_all()
        if message["type"] == "shots" and self.draws:
            self.trainer.receive({"type": "ack"})

    def close(self):
        self.trainer.close()
        self.thread.join(60)
        assert not self.thread.is_alive()

    def wait(self, kind, since=0, **want):
        def found():
            return [h for h in self.got[since:] if h["type"] == kind and all(h[k] == v for k, v in want.items())]

        with self.new:
            assert self.new.wait_for(found, timeout=60), f"no {kind} {want}: {[h['type'] for h in self.got[since:]]}"
            return found()[-1]

    def do(self, answer, **command):
        since = len(self.got)
        self.trainer.receive(command)
        return self.wait(answer, since)


@pytest.fixture
def page():
    page = Page()
    yield page
    page.close()


def numbers(code):
    """The networks that a program leaves behind: it is run as it stands."""
    seen = []
    exec(code.replace("print(", "seen.append("), {"seen": seen})
    return seen


def test_the_code_makes_the_same_bits_after_changes_of_numbers_words_and_surfaces(page):
    page.do("setting", type="set", setting=SETTING)
    page.do("running", type="run", on=False, steps=30)
    page.wait("running", on=False)
    second = {
        **SETTING,
        "dynamics": [{"method": "langevin", "fields": {"temperature": 0.01}}, *SETTING["dynamics"][1:]],
    }
    page.do("setting", type="set", setting=second)
    page.do("running", type="run", steps=17)
    page.wait("running", len(page.got) - 1, on=False)
    parts = [{"where": "*.weight", "word": "BAOAB", "on": {"kind": "Circle", "radius": 1.5}, "temperature": 1e-3}, {}]
    sleepy = [{"where": "0.weight", "word": "X", "rhythm": {"kind": "Sleep", "share": 0.5, "nap": 4}}, {}]
    third = {**SETTING, "dynamics": [{"parts": parts}, {"parts": sleepy}, {"method": "adam", "fields": {"lr": 0.01}}]}
    page.do("setting", type="set", setting=third)
    since = len(page.got)
    page.trainer.receive({"type": "run", "steps": 21})
    page.wait("running", since, on=False)
    code = page.do("code", type="code")["code"]
    for runner, sums in zip(page.trainer.runners, numbers(code), strict=True):
        assert runner.step == 68
        with runner.run.shown():
            assert sums == [float(p.detach().double().sum()) for p in runner.nets.parameters()]


def test_a_wrong_word_shows_its_caret_and_stops_nothing(page):
    page.do("setting", type="set", setting=SETTING)
    page.do("running", type="run")
    bad = {**SETTING, "dynamics": [{"method": "sgd"}, {"parts": [{"word": "BAZ"}]}]}
    error = page.do("error", type="set", setting=bad)
    assert (error["at"], error["caret"]) == (["dynamics", 1, "parts", 0, "word"], 2)
    before = page.trainer.runners[0].step
    for _ in range(200):  # a frame may have been made before
        page.wait("shots", len(page.got))
        if page.trainer.runners[0].step > before:
            break
    assert page.trainer.running
    assert len(page.trainer.runners) == 3
    assert page.trainer.runners[0].step > before
    assert page.do("word", type="word", word="BAZ")["caret"] == 2


@pytest.mark.parametrize(
    "command", [None, 3, [], {}, {"type": "close"}, {"type": "_obey"}, {"type": "set"}, {"type": "set", "setting": 3}]
)
def test_nonsense_is_answered_by_an_error_and_changes_nothing(page, command):
    page.do("setting", type="set", setting=SETTING)
    since = len(page.got)
    page.trainer.receive(command)
    page.wait("error", since)
    assert page.do("setting", type="set", setting=SETTING)


def test_pause_step_speed_and_a_late_dynamics(page):
    page.do("setting", type="set", setting=SETTING)
    page.do("running", type="run", on=False, steps=5)
    page.wait("shots", step=5)
    page.trainer.receive({"type": "speed", "speed": 50})
    page.do("running", type="run")
    began, first = time.monotonic(), page.trainer.runners[0].step
    time.sleep(0.5)
    made = page.trainer.runners[0].step - first
    assert 1 <= made <= 55 * (time.monotonic() - began) + 6
    page.do("running", type="run", on=False)
    more = {**SETTING, "dynamics": [*SETTING["dynamics"], {"method": "sgd"}]}
    page.do("setting", type="set", setting=more)
    assert page.trainer.runners[3].step == 0
    page.trainer.receive({"type": "speed", "speed": 0})
    page.do("running", type="run")
    deadline = time.monotonic() + 60
    while page.trainer.runners[3].step < page.trainer.runners[0].step and time.monotonic() < deadline:
        time.sleep(0.01)
    assert page.trainer.runners[3].step > 5  # it has caught up


def test_the_same_seed_is_the_same_run_and_another_is_not(page):
    ends = []
    for seed in (0, 0, 1):
        page.do("setting", type="set", setting={**SETTING, "seed": seed}, fresh=True)
        since = len(page.got)
        page.trainer.receive({"type": "run", "steps": 20})
        page.wait("running", since, on=False)
        ends.append([p.detach().clone() for p in page.trainer.runners[1].nets.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(ends[0], ends[1], strict=True))
    assert not torch.equal(ends[0][0], ends[2][0])


@pytest.mark.filterwarnings("ignore:replica")
def test_a_run_that_diverges_rests_and_says_so(page):
    wild = {**SETTING, "dynamics": [{"parts": [{"word": "X", "lr": 1e30}]}]}
    page.do("setting", type="set", setting=wild)
    page.trainer.receive({"type": "run"})
    page.wait("running", on=False)
    for _ in range(5):  # a frame may have been on its way
        got = page.do("shots", type="view", replica=-1, pair=[0, 1])
    assert got["shots"].snapshots[0].stopped == 2
    assert "diverged at step" in got["shots"].snapshots[0].word


@pytest.mark.filterwarnings("ignore:replica")
def test_one_that_diverges_does_not_hold_up_the_others(page):
    mixed = {**SETTING, "dynamics": [{"parts": [{"word": "X", "lr": 1e30}]}, {"method": "adlala"}]}
    page.do("setting", type="set", setting=mixed)
    page.do("running", type="run")
    deadline = time.monotonic() + 60
    while (got := page.wait("shots"))["step"] < 100 and time.monotonic() < deadline:
        time.sleep(0.01)
    shots = got["shots"]
    wild, tame = shots.snapshots
    assert wild.stopped == 2
    assert tame.step > wild.step
    assert tame.stopped == 0
    assert shots.told["rate"] > 0  # of those that go on


def test_snapshots_are_taken_when_the_last_was_drawn_and_not_before():
    page = Page(draws=False)
    try:
        page.do("setting", type="set", setting=SETTING)
        page.wait("shots")
        page.trainer.receive({"type": "run"})
        time.sleep(0.3)
        page.trainer.receive({"type": "ack"})
        page.wait("shots", len(page.got) - 1)
        time.sleep(0.5)
        assert [message["type"] for message in page.got].count("shots") == 2
        assert page.trainer.runners[0].step > page.got[-1]["step"]
    finally:
        page.close()


def test_readings_come_with_full_frames_alone_and_trails_if_they_are_shown(page):
    page.do("setting", type="set", setting=SETTING)
    page.do("running", type="run")
    began, since, seen = time.monotonic(), len(page.got), []
    while {shots.full for shots in seen} != {True, False} and time.monotonic() < began + 60:
        time.sleep(1.5)
        took, seen = time.monotonic() - began, [m["shots"] for m in page.got[since:] if m["type"] == "shots"]
    assert 1 <= sum(shots.full for shots in seen) <= took / FULL + 2
    assert not all(shots.full for shots in seen)
    assert all((one.readings is not None) == shots.full for shots in seen for one in shots.snapshots)
    assert not any(len(one.trail) for shots in seen for one in shots.snapshots)
    since = len(page.got)
    page.trainer.receive({"type": "view", "replica": 1, "pair": [2, 3], "shows": "trail"})
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        shots = page.wait("shots", since)["shots"]
        if len(shots.snapshots[0].trail) > 3:
            break
        time.sleep(0.01)
    now = shots.snapshots[0]
    assert shots.setting is None  # it came with the first snapshots of the run
    assert now.trail.shape[1] == 2
    assert abs(now.trail[-1] - now.weights[1, 2:4]).max() < 0.5  # noted a few steps before


def test_a_paused_run_sends_one_frame_for_a_change_and_then_none(page):
    page.do("setting", type="set", setting=SETTING)
    page.do("running", type="run", on=False, steps=3)
    page.wait("shots", step=3)
    time.sleep(0.3)
    since = len(page.got)
    time.sleep(0.4)
    assert len(page.got) == since
    page.do("shots", type="view", replica=0, pair=[0, 1])
    time.sleep(0.4)
    assert len(page.got) == since + 1


def test_train_goes_on_where_an_earlier_call_ended():
    x, y = tether.data.spiral(50)

    def run(*calls):
        nets = tether.Replicas(lambda: torch.nn.Linear(2, 2), 3)
        opt = tether.methods.langevin(nets, lr=0.1)
        for options in calls:
            tether.train(nets, opt, (x, y), batch=8, **options)
        return nets.state_dict()

    once, twice = run({"steps": 30}), run({"steps": 11}, {"steps": 30, "first": 11})
    assert all(torch.equal(once[name], twice[name]) for name in once)
    with pytest.raises(ValueError, match="first=31"):
        run({"steps": 30, "first": 31})
