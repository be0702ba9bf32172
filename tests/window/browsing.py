"""A server of the window in a process of its own, and a browser where there is one."""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
]
FLAGS += ["--disable-sync", "--disable-quic"]


@contextmanager
def serving(*options):
    """`tether explore` as its users start it: its address, and the process."""
    command = [sys.executable, "-m", "tether", "explore", "--no-browser", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert found, line + (process.stderr.read() if process.poll() is not None else "")
        yield found[0], process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        process.stderr.close()


def children(pid):
    """The processes that a process has started."""
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(one) for one in done.stdout.split()]


@contextmanager
def browsing():
    """Debian's chromium, driven by Playwright. Without one of them the test is skipped."""
    api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no chromium here: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()
