"""The step under FSDP2 on two ranks of this machine, beside AdamW's.

    make bench-sharded               # benchmarks/results/sharded.json; half a minute

Two models: a small encoder whose attention and linear weights are orthogonal, and a perceptron with six orthogonal
layers. Four optimizers: torch's AdamW; Langevin dynamics with noise on all weights; the same with orthogonal weights,
each matrix moved by its owner; and the naive way, in which every rank gathers each matrix by `full_tensor()`, moves
all of them, and keeps its block. The time is that of `opt.step()` on the slower rank; each rank has one thread.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

import tether
from timing import Run, arguments

RANKS = 2
ADAMW = "AdamW"
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


def optimizers(where: str) -> dict[str, Callable[[nn.Module], object]]:
    parts = [tether.Part(where, on=tether.Orthogonal()), tether.Part("*")]
    return {
        ADAMW: lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True),
        "BAOAB with noise": lambda model: tether.Optimizer(model, **FIELDS),
        "orthogonal, by owners": lambda model: tether.Optimizer(model, parts, **FIELDS),
        "orthogonal, full_tensor() on every rank": lambda model: Naive(model, parts),
    }


def work(rank: int, folder: str, rounds: int) -> None:
    """One rank: every optimizer once in each round. Rank 0 writes the times of the slower rank."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", RANKS), rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    found = {}
    for case, make in CASES.items():
        torch.manual_seed(0)
        calls = {}
        for name, build in optimizers(make()[2]).items():
            model, x, _ = make()
            calls[name] = (fully_shard(model, mesh=mesh), x, build(model))
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds + 2):
            for name, (model, x, opt) in calls.items():
                for param in model.parameters():
                    param.grad = None
                model(x).square().mean().backward()
                dist.barrier()
                began = time.perf_counter()
                opt.step()
                times[name].append(time.perf_counter() - began)
        slower = torch.tensor([series[2:] for series in times.values()], dtype=torch.float64)
        dist.all_reduce(slower, dist.ReduceOp.MAX)
        found[case] = dict(zip(times, slower.tolist(), strict=True))
    if rank == 0:
        Path(folder, "times.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


def main() -> None:
    options = arguments(__doc__, rounds=20, quick=7, threads=(1,))
    run = Run("sharded", "What a sharded step costs", options)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (folder, options.rounds), nprocs=RANKS)
        found = json.loads(Path(folder, "times.json").read_text(encoding="utf-8"))
    table = run.table(f"opt.step() under fully_shard on {RANKS} ranks", ADAMW, shows="time")
    for case, times in found.items():
        table.add(case, times)
    run.write()


CASES = {"encoder, 2.1 M parameters": encoder, "perceptron, 0.4 M parameters": perceptron}

if __name__ == "__main__":
    main()
