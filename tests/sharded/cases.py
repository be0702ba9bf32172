"""What the ranks of a group do: every method on a sharded network beside the same on one process."""

import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tether
import tether.sharded
import tether.sharded.ranks as check_sharded
from tether import native
from tether.engine import host
from tether.noise import Normals
from tether.sharded.pieces import Cut, piece_of
from tether.surfaces import SurfaceError

sys.path.insert(0, str(Path(__file__).parent.parent / "contract"))
from rows import ROWS, closure_for, network

STEPS = 20
METHODS = [name for name, row in ROWS.items() if not (row.measured or row.whole or row.tested)]


def placed(model, mesh, placements):
    """The model with its parameters as DTensors; `placements(param)` says how each is cut."""
    for module in model.modules():
        for name, param in list(module.named_parameters(recurse=False)):
            cut = distribute_tensor(param.detach(), mesh, placements(param), src_data_rank=None)
            setattr(module, name, nn.Parameter(cut))
    return model


def whole(model):
    return {
        name: (x.full_tensor() if isinstance(x, DTensor) else x).detach().clone()
        for name, x in model.named_parameters()
    }


def gradients(model, step):
    """Gradients θ/2 + b of a quadratic loss with another b at each step: each rank computes its own block."""
    for i, param in enumerate(model.parameters()):
        generator = torch.Generator().manual_seed(100 * step + i)
        b = torch.randn(param.shape, generator=generator, dtype=torch.float64).to(param.dtype)
        if not param.requires_grad:
            param.grad = None
        elif isinstance(param, DTensor):
            own = param.detach().to_local() / 2 + b[piece_of(param).slices]
            rest = {"run_check": False, "shape": param.shape, "stride": param.stride()}
            param.grad = DTensor.from_local(own, param.device_mesh, param.placements, **rest)
        else:
            param.grad = param.detach() / 2 + b
    return torch.zeros(())


def train(model, opt, steps, start=0, real=False):
    """Steps by those gradients, or by `real` ones of the network, with a backward pass."""
    for step in range(start, start + steps):
        opt.step(closure_for(model, opt, step) if real else lambda step=step: gradients(model, step))


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
    if how == "tensor parallel":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("data", "tensor"))
        parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        return fully_shard(model, mesh=mesh["data"])
    mesh = init_device_mesh("cpu", (world,))
    if how == "fsdp":
        return fully_shard(model, mesh=mesh)
    return placed(model, mesh, {"rows": cut_rows, "columns": cut_columns}[how](mesh))


def method(rank, world, name, how, dtype):
    """The largest difference to one process after some steps, relative; the violation; both temperatures."""
    model, alone = sharded(name, how, dtype, world), network(name, dtype=dtype)
    opt, other = ROWS[name].build(model), ROWS[name].build(alone)
    for one, mine in ((model, opt), (alone, other)):
        train(one, mine, STEPS, real=how in ("fsdp", "tensor parallel"))
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


# Noise


def noise(rank, world):
    """Are a rank's normals the bits that one process draws for these entries, however a tensor is cut?"""
    names = ["a", "b", "c", "d"]
    shapes = [(7, 5), (1, 9), (5, 3, 2, 2), (6,)]
    sizes = [torch.Size(shape).numel() for shape in shapes]
    meshes = {1: init_device_mesh("cpu", (world,))}
    ways = [(meshes[1], [Shard(0)], names), (meshes[1], [Shard(1)], names[:3])]
    if world == 4:
        square = init_device_mesh("cpu", (2, 2))
        ways += [(square, [Shard(0), Shard(1)], names[:3]), (square, [Replicate(), Shard(0)], names)]
    for dtype in (torch.float32, torch.float64):
        rest = dtype, torch.device("cpu")
        for mesh, placements, used in ways:
            tensors = [distribute_tensor(torch.zeros(s, dtype=dtype), mesh, placements) for s in shapes[: len(used)]]
            cut = Cut(tensors, 1.0)
            own = [x.to_local().numel() for x in tensors]
            offsets = [sum(own[:i]) for i in range(len(own))]
            here = [x.to_local().shape for x in tensors]
            drawn = cut.normals(used, here, (own, offsets, sum(own)), rest).draw(5, 3, 1).split(own)
            for name, size, x, block, piece in zip(used, sizes, tensors, drawn, cut.pieces, strict=False):
                whole_one = Normals([name], [size], [0], size, *rest).draw(5, 3, 1).view(x.shape)
                assert tuple(x.to_local().shape) == piece.sizes
                assert torch.equal(whole_one[piece.slices].reshape(-1), block), (name, placements)
    return True


