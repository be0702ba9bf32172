"""Sessions: what a page sends and gets, without a browser."""

import threading
import time

import pytest
import torch

import tether
from tether.window.session import Session

SETTING = {"replicas": 2, "hidden": [4], "dynamics": [{"method": "langevin"}, {"method": "adlala"}, {"method": "adam"}]}


class Page:
    """Takes what a session sends, and draws at once."""

    def __init__(self):
        self.got, self.new = [], threading.Condition()
        self.session = Session(self.take)

    def take(self, header, body):
        with self.new:
            self.got.append(header)
            self.new.notify_all()
        if header["type"] == "frame":
            self.session.receive({"type": "ack"})

    def wait(self, kind, since=0, **want):
        def found():
            return [h for h in self.got[since:] if h["type"] == kind and all(h[k] == v for k, v in want.items())]

        with self.new:
            assert self.new.wait_for(found, timeout=60), f"no {kind} {want}: {[h['type'] for h in self.got[since:]]}"
            return found()[-1]

    def do(self, answer, **command):
        since = len(self.got)
        self.session.receive(command)
        return self.wait(answer, since)


@pytest.fixture
def page():
    page = Page()
    yield page
    page.session.close()
    assert not any(thread.is_alive() for thread in page.session._threads)


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
    page.session.receive({"type": "run", "steps": 21})
    page.wait("running", since, on=False)
    code = page.do("code", type="code")["code"]
    for runner, sums in zip(page.session.runners, numbers(code), strict=True):
        assert runner.step == 68
        with runner.run.shown():
            assert sums == [float(p.detach().double().sum()) for p in runner.nets.parameters()]


def test_a_wrong_word_shows_its_caret_and_stops_nothing(page):
    page.do("setting", type="set", setting=SETTING)
    page.do("running", type="run")
    bad = {**SETTING, "dynamics": [{"method": "sgd"}, {"parts": [{"word": "BAZ"}]}]}
    error = page.do("error", type="set", setting=bad)
    assert (error["at"], error["caret"]) == (["dynamics", 1, "parts", 0, "word"], 2)
    before = page.session.runners[0].step
    for _ in range(200):  # a frame may have been made before
        page.wait("frame", len(page.got))
        if page.session.runners[0].step > before:
            break
    assert page.session.running
    assert len(page.session.runners) == 3
    assert page.session.runners[0].step > before
    assert page.do("word", type="word", word="BAZ")["caret"] == 2


@pytest.mark.parametrize(
    "command", [None, 3, [], {}, {"type": "close"}, {"type": "_obey"}, {"type": "set"}, {"type": "set", "setting": 3}]
)
def test_nonsense_is_answered_by_an_error_and_changes_nothing(page, command):
    page.do("setting", type="set", setting=SETTING)
    since = len(page.got)
    page.session.receive(command)
    page.wait("error", since)
    assert page.do("setting", type="set", setting=SETTING)


def test_pause_step_speed_and_a_late_dynamics(page):
    page.do("setting", type="set", setting=SETTING)
    page.do("running", type="run", on=False, steps=5)
    page.wait("frame", step=5)
    page.session.receive({"type": "speed", "speed": 50})
    page.do("running", type="run")
    began, first = time.monotonic(), page.session.runners[0].step
    time.sleep(0.5)
    made = page.session.runners[0].step - first
    assert 1 <= made <= 55 * (time.monotonic() - began) + 6
    page.do("running", type="run", on=False)
    more = {**SETTING, "dynamics": [*SETTING["dynamics"], {"method": "sgd"}]}
    page.do("setting", type="set", setting=more)
    assert page.session.runners[3].step == 0
    page.session.receive({"type": "speed", "speed": 0})
    page.do("running", type="run")
    deadline = time.monotonic() + 60
    while page.session.runners[3].step < page.session.runners[0].step and time.monotonic() < deadline:
        time.sleep(0.01)
    assert page.session.runners[3].step > 5  # it has caught up


def test_the_same_seed_is_the_same_run_and_another_is_not(page):
    ends = []
    for seed in (0, 0, 1):
        page.do("setting", type="set", setting={**SETTING, "seed": seed}, fresh=True)
        since = len(page.got)
        page.session.receive({"type": "run", "steps": 20})
        page.wait("running", since, on=False)
        ends.append([p.detach().clone() for p in page.session.runners[1].nets.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(ends[0], ends[1], strict=True))
    assert not torch.equal(ends[0][0], ends[2][0])


@pytest.mark.filterwarnings("ignore:replica")
def test_a_run_that_diverges_rests_and_says_so(page):
    wild = {**SETTING, "dynamics": [{"parts": [{"word": "X", "lr": 1e30}]}]}
    page.do("setting", type="set", setting=wild)
    page.session.receive({"type": "run"})
    page.wait("running", on=False)
    for _ in range(5):  # a frame may have been on its way
        frame = page.do("frame", type="view", replica=-1, pair=[0, 1])
    assert frame["rows"][0]["stopped"] == 2
    assert "diverged at step" in frame["rows"][0]["word"]


def test_frames_are_sent_when_the_last_was_drawn_and_not_before():
    got = []
    session = Session(lambda header, body: got.append(header["type"]))  # never acknowledges
    try:
        session.receive({"type": "set", "setting": SETTING})
        session.receive({"type": "run"})
        deadline = time.monotonic() + 60
        while "frame" not in got and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.5)
        assert got.count("frame") == 1
        assert session.runners[0].step > 1
    finally:
        session.close()


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
