"""Frames a second of `tether explore`, what they cost the training, and how long it takes to start.

    make bench-explore               # benchmarks/results/explore.json; two minutes; needs chromium and playwright

Four dynamics of 2-20-1 with 10 replicas and a field of 100 × 100, as fast as it goes. Three kinds of stretches take
turns: the window trains and its page draws; it trains and nobody acknowledges a frame, so that none is made; it rests,
and this program makes the same steps without a window. First with a client that draws nothing, then with chromium,
1280 × 900. Times of steps are by the clock of the process that trains. `speed` is that without a page divided by the
time of a step. The start is the time from the command to the first frame.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
import urllib.parse

import torch
from playwright.sync_api import sync_playwright
from websockets.sync.client import connect

from tether.window.problems import problem_of
from tether.window.runner import Runner
from tether.window.setting import read_setting
from timing import Run, arguments

SECONDS = 2.0  # of a stretch
ALONE, QUIET, DRAWN = "without a page", "a page without frames", "a page with frames"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
SETTING = {
    "problem": {"kind": "spiral", "points": 500, "turns": 2.0, "noise": 0.02},
    "hidden": [20],
    "activation": "relu",
    "batch": 25,
    "replicas": 10,
    "seed": 0,
    "dynamics": [
        {"method": "sgd", "fields": {"lr": 0.1}},
        {"method": "langevin", "fields": {"lr": 0.1}},
        {"method": "adlala", "fields": {"lr": 0.25, "friction": 0.5}},
        {"method": "circle_cola_ud", "fields": {"lr": 0.3, "radius": 5.0}},
    ],
}
SILENT = """() => {
    window.speak ??= tether.connection.send;
    tether.connection.send = (message) => message.type === 'ack' || speak(message);
}"""
SPEAK = """() => {
    tether.connection.send = window.speak;
    tether.connection.send({ type: 'ack' });
    return tether.frames;
}"""
NOW = "[tether.frame.step, tether.frame.time, tether.frames]"


class Null:
    """A client that acknowledges every frame and draws none."""

    def __init__(self, socket):
        self.socket, self.frames = socket, 0
        socket.send(json.dumps({"type": "set", "setting": SETTING}))
        socket.send(json.dumps({"type": "view", "replica": -1, "pair": [0, 1], "shows": "weights"}))  # as the page does
        self.next()
        self.run(True)

    def run(self, on):
        self.socket.send(json.dumps({"type": "run", "on": on}))

    def next(self):
        while isinstance(got := self.socket.recv(timeout=60), str):
            pass
        self.frames += 1
        header = json.loads(got[4 : 4 + int.from_bytes(got[:4], "little")])
        return header["step"], header["time"], self.frames

    def ask(self):
        self.socket.send('{"type": "ack"}')
        return self.next()

    def stretch(self, seconds, drawing):
        first, until = self.ask(), time.monotonic() + seconds
        while drawing and time.monotonic() < until:
            self.ask()
        time.sleep(max(0.0, until - time.monotonic()))
        return first, self.ask()


class Real:
    """A page in a browser."""

    def __init__(self, page):
        self.page = page

    def run(self, on):
        self.page.evaluate(f"tether.connection.send({{ type: 'run', on: {str(on).lower()} }})")

    def stretch(self, seconds, drawing):
        if not drawing:
            self.page.evaluate(SILENT)
            time.sleep(0.3)  # what was under way has come
        first = self.page.evaluate(NOW)
        time.sleep(seconds)
        if not drawing:
            drawn = self.page.evaluate(SPEAK)
            self.page.wait_for_function(f"tether.frames > {drawn}")  # a frame made after the silence, not before
        return first, self.page.evaluate(NOW)


class Alone:
    """The same steps in this process, without a window."""

    def __init__(self):
        setting = read_setting(SETTING)
        problem = problem_of(setting)
        self.runners = [Runner(setting, problem, row) for row in setting.dynamics]

    def stretch(self, seconds):
        """Seconds of a step of all dynamics."""
        steps, began = 0, time.perf_counter()
        while time.perf_counter() < began + seconds:
            for runner in self.runners:
                runner.advance()
            steps += 1
        return (time.perf_counter() - began) / steps


def stretches(client, alone, rounds):
    """Seconds of a step of all four dynamics in each kind of stretch, and frames a second."""
    client.stretch(2, True)
    times, frames = {ALONE: [], QUIET: [], DRAWN: []}, []
    for _ in range(rounds):
        client.run(False)
        time.sleep(0.2)  # what was under way has ended
        times[ALONE].append(alone.stretch(SECONDS))
        client.run(True)
        for label in (QUIET, DRAWN):
            first, last = client.stretch(SECONDS, label == DRAWN)
            times[label].append((last[1] - first[1]) / (last[0] - first[0]))
            if label == DRAWN:
                frames.append((last[2] - first[2]) / (last[1] - first[1]))
    more = {"frames_a_second": {DRAWN: statistics.median(frames)}}
    more["speed"] = {k: statistics.median(a / b for a, b in zip(times[ALONE], times[k], strict=True)) for k in times}
    return times, more


def cpu(pid):
    """Seconds of processor time so far."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def chromiums():
    """The processes of the browser."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                program = file.read().partition("\0")[0]
        except OSError:
            continue
        if "chrom" in program and "crashpad_handler" not in program:
            yield int(pid)


def costs(client, seconds, pids):
    """Milliseconds of processor time a frame, of each group of processes."""
    before = {name: {pid: cpu(pid) for pid in group} for name, group in pids.items()}
    first, last = client.stretch(seconds, True)
    spent = {name: sum(cpu(pid) - was for pid, was in group.items()) for name, group in before.items()}
    return {f"{name}_ms_a_frame": {DRAWN: 1000 * one / (last[2] - first[2])} for name, one in spent.items()}


def main():
    options = arguments(__doc__, rounds=8, quick=3, threads=(1,))
    browser = shutil.which("chromium")
    if browser is None:
        sys.exit("chromium is not installed: nothing measured")
    run = Run("explore", "What the window costs", options)
    torch.set_num_threads(1)
    table, alone = run.table("a step of four dynamics", ALONE, shows="ratio"), Alone()
    command = [sys.executable, "-m", "tether", "explore", "--no-browser"]
    began = time.perf_counter()
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = re.search(r"http\S+/", server.stdout.readline())[0]
        with connect(address.replace("http", "ws") + "socket", compression=None, max_size=None) as socket:
            client = Null(socket)
            start = {"start_in_s": {DRAWN: time.perf_counter() - began}}
            times, more = stretches(client, alone, options.rounds)
            spent = costs(client, 2 * SECONDS, {"server": [server.pid]})
            table.add("a client that draws nothing", times, **more, **spent, **start)
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=browser, args=FLAGS)
            page = chromium.new_page(viewport={"width": 1280, "height": 900}, bypass_csp=True)
            page.goto(address + "#" + urllib.parse.quote(json.dumps(SETTING)))
            page.wait_for_function("tether.frame !== null")
            page.evaluate("tether.toggle()")
            times, more = stretches(Real(page), alone, options.rounds)
            spent = costs(Real(page), 2 * SECONDS, {"server": [server.pid], "browser": list(chromiums())})
            table.add("chromium", times, **more, **spent)
            chromium.close()
    finally:
        server.terminate()
        server.wait()
    run.write()


if __name__ == "__main__":
    main()