# Messages


class Counted:
    """Counts the collectives of torch.distributed, the numbers and the bytes that they carry."""

    def __enter__(self):
        self.reduced, self.exchanged, self.bytes = [], [], 0
        self.own = dist.all_reduce, dist.all_to_all_single

        def all_reduce(x, *rest, **more):
            self.reduced.append(x.numel())
            self.bytes += x.nbytes
            return self.own[0](x, *rest, **more)

        def all_to_all_single(out, x, *rest, **more):
            self.exchanged.append(x.numel())
            self.bytes += x.nbytes
            return self.own[1](out, x, *rest, **more)

        dist.all_reduce, dist.all_to_all_single = all_reduce, all_to_all_single
        return self

    def __exit__(self, *_):
        dist.all_reduce, dist.all_to_all_single = self.own


def messages(rank, world):
    """The collectives of one step of several methods."""
    found = {}
    for name in ("sgd", "langevin", "adaptive_langevin", "adlala", "circle_cola_ud", "orthogonal_cola_ud"):
        model = sharded(name, "rows", torch.float64, world)
        opt = ROWS[name].build(model)
        for step in range(2):
            gradients(model, step)
            with Counted() as counted:
                opt.step()
        found[name] = counted.reduced, len(counted.exchanged)
    model = sharded("sphere_cola_ud", "columns", torch.float64, world)
    opt = ROWS["sphere_cola_ud"].build(model)
    for step in range(2):
        gradients(model, step)
        with Counted() as counted:
            opt.step()
    found["sphere by columns"] = counted.reduced, len(counted.exchanged)
    model = sharded("sgd", "rows", torch.float64, world)
    parts = [tether.Part("0.*", word="BACDEDCAB"), tether.Part("2.*", word="BAFEFAB")]
    opt = tether.Optimizer(model, parts, lr=0.05, temperature=1e-3)
    gradients(model, 0)
    with Counted() as counted:
        opt.step()
    found["two thermostats"] = counted.reduced, len(counted.exchanged)
    return found


def costs(rank, world):
    """Messages and bytes of a step as they are counted, and as `tether.sharded.cost` has them."""
    found = []
    for dtype in (torch.float32, torch.float64):
        for word in ("BAOAB", "X"):
            parts = [
                tether.Part("*.weight", on=tether.Orthogonal(), word=word),
                tether.Part("0.bias", word="BACDEDCAB"),
                tether.Part("*", word="BAFEFAB"),
            ]
            model, mesh = network("sgd", dtype=dtype), init_device_mesh("cpu", (world,))
            shapes = [(name, param.detach().clone()) for name, param in model.named_parameters()]
            opt = tether.Optimizer(placed(model, mesh, cut_rows(mesh)), parts, lr=0.05, temperature=1e-3)
            gradients(model, 0)
            with Counted() as counted:
                opt.step()
            drifts = counted.reduced.count(3)  # the longest column of an 8 × 3 matrix
            turns = 2 if word == "BAOAB" else 0
            iterations = (counted.reduced.count(9) - turns) / drifts
            rows = tether.sharded.cost(shapes, parts, mesh, rank=rank, iterations=iterations)
            messages = len(counted.reduced) + len(counted.exchanged)
            found.append(((messages, counted.bytes), (sum(x.messages for x in rows), sum(x.bytes for x in rows))))
    return found


def ddp(rank, world):
    """DDP, each rank with its own part of the data, beside one process with all of it: how far apart, and the names."""
    torch.manual_seed(0)
    x = torch.randn(4 * world, 3, dtype=torch.float64)
    model, alone = network("sgd", dtype=torch.float64), network("sgd", dtype=torch.float64)
    wrapped = nn.parallel.DistributedDataParallel(model)
    parts = [tether.Part("0.weight", on=tether.Orthogonal()), tether.Part("*")]
    for one, mine in ((wrapped, x[rank::world]), (alone, x)):
        opt = tether.Optimizer(one, parts, lr=0.05, word="BAOAB", temperature=1e-3)
        for _ in range(STEPS):
            opt.zero_grad()
            one(mine).square().mean().backward()
            opt.step()
    return max(float((a - b).abs().max()) for a, b in zip(model.parameters(), alone.parameters(), strict=True))


