"""The step under FSDP2 on two ranks of this machine, beside AdamW's: `make bench-sharded`.

Two models: a small encoder whose attention and linear weights are orthogonal, and a perceptron with six orthogonal
layers. Four optimizers: torch's AdamW; Langevin dynamics with noise on all weights; the same with orthogonal weights,
each matrix moved by its owner; and the naive way, in which every rank gathers each matrix by `full_tensor()`, moves
all of them, and keeps its block. The table shows the median time of `opt.step()` on the slower rank, in ms.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

import tether

RANKS = 2
FIELDS = {"lr": 0.01, "word": "BAOAB", "temperature": 1e-6}


def encoder() -> tuple[nn.Module, torch.Tensor, str]:
    layer = nn.TransformerEncoderLayer(256, 4, 512, dropout=0.0, batch_first=True)
    where = "*in_proj_weight|*out_proj.weight|*linear*.weight"
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(8, 16, 256), where


def perceptron() -> tuple[nn.Module, torch.Tensor, str]:
    layers = [module for _ in range(6) for module in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(256, 10)), torch.randn(64, 256), "[0-9].weight|10.weight"


class Naive:
    """What one writes without support for DTensors: gather all, move all on every rank, keep one's block."""

    def __init__(self, model: nn.Module, parts: list[tether.Part]) -> None:
        self.params = dict(model.named_parameters())
        self.twins = {name: nn.Parameter(param.full_tensor().detach()) for name, param in self.params.items()}
        self.opt = tether.Optimizer(list(self.twins.items()), parts, **FIELDS)

    def step(self) -> None:
        with torch.no_grad():
            for name, param in self.params.items():
                self.twins[name].copy_(param.full_tensor())
                self.twins[name].grad = param.grad.full_tensor()
            self.opt.step()
            for name, param in self.params.items():
                twin = self.twins[name].detach()
                param.copy_(distribute_tensor(twin, param.device_mesh, param.placements, src_data_rank=None))


def optimizers(where: str) -> dict[str, object]:
    parts = [tether.Part(where, on=tether.Orthogonal()), tether.Part("*")]
    return {
        "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True),
        "BAOAB, noise": lambda model: tether.Optimizer(model, **FIELDS),
        "orthogonal, by owners": lambda model: tether.Optimizer(model, parts, **FIELDS),
        "orthogonal, full_tensor()": lambda model: Naive(model, parts),
    }


def work(rank: int, folder: str, steps: int) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", RANKS), rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    for make in (encoder, perceptron):
        torch.manual_seed(0)
        names = optimizers(make()[2])
        rows = {}
        for name, build in names.items():
            torch.manual_seed(0)
            model, x, _ = make()
            opt = build(fully_shard(model, mesh=mesh))
            times = []
            for _ in range(steps + 2):
                for param in model.parameters():
                    param.grad = None
                model(x).square().mean().backward()
                dist.barrier()
                start = time.perf_counter()
                opt.step()
                times.append(time.perf_counter() - start)
            mine = torch.tensor(statistics.median(times[2:]) * 1e3)
            dist.all_reduce(mine, dist.ReduceOp.MAX)
            rows[name] = float(mine)
        if rank == 0:
            size = sum(param.numel() for param in make()[0].parameters())
            print(f"{make.__name__}, {size:,} parameters, {RANKS} ranks")
            for name, ms in rows.items():
                print(f"  {name:<28}{ms:8.2f} ms   {ms / rows['AdamW']:6.2f} × AdamW", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (folder, parser.parse_args().steps), nprocs=RANKS)
