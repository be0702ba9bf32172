"""Frames a second of `tether explore`, what they cost the training, and how long it takes to start.

    python benchmarks/explore.py            one table, about a minute; needs chromium and playwright

Four dynamics of 2-20-1 with 10 replicas and a field of 100 × 100. Stretches in which frames are made and silent ones
(nobody acknowledges a frame, so none is made) alternate; the ratio of their steps a second is what the frames cost.
First with a client that draws nothing, then with chromium. All rates are by the clock of the process that trains.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
import urllib.parse

from playwright.sync_api import sync_playwright
from websockets.sync.client import connect

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
        self.next()
        socket.send(json.dumps({"type": "run", "on": True}))

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


def rounds(client, options):
    """Frames a second, steps a second with and without frames, and the ratio: medians, and the range of the ratio."""
    client.stretch(2, True)
    found = []
    for _ in range(options.rounds):
        steps, frames = [], 0.0
        for drawing in (True, False):
            first, last = client.stretch(options.seconds, drawing)
            steps.append((last[0] - first[0]) / (last[1] - first[1]))
            frames = (last[2] - first[2]) / (last[1] - first[1]) if drawing else frames
        found.append([frames, *steps, steps[0] / steps[1]])
    columns = list(zip(*found, strict=True))
    return [*map(statistics.median, columns), min(columns[3]), max(columns[3])]


def cpu(pid):
    """Seconds of processor time so far."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def chromiums():
    """The processes of the browser: their kinds by their ids."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                words = file.read()
        except OSError:
            continue
        if "chrom" in words.partition("\0")[0] and "crashpad_handler" not in words.partition("\0")[0]:
            kind = re.search(r"--type=([\w-]+)", words)
            found[int(pid)] = kind[1] if kind else "browser"
    return found


def costs(client, seconds):
    """Milliseconds of processor time a frame, for each kind of process of the browser."""
    kinds = chromiums()
    before = {pid: cpu(pid) for pid in kinds}
    first, last = client.stretch(seconds, True)
    spent = dict.fromkeys(kinds.values(), 0.0)
    for pid, kind in kinds.items():
        spent[kind] += 1000 * (cpu(pid) - before[pid]) / (last[2] - first[2])
    return ", ".join(f"{kind} {value:.1f}" for kind, value in sorted(spent.items()) if value >= 0.05)


def report(name, frames, drawn, silent, ratio, least, most):
    print(
        f"{name}: {frames:.0f} frames/s; {drawn:.0f} steps/s of all four dynamics, {silent:.0f} without frames: "
        f"{ratio:.2f} ({least:.2f} to {most:.2f})",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a stretch")
    parser.add_argument("--rounds", type=int, default=8, help="pairs of stretches")
    parser.add_argument("--size", default="1280x900", help="width and height of the page")
    options = parser.parse_args()
    command = [sys.executable, "-m", "tether", "explore", "--no-browser"]
    began = time.perf_counter()
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = re.search(r"http\S+/", server.stdout.readline())[0]
        print(f"from the command to its address: {time.perf_counter() - began:.1f} s", flush=True)
        with connect(address.replace("http", "ws") + "socket", compression=None, max_size=None) as socket:
            client = Null(socket)
            print(f"from the command to the first frame: {time.perf_counter() - began:.1f} s", flush=True)
            report("no drawing", *rounds(client, options))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            wide, high = map(int, options.size.split("x"))
            page = browser.new_page(viewport={"width": wide, "height": high}, bypass_csp=True)
            page.goto(address + "#" + urllib.parse.quote(json.dumps(SETTING)))
            page.wait_for_function("tether.frame !== null")
            page.evaluate("tether.toggle()")
            report("chromium", *rounds(Real(page), options))
            print(f"ms of processor time a frame: {costs(Real(page), 2 * options.seconds)}")
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