def exchanged(rank, world):
    """Sharded after the optimizer was made, whose groups get the new parameters, as Accelerate does it."""
    found = {}
    for name in ("orthogonal_cola_ud", "adlala", "multirate_sgd", "random_subset", "composite_sgd"):
        model, alone = network(name, dtype=torch.float64), network(name, dtype=torch.float64)
        opt, other = ROWS[name].build(model), ROWS[name].build(alone)
        names = {id(param): key for key, param in model.named_parameters()}
        order = [[names[id(param)] for param in group["params"]] for group in opt.param_groups]
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
        new = dict(model.named_parameters())
        for group, mine in zip(opt.param_groups, order, strict=True):
            group["params"] = [new[key] for key in mine]
        for one, mine in ((model, opt), (alone, other)):
            train(one, mine, STEPS, real=True)
        with opt.awake(), other.awake():
            here, wanted = whole(model), whole(alone)
        found[name] = max(float((here[key] - wanted[key]).abs().max()) for key in wanted)
    return found


# Trouble


def trouble(rank, world):
    """One rank has a nan; then one rank has a gradient of another shape. What each rank says, and what has moved."""
    found = {}
    model = sharded("adlala", "fsdp", torch.float64, world)
    opt = ROWS["adlala"].build(model)
    train(model, opt, 2)
    before = whole(model)
    gradients(model, 2)
    if rank == 1:
        model[0].weight.grad.to_local()[0, 0] = float("nan")
    for how in ("raise", "skip"):
        opt.on_nonfinite = how
        try:
            opt.step()
            found[how] = opt.skipped
        except tether.NonFiniteGradient as error:
            found[how] = str(error)
    after = whole(model)
    found["moved"] = max(float((before[key] - after[key]).abs().max()) for key in before)
    gradients(model, 2)
    original = check_sharded.check_shape
    if rank == 1:

        def broken(*_):
            raise ValueError("this rank only")

        check_sharded.check_shape = broken
    try:
        opt.step()
    except (ValueError, RuntimeError) as error:
        found["one rank"] = str(error)
    check_sharded.check_shape = original
    opt.step()
    return found


def on_a_device(rank, world):
    """The way of a step whose host may not look at numbers: how far from one process, and what a nan does."""
    found, own = {}, (host.reads, native.serves)
    host.reads, native.serves = lambda device: False, lambda *_: False
    try:
        for name in ("langevin", "adlala", "circle_cola_ud", "sphere_cola_ud", "orthogonal_cola_ud"):
            for how in ("rows", "columns"):
                model, alone = sharded(name, how, torch.float64, world), network(name, dtype=torch.float64)
                opt, other = ROWS[name].build(model), ROWS[name].build(alone)
                train(model, opt, 5)
                train(alone, other, 5)
                before, wanted = whole(model), whole(alone)
                gradients(model, 5)
                if rank == 1:
                    model[0].weight.grad.to_local().fill_(float("nan"))
                opt.step()
                after = whole(model)
                try:
                    opt.step()
                    said = ""
                except tether.NonFiniteGradient as error:
                    said = str(error)
                far = max(float((before[key] - wanted[key]).abs().max()) for key in wanted)
                moved = max(float((before[key] - after[key]).abs().max()) for key in wanted)
                found[name, how] = far, moved, said
    finally:
        host.reads, native.serves = own
    return found


def fallbacks(rank, world):
    """Steps so long that the iteration gives up, by rows and by columns; then a step to a matrix without full rank."""
    found = {}
    for how in ("rows", "columns"):
        model, alone = sharded("sgd", how, torch.float64, world), network("sgd", dtype=torch.float64)
        parts = [tether.Part("*.weight", on=tether.Orthogonal()), tether.Part("*")]
        for one in (model, alone):
            opt = tether.Optimizer(one, parts, lr=0.4)
            train(one, opt, 3)
        first, second = whole(model), whole(alone)
        found[how] = max(float((first[key] - second[key]).abs().max()) for key in first), opt.rows[0].surface.fallbacks
    opt = tether.Optimizer(model := sharded("sgd", "rows", torch.float64, world), parts, lr=1.0)
    before = whole(model)
    gradients(model, 0)
    W = model[0].weight
    W.grad.to_local().copy_(W.detach().to_local() - 1.0)
    try:
        opt.step()
    except SurfaceError as error:
        found["rank"] = str(error), max(float((before[key] - x).abs().max()) for key, x in whole(model).items())
    return found


# Checkpoints

SAVED = ["sgld", "langevin", "adlala", "circle_cola_ud", "sphere_cola_ud", "orthogonal_cola_ud"]
SAVED += ["random_subset", "composite_sgd"]  # whose rhythms have state from the start


