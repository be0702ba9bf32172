"""The program of recipe 6, for torchrun: FSDP2 with orthogonal weights, and the same in one process."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import tether


def trained(shard):
    """A perceptron after 30 steps on two spirals, and its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 65), nn.Tanh(), nn.Linear(65, 65), nn.Tanh(), nn.Linear(65, 2)).double()
    if shard:
        fully_shard(model)
    parts = [tether.Part("2.weight", on=tether.Orthogonal()), tether.Part("*")]
    opt = tether.Optimizer(model, parts, lr=0.1, word="BAOAB", temperature=1e-5)
    x, y = tether.data.spiral(n=200)
    for _ in range(30):
        opt.zero_grad()
        nn.functional.cross_entropy(model(x.double()), y.long()).backward()
        opt.step()
    return model, opt


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model, opt = trained(shard=True)
alone, _ = trained(shard=False)
whole = model[2].weight.full_tensor()  # every rank has to ask
lines = [
    f"rank {rank} of {world}: {model[2].weight.to_local().shape[0]} of 65 rows",
    f"violation {opt.violation():.1e}",
    f"largest difference from one process {(whole - alone[2].weight).abs().max():.1e}",
]
sys.stdout.write("; ".join(lines) + "\n")
dist.barrier()  # no rank leaves while another one still works
dist.destroy_process_group()
