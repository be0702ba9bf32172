"""Memory of `tether explore` and of its page while it runs for long.

    python benchmarks/soak_explore.py --minutes 30

Four dynamics of 2-20-1 with 10 replicas. Every half minute: resident memory of the process that paints and of the one
that trains, the JavaScript heap of the page after a collection of garbage, its nodes and its event listeners. At the
end their means over the first and the last third.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse

from playwright.sync_api import sync_playwright

from explore import FLAGS, SETTING

COLUMNS = ("minutes", "steps", "frames", "paint MB", "train MB", "heap MB", "nodes", "listeners")


def resident(pid):
    """Megabytes of a process, by the share of each page that is its own."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return int(re.search(r"Pss:\s+(\d+)", file.read())[1]) / 1000


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(one) for one in file.read().split()]


def look(page, session, server, began):
    """One row of the table."""
    session.send("HeapProfiler.collectGarbage")
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    trainer = max((resident(one) for one in children(server)), default=0.0)
    step, frames = page.evaluate("[tether.frame.step, tether.frames]")
    heap = metrics["JSHeapUsedSize"] / 1e6
    minutes = (time.monotonic() - began) / 60
    return minutes, step, frames, resident(server), trainer, heap, metrics["Nodes"], metrics["JSEventListeners"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two looks")
    options = parser.parse_args()
    command = [sys.executable, "-m", "tether", "explore", "--no-browser"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        address = re.search(r"http\S+/", server.stdout.readline())[0]
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            page = browser.new_page(viewport={"width": 1280, "height": 900}, bypass_csp=True)
            page.set_default_timeout(300_000)
            page.goto(address + "#" + urllib.parse.quote(json.dumps(SETTING)))
            page.wait_for_function("tether.frame !== null")
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable")
            session.send("HeapProfiler.enable")
            page.evaluate("tether.toggle()")
            print("  ".join(f"{name:>9}" for name in COLUMNS), flush=True)
            began, rows = time.monotonic(), []
            while time.monotonic() < began + 60 * options.minutes:
                page.wait_for_timeout(1000 * min(options.every, 60 * options.minutes / 3))
                rows.append(look(page, session, server.pid, began))
                print("  ".join(f"{value:9.1f}" for value in rows[-1]), flush=True)
            browser.close()
    finally:
        server.terminate()
        server.wait()
    third = max(1, len(rows) // 3)
    for i, name in enumerate(COLUMNS[3:], 3):
        first, last = (sum(row[i] for row in some) / third for some in (rows[:third], rows[-third:]))
        print(f"{name}: {first:.1f} in the first third, {last:.1f} in the last")


if __name__ == "__main__":
    main()
