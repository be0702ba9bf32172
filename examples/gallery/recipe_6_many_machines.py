"""
Many machines: FSDP2 and Ray
============================

Shard the model, then make the optimizer: nothing else is to be said. Each rank holds its rows of a weight, of its
momenta and of its surface. Noise belongs to the index of an entry in the whole weight, so that it does not depend on
the number of ranks.
"""

# %%
# This program runs on two processes of this machine. On a cluster, start it by torchrun on every machine.
#
# .. literalinclude:: ../../examples/gallery/ranks_fully_shard.py
#    :language: python
#    :lines: 3-

import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt

program = Path("ranks_fully_shard.py").resolve()
torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
run = subprocess.run([*torchrun, str(program)], env=environment, capture_output=True, text=True)
lines = sorted(line for line in run.stdout.splitlines() if line.startswith("rank"))
if len(lines) < 2:  # not by the exit code: with torch 2.13 a rank may abort when it ends, after its work
    raise RuntimeError(run.stderr)
print("\n".join(lines))

# %%
# The rows of the orthogonal weight that each rank holds, with their momenta.

first = 0
figure, ax = plt.subplots(figsize=(4, 3), layout="constrained")
for rank, line in enumerate(lines):
    rows = int(re.search(r"(\d+) of 65 rows", line)[1])
    ax.bar(0, rows, bottom=first, label=f"rank {rank}: {rows} rows")
    first += rows
ax.set(xticks=[], ylabel="row of the weight, 65 × 65", xlim=(-1, 2))
ax.invert_yaxis()
ax.legend()
plt.show()

# %%
# The weight is orthogonal to rounding on both ranks, with momenta and noise, and equals that of one process. What is
# sent, what is refused and what it costs at scale: :doc:`/sharded`.
#
# Many runs are another matter: each is small, and there are thousands. The studies of the papers are made of pieces,
# and with Ray every piece is a task of one processor. A node that is lost costs what was done since its last
# checkpoint:
#
# .. code-block:: console
#
#    $ tether run all --ray 10.0.0.1:6379
#
# Your own Ray tasks may call :py:func:`tether.train`, :py:func:`tether.sample` and every optimizer as they are:
# :doc:`/cluster`.