def state_of(model, opt):
    own, state = get_state_dict(model, opt)
    return {"model": own, "optimizer": state}


def save(rank, world, folder, how):
    """Ten steps, a checkpoint, ten more; returns where they lead."""
    found = {}
    for name in SAVED:
        model = sharded(name, how, torch.float64, world)
        opt = ROWS[name].build(model)
        train(model, opt, 10)
        dcp.save(state_of(model, opt), checkpoint_id=f"{folder}/{name}")
        train(model, opt, 10, start=10)
        found[name] = {key: x.numpy() for key, x in whole(model).items()}  # queues share the memory of tensors
    return found


def resume(rank, world, folder, how):
    """The same from the checkpoint on, on another number of ranks."""
    found = {}
    for name in SAVED:
        model = network(name, dtype=torch.float64, seed=7)
        model = model if how == "plain" else sharded(name, how, torch.float64, world)
        opt = ROWS[name].build(model, seed=7)
        state = state_of(model, opt)
        dcp.load(state, checkpoint_id=f"{folder}/{name}")
        set_state_dict(model, opt, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        train(model, opt, 10, start=10)
        found[name] = {key: x.numpy() for key, x in whole(model).items()}  # queues share the memory of tensors
    return found


# Constraints of other optimizers, mixtures, refusals

SURFACES = {
    "circle": lambda: tether.Circle(0.3),
    "circles": lambda: tether.Circle(torch.full((8, 1), 0.3, dtype=torch.float64)),
    "sphere": lambda: tether.Sphere(0.5),
    "orthogonal": tether.Orthogonal,
}


def constrained(rank, world):
    """AdamW with constraints, sharded and alone: how far apart after ten steps."""
    found = {}
    for key, surface in SURFACES.items():
        model, alone = sharded("sgd", "fsdp", torch.float64, world), network("sgd", dtype=torch.float64)
        for one in (model, alone):
            opt = torch.optim.AdamW(one.named_parameters(), lr=0.01)
            opt = tether.constrain(opt, {"0.weight": surface()})
            for step in range(10):
                gradients(one, step)
                opt.step()
        first, second = whole(model), whole(alone)
        far = max(float((first[name] - second[name]).abs().max()) for name in first)
        W = first["0.weight"]
        found[key] = far, float(W.abs().max()), float(W.norm(dim=1).max()), float((W.T @ W - torch.eye(3)).abs().max())
    return found


def mixed(rank, world):
    """A sharded first layer beside a plain second one: how far from one process, with a thermostat over both."""
    model, alone = network("sgd", dtype=torch.float64), network("sgd", dtype=torch.float64)
    mesh = init_device_mesh("cpu", (world,))
    placed(model[0], mesh, cut_rows(mesh))
    for one in (model, alone):
        opt = tether.Optimizer(one, word="BACDEDCAB", lr=0.05, temperature=1e-3)
        train(one, opt, STEPS)
    first, second = whole(model), whole(alone)
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def refused(rank, world):
    """What is said to those who ask for what cannot be had."""
    asked = {
        "path": lambda model: tether.Optimizer(model, lr=0.1, metric=tether.Path()),
        "level": lambda model: tether.Optimizer(
            model, [tether.Part("0.weight", on=tether.Level(lambda w: w.square().sum() - 1)), tether.Part("*")], lr=0.1
        ),
        "replicas": lambda model: tether.Optimizer(model[0], lr=0.1, batch_dims=1),
    }
    found = {}
    for key, ask in asked.items():
        try:
            ask(sharded("sgd", "rows", torch.float64, world))
        except (ValueError, TypeError) as error:
            found[key] = str(error)
    columns = sharded("sphere_cola_ud", "columns", torch.float64, world)
    try:
        tether.Optimizer(columns, [tether.Part("0.weight", on=tether.Sphere(per="tensor")), tether.Part("*")], lr=0.1)
    except ValueError as error:
        found["whole"] = str(error)
    try:
        rows = sharded("sgd", "rows", torch.float64, world)
        tether.Optimizer(rows, [tether.Part("0.weight", on=tether.SpectralBall()), tether.Part("*")], lr=0.1)
    except ValueError as error:
        found["ball"] = str(error)
    opt = torch.optim.AdamW(columns.named_parameters(), lr=0.01)
    try:
        tether.constrain(opt, {"0.weight": tether.Sphere()})
    except ValueError as error:
        found["sphere"] = str(error)
    return found


def several(rank, world, *jobs):
    """Some of these, one after the other."""
    return [globals()[job](rank, world, *arguments) for job, *arguments in jobs]
