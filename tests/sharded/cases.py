"""What the ranks of a group do: every method on a sharded network beside the same on one process."""

import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

sys.path.insert(0, str(Path(__file__).parent.parent / "contract"))
from rows import ROWS, batch, network  # noqa: E402

STEPS = 20
METHODS = [name for name, row in ROWS.items() if not row.measured]


def placed(model, mesh, placements):
    """The model with its parameters as DTensors; `placements(param)` says how each is cut."""
    for module in model.modules():
        for name, param in list(module.named_parameters(recurse=False)):
            cut = distribute_tensor(param.detach(), mesh, placements(param), src_data_rank=None)
            setattr(module, name, nn.Parameter(cut))
    return model


def whole(model):
    return {
        name: (x.full_tensor() if isinstance(x, DTensor) else x).detach().clone() for name, x in model.named_parameters()
    }


def gradients(model, name, step):
    """Gradients of the network's loss, placed like the parameters; the same on all ranks."""
    full = whole(model)
    dtype = next(iter(full.values())).dtype
    plain = network(name, dtype=dtype)
    plain.load_state_dict(full)
    x, y = batch(step, dtype)
    loss = (plain(x) - y).square().mean()
    loss.backward()
    for (_, param), twin in zip(model.named_parameters(), plain.parameters(), strict=True):
        if not param.requires_grad:
            param.grad = None
        elif isinstance(param, DTensor):
            param.grad = distribute_tensor(twin.grad, param.device_mesh, param.placements, src_data_rank=None)
        else:
            param.grad = twin.grad
    return loss.detach()


def train(model, opt, name, steps, start=0):
    for step in range(start, start + steps):
        opt.step(lambda step=step: gradients(model, name, step))


def cut_rows(mesh):
    return lambda param: [Shard(0)] * mesh.ndim if mesh.ndim == 1 else [Replicate(), Shard(0)]


def cut_columns(mesh):
    return lambda param: [Shard(param.dim() - 1)]


def sharded(name, how, dtype, world):
    """A network of the method's, cut in this way."""
    model = network(name, dtype=dtype)
    if how == "hsdp":
        mesh = init_device_mesh("cpu", (2, world // 2))
        return placed(model, mesh, cut_rows(mesh))
    mesh = init_device_mesh("cpu", (world,))
    if how == "fsdp":
        return fully_shard(model, mesh=mesh)
    return placed(model, mesh, {"rows": cut_rows, "columns": cut_columns}[how](mesh))


def method(rank, world, name, how, dtype):
    """The largest difference to one process after some steps, relative; the violation; both temperatures."""
    model, alone = sharded(name, how, dtype, world), network(name, dtype=dtype)
    opt, other = ROWS[name].build(model), ROWS[name].build(alone)
    train(model, opt, name, STEPS)
    train(alone, other, name, STEPS)
    with opt.awake(), other.awake():
        found, wanted = whole(model), whole(alone)
    far = max(float((found[key] - wanted[key]).abs().max() / wanted[key].abs().max().clamp_min(1e-3)) for key in wanted)
    for key, x in opt.temperature().items():
        y = other.temperature()[key]
        assert x == y or abs(x - y) <= 1e-4 * abs(y) or (x != x and y != y), (key, x, y)
    ξ = [float(group["thermostat"]) for group in opt.param_groups]
    same = [torch.tensor(ξ) for _ in range(world)]
    dist.all_gather(same, torch.tensor(ξ))
    assert all(torch.equal(x, same[0]) for x in same)
    opt.describe()
    return far, opt.violation()


def methods(rank, world, chosen):
    """All cases one after the other; the first that fails ends it."""
    found = {}
    for case in chosen:
        try:
            found[case] = method(rank, world, *case)
        except Exception:
            found[case] = traceback.format_exc()
            break
    return found
