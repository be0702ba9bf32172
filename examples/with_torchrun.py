"""torchrun, FSDP2 and o-CoLA-ud on a spiral: orthogonal weights, cut over the ranks, with distributed checkpoints.

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --nproc-per-node 2 --max-restarts 3 with_torchrun.py

Kill a rank: torchrun starts all of them again, and they go on from the last checkpoint.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import tether

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "out/with_torchrun") / "state"
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = fully_shard(nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 2)))
opt = tether.methods.orthogonal_cola_ud(model, lr=0.2, friction=1.0, temperature=1e-6, free=["0.*", "4.*"])
x, y = (each[rank::world] for each in tether.data.spiral(n=500, turns=1))
if FOLDER.exists():
    weights, state = get_state_dict(model, opt)
    dcp.load({"model": weights, "opt": state}, checkpoint_id=str(FOLDER))
    set_state_dict(model, opt, model_state_dict=weights, optim_state_dict=state)
while opt.param_groups[0]["step"] < 100:
    opt.zero_grad()
    nn.functional.cross_entropy(model(x), y.long()).backward()
    opt.step()
    if opt.param_groups[0]["step"] % 50 == 0:
        weights, state = get_state_dict(model, opt)
        dcp.save({"model": weights, "opt": state}, checkpoint_id=str(FOLDER))
print(f"rank {rank}, step 100, violation {opt.violation():.1e}\n", end="")
dist.barrier()  # no rank leaves while another one still works
dist.destroy_process_group()
