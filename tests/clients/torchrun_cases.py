"""torchrun: DDP and FSDP2 on 2 ranks, one of which dies; torchrun starts both again, and they resume.

`torchrun --nproc-per-node 2 --max-restarts 1 torchrun_cases.py FOLDER`. In their first life the ranks make whole runs,
then the same ones again until rank 1 is killed between two checkpoints. In their second life they go on, and compare.
"""

import json
import os
import sys
from pathlib import Path

import small
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from killed import DIE, SAVE, STEPS, die
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

RUNS = {
    "DDP": [small.orthogonal, small.circle, small.adlala, small.multirate, small.subset],
    "FSDP2": [small.orthogonal, small.circle, small.adlala, small.multirate, small.subset],
}


def own_part(x):
    return (x.to_local() if isinstance(x, DTensor) else torch.as_tensor(x)).clone()


class Run:
    """One model and its optimizer on all ranks, each with every second image."""

    def __init__(self, how, make):
        self.name = f"{how}, {make.__name__}"
        self.net, self.sharded, self.data = small.convolution(), how == "FSDP2", small.digits()
        if self.sharded:
            self.model = fully_shard(self.net)
        else:  # the slow parameters of a multirate method have no gradient in some steps
            self.model = DistributedDataParallel(self.net, find_unused_parameters=make is small.multirate)
        self.opt = make(self.model)

    def step(self, n):
        rank, world = dist.get_rank(), dist.get_world_size()
        x, y = (each[16 * n + rank : 16 * (n + 1) : world] for each in self.data)
        self.opt.zero_grad()
        torch.nn.functional.cross_entropy(self.model(x), y).backward()
        self.opt.step()

    def save(self, folder):
        if self.sharded:
            model, opt = get_state_dict(self.model, self.opt)
            dcp.save({"model": model, "opt": opt}, checkpoint_id=str(folder / self.name))
        elif dist.get_rank() == 0:
            torch.save([self.net.state_dict(), self.opt.state_dict()], folder / f"{self.name}.pt")

    def load(self, folder):
        if self.sharded:
            model, opt = get_state_dict(self.model, self.opt)
            dcp.load({"model": model, "opt": opt}, checkpoint_id=str(folder / self.name))
            set_state_dict(self.model, self.opt, model_state_dict=model, optim_state_dict=opt)
        else:
            model, opt = torch.load(folder / f"{self.name}.pt")
            self.net.load_state_dict(model)
            self.opt.load_state_dict(opt)

    def bits(self):
        """The whole parameters, and this rank's state."""
        found = {name: x.full_tensor() if isinstance(x, DTensor) else x for name, x in self.net.named_parameters()}
        found = {name: x.detach().clone() for name, x in found.items()}
        packed = self.opt.state_dict()
        found |= {f"state {i} {key}": own_part(x) for i, own in packed["state"].items() for key, x in own.items()}
        for i, group in enumerate(packed["param_groups"]):
            found |= {f"group {i} {key}": own_part(group[key]) for key in ("step", "thermostat")}
        return found


def trained(runs, start, folder=None, dies=False):
    """What all runs end at; with a checkpoint in the folder, if there is one, and perhaps a death after it."""
    for n in range(start, STEPS):
        for run in runs:
            run.step(n)
        if folder and n + 1 == SAVE:
            for run in runs:
                run.save(folder)
        if dies and n + 1 == DIE:
            dist.barrier()
            if dist.get_rank() == 1:
                (folder / "dead").touch()
                die()
    return {run.name: run.bits() for run in runs}


def main():
    folder, life = Path(sys.argv[1]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mine = folder / f"whole {dist.get_rank()}.pt"

    def fresh():
        return [Run(how, make) for how, methods in RUNS.items() for make in methods]

    if life == 0:
        torch.save(trained(fresh(), 0), mine)
        trained(fresh(), 0, folder, dies=True)
    runs, whole = fresh(), torch.load(mine)
    for run in runs:
        run.load(folder)
    report = {}
    for name, found in trained(runs, SAVE).items():
        keys = whole[name].keys() | found.keys()
        missing = torch.tensor(float("nan"))
        report[name] = [key for key in keys if not torch.equal(whole[name].get(key, missing), found.get(key, missing))]
    report |= {"life": life, "dead": (folder / "dead").exists()}
    (folder / f"report {dist.get_rank()}.json").write_text(json.dumps(report))
    dist.barrier()  # no rank leaves while another one still works
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
