"""Frames a second of `tether explore` in a real browser, and what they cost the training.

    python benchmarks/explore.py            one table, about a minute; needs chromium and playwright

Four dynamics of 2-20-1 with 10 replicas and a field of 100 × 100. Stretches in which the page draws and stretches in
which it is silent (it acknowledges no frame, so none is made) alternate; the ratio of their steps a second is the cost.
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
SILENT = (
    "() => { window.speak ??= tether.connection.send; tether.connection.send = (m) => m.type === 'ack' || speak(m); }"
)
SPEAK = "() => { tether.connection.send = window.speak; tether.connection.send({ type: 'ack' }); }"


def where(page):
    """Step and frames so far, and the time."""
    return page.evaluate("[window.tether.frame.step, window.tether.frames, performance.now() / 1000]")


def stretch(page, seconds, drawing):
    """Steps and frames a second."""
    first = where(page)
    if not drawing:
        page.evaluate(SILENT)
    time.sleep(seconds)
    if not drawing:
        page.evaluate(SPEAK)
        page.wait_for_function(f"window.tether.frame.step > {first[0]}")
    last = where(page)
    return [(last[i] - first[i]) / (last[2] - first[2]) for i in (0, 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a stretch")
    parser.add_argument("--rounds", type=int, default=6, help="pairs of stretches")
    options = parser.parse_args()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tether", "explore", "--no-browser"]
    began = time.perf_counter()
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    address = re.search(r"http\S+/", server.stdout.readline())[0]
    started = time.perf_counter() - began
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            page = browser.new_page(viewport={"width": 1280, "height": 900}, bypass_csp=True)
            page.goto(address + "#" + urllib.parse.quote(json.dumps(SETTING)))
            page.wait_for_function("window.tether.frame !== null")
            page.evaluate("window.tether.toggle()")
            stretch(page, 2, True)
            pairs = [
                [stretch(page, options.seconds, drawing) for drawing in (True, False)] for _ in range(options.rounds)
            ]
            browser.close()
    finally:
        server.terminate()
        server.wait()
    ratios = [drawn[0] / silent[0] for drawn, silent in pairs]
    print(f"from the command to its address: {started:.1f} s")
    print(f"frames a second: {statistics.median(drawn[1] for drawn, _ in pairs):.0f}")
    print(
        f"steps of all four dynamics a second: {statistics.median(drawn[0] for drawn, _ in pairs):.0f} with the page, "
        f"{statistics.median(silent[0] for _, silent in pairs):.0f} without"
    )
    print(
        f"speed with the page over without, median of {len(ratios)}: {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    main()
