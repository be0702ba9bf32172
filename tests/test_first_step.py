"""What is loaded when: a first step must not wait for torch's compiler."""

import subprocess
import sys

PROGRAM = """
import sys, torch, tether
nets = tether.Replicas(lambda: torch.nn.Linear(2, 1), 2)
opt = tether.methods.langevin(nets, lr=0.1)
nets(torch.ones(3, 2)).sum().backward()
opt.step()
loaded = "torch._dynamo" in sys.modules
step = torch.compile(opt.step, backend="eager")
nets(torch.ones(3, 2)).sum().backward()
opt.step()
print(loaded, "torch._dynamo" in sys.modules)
"""


def test_networks_optimizers_and_steps_do_not_load_the_compiler():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == ["False", "True"]
