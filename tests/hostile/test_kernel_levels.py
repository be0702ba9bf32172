"""The kernel against torch across its borders, and other builds of it: every set of instructions, and sanitizers."""

import os
import platform
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest
import torch

from tether import native
from tether.native import build

sys.path.insert(0, str(Path(__file__).parent))
from kernel_trial import TRIALS, hashed

SOURCE = Path(native.__file__).parents[1]
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -O1 -DPLAIN"
X86 = platform.machine() in ("x86_64", "AMD64")
pytestmark = pytest.mark.skipif(native.library() is None, reason="no C compiler")


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@lru_cache
def usual(name):
    """The hash of what the usual build computes."""
    return hashed(TRIALS[name]())


@pytest.mark.parametrize("name", TRIALS)
def test_the_kernel_and_torch_agree(name):
    usual(name)


def facts(kernel):
    parallel, cloned, level = native._facts(kernel)[5:]
    return parallel, cloned, level


@pytest.mark.skipif(not X86, reason="instruction sets of x86-64")
@pytest.mark.parametrize(("level", "march"), [(1, "x86-64"), (3, "x86-64-v3"), (4, "x86-64-v4")])
def test_every_set_of_instructions_has_the_same_bits(monkeypatch, level, march):
    _, cloned, best = facts(native.library())
    if level > best or not cloned:
        pytest.skip(f"this machine has level {best}")
    want = {name: usual(name) for name in ("words", "circles", "permutations")}
    monkeypatch.setenv("TETHER_CFLAGS", f"-DPLAIN -march={march}")
    other = build.kernel()
    assert facts(other.library)[1:] == (0, level)
    monkeypatch.setattr(native, "_build_once", native.lru_cache(maxsize=1)(lambda: other))
    monkeypatch.setattr(native, "_functions", lru_cache(native._functions.__wrapped__))
    assert {name: hashed(TRIALS[name]()) for name in want} == want


def library(name):
    """Where the compiler keeps its run-time library; None where it has none."""
    path = subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
    return path if os.path.isabs(path) else None


@pytest.mark.skipif(shutil.which("cc") is None or library("libasan.so") is None, reason="no sanitizers")
def test_no_sanitizer_complains():
    environment = {
        **os.environ,
        "TETHER_CFLAGS": SANITIZERS,
        "LD_PRELOAD": f"{library('libasan.so')} {library('libstdc++.so.6') or ''}",
        "ASAN_OPTIONS": "detect_leaks=0",
        "OMP_NUM_THREADS": "2",
        "PYTHONPATH": os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    program = [sys.executable, str(Path(__file__).with_name("kernel_trial.py"))]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
