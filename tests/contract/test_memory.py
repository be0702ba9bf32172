"""What changes under a running optimizer must be noticed before anything is written through an old address.

Each case has a process of its own, since a wrong write ends it; all are forks of one that has imported torch. A
case may go on correctly or refuse with an error of Python's, but it may not crash.
"""

import json
import subprocess
import sys

import pytest

START = """
import torch
import tether

def start(word, dtype=torch.float32, size=64):
    θ = torch.nn.Parameter(torch.ones(size, dtype=dtype))
    opt = tether.Optimizer([("θ", θ)], lr=0.1, word=word, friction=1.0, temperature=0.0, noise=0.0)
    step(θ, opt)
    return θ, opt

def step(θ, opt):
    θ.grad = torch.ones_like(θ)
    opt.step()
"""

CASES = {
    "a word that needs momenta": """
θ, opt = start("X")
opt.param_groups[0]["word"] = "BAB"
step(θ, opt)  # B(½h′ + ½h) A(h) from p = 0
torch.testing.assert_close(θ.detach(), torch.full_like(θ, 0.9 - 0.1 * 0.1))
""",
    "a word that needs a thermostat": """
θ, opt = start("BAB")
opt.param_groups[0]["word"] = "BAFEFAB"
step(θ, opt)
assert θ.isfinite().all()
""",
    "a shorter dtype": """
θ, opt = start("BAB", torch.float64, size=4096)
θ.data = θ.data.float()
step(θ, opt)  # θ = 1 − h²/2 after the first step, then p = −3h/2
torch.testing.assert_close(θ.detach(), torch.full((4096,), 1 - 0.005 - 0.015))
""",
    "a shorter tensor": """
θ, opt = start("X", size=4096)
θ.data = torch.zeros(4)
try:
    step(θ, opt)
except (RuntimeError, ValueError) as error:
    print("refused:", error)
else:
    torch.testing.assert_close(θ.detach(), torch.full((4,), -0.1))
""",
    "a shorter tensor with momenta": """
θ, opt = start("BAOAB", size=1 << 20)
θ.data = torch.zeros(4)
guard = torch.zeros(1 << 20)
try:
    step(θ, opt)
except (RuntimeError, ValueError) as error:
    print("refused:", error)
assert not guard.any()
""",
    "a tensor without memory": """
θ, opt = start("BAOAB")
θ.data = torch.empty(0)
try:
    step(θ, opt)
except (RuntimeError, ValueError) as error:
    print("refused:", error)
""",
    "a sharded tensor": """
import tempfile
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{folder}/store")
    mesh = init_device_mesh("cpu", (1,))
    for word in ("X", "BAOAB", "BAFEFAB"):
        plain, sharded = torch.ones(4, 4), distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
        params = [torch.nn.Parameter(x) for x in (plain, sharded)]
        try:
            for θ in params:
                step(θ, tether.Optimizer([("θ", θ)], lr=0.1, word=word, temperature=1e-3))
        except (RuntimeError, TypeError, NotImplementedError) as error:
            print("refused:", error)
        else:
            torch.testing.assert_close(params[1].to_local(), params[0].data)
    dist.destroy_process_group()
""",
}


FORKS = """
import json, os, sys, tempfile, traceback

def outcome(code):
    with tempfile.NamedTemporaryFile("w+") as said:
        child = os.fork()
        if child == 0:
            status = 0
            try:
                exec(code, {})
            except BaseException:
                status = 1
                said.write(traceback.format_exc())
                said.flush()
            os._exit(status)
        _, status = os.waitpid(child, 0)
        said.seek(0)
        return os.waitstatus_to_exitcode(status), said.read()

import torch, torch.distributed.tensor, tether
torch.set_num_threads(1)
start, cases = json.load(sys.stdin)
print("outcomes", json.dumps({case: outcome(start + code) for case, code in cases.items()}))
"""


@pytest.fixture(scope="module")
def outcomes():
    """Exit code and traceback of every case."""
    given = json.dumps([START, CASES])
    run = subprocess.run([sys.executable, "-c", FORKS], input=given, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("outcomes ")]
    return json.loads(line.removeprefix("outcomes "))


@pytest.mark.parametrize("case", CASES)
def test_it_goes_on_or_refuses_but_never_crashes(case, outcomes):
    code, traceback = outcomes[case]
    assert code == 0, traceback or f"ended by signal {-code}"
