"""Ranks: the processes that share the parameters of an optimizer, and what they must agree on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tether.engine.blocks import Block, Lanes
from tether.engine.commit import local
from tether.engine.gradients import NonFiniteGradient, check_shape, finite
from tether.engine.moving import Moving
from tether.engine.placed import Stack
from tether.sharded.bands import Bands, banded, banded_start, by_bands
from tether.sharded.collected import Collected
from tether.sharded.empty import Empty
from tether.sharded.gathered import Gathered, gathered_start
from tether.sharded.pieces import Copied, Cut, cut_dims, is_sharded, piece_of
from tether.sharded.split import Long, by_long_side
from tether.surfaces import Free, Surface, SurfaceError

if TYPE_CHECKING:
    from tether.engine.rows import Row
    from tether.optimizer import Optimizer

__all__ = ["Shared", "admit_sharded", "ranks_of"]

TIED = {True: ("owners",), False: ("owners", "sums", "bands")}  # ways that need whole matrices, without slack


def ranks_of(params: Sequence[torch.Tensor]) -> Shared | None:
    """The processes that share these parameters; None where none of them is a DTensor."""
    sharded = [param for param in params if is_sharded(param)]
    return Shared(sharded) if sharded else None


def admit_sharded(
    name: str, param: Any, surface: Surface | Free, metric: Any, replicas: bool, state: bool = True
) -> None:
    """Raise for a sharded parameter that its part cannot move. All processes come to the same answer.

    `state` says that the state is ours, to be cut as we like.
    """
    if not is_sharded(param):
        return
    if any(placement.is_partial() for placement in param.placements):
        raise TypeError(f"parameter {name!r} is a sum over ranks, {param.placements}: redistribute it first")
    if replicas:
        raise ValueError(f"parameter {name!r} is a DTensor, and replicas cannot be sharded: use batch_dims=0")
    if metric is not None and not metric.entrywise:
        raise ValueError(
            f"{metric!r} measures the whole network, and {name!r} is sharded: leave the model whole and use DDP"
        )
    if isinstance(surface, Surface) and way(param, surface) in TIED[state]:
        matrix = len(surface.coordinates(param.shape)) == 2
        if surface.slack or surface.together or not matrix:
            rows = surface.restricted(param.shape, [0] * param.dim(), [0, *param.shape[1:]]) is not None
            cure = "cut it by rows, Shard(0)" if rows else "leave it whole"
            raise SurfaceError(
                f"{surface!r} on {name!r}, which is cut along axis {min(cut_dims(param))}: it ties weights of several "
                f"ranks to each other; {cure}, e.g. fully_shard(model, ignored_params={{...}})"
            )


def way(param: Any, surface: Surface) -> str:
    """How a parameter moves on a surface. The same answer on all ranks, also those with an empty block.

    Every rank moves its ``"pieces"``; all add up the ``"sums"`` that tie them together; each moves a ``"band"`` of
    whole rows; or ``"owners"`` assemble the matrices.
    """
    if not is_sharded(param) or by_pieces(param, surface):
        return "pieces"
    if by_long_side(param, surface):
        return "sums"
    return "bands" if by_bands(param, surface) else "owners"


def by_pieces(param: Any, surface: Surface) -> bool:
    """Is every rank's block on a surface of its own?"""
    cut, shape = cut_dims(param), tuple(param.shape)
    sizes = [0 if d in cut else n for d, n in enumerate(shape)]
    return not cut or surface.restricted(shape, [0] * len(shape), sizes) is not None


class Shared:
    """The processes of the largest mesh among the parameters. A reduction is one message, made by all of them."""

    def __init__(self, params: Sequence[Any]) -> None:
        mesh = max((param.device_mesh for param in params), key=lambda mesh: mesh.size())
        self.size, self.device = mesh.size(), params[0].to_local().device
        self.groups = [None] if self.size == dist.get_world_size() else list(mesh.get_all_groups())

    def __deepcopy__(self, _: Any) -> Shared:
        """Process groups cannot be copied, and need not be."""
        return self

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        """The sums over all processes."""
        return self.reduced(numbers, dist.ReduceOp.SUM)

    def worst(self, numbers: torch.Tensor) -> torch.Tensor:
        """The largest numbers of all processes."""
        return self.reduced(numbers, dist.ReduceOp.MAX)

    def reduced(self, numbers: torch.Tensor, operation: Any) -> torch.Tensor:
        sent = numbers.to(self.device, copy=True)
        for group in self.groups:
            dist.all_reduce(sent, operation, group=group)
        return sent.to(numbers.device)

    def share(self, param: Any) -> float:
        """The share of this process's sum over a parameter in that of all: each block is on as many ranks."""
        if not is_sharded(param):
            return 1 / self.size
        cut = [n for n, one in zip(param.device_mesh.shape, param.placements, strict=True) if hasattr(one, "dim")]
        return math.prod(cut) / self.size

    def block(self, param: Any) -> tuple[slice, ...]:
        """What this process holds of a parameter, as an index of the whole."""
        return piece_of(param).slices if is_sharded(param) else (slice(None),) * param.dim()

    def agree(self, what: str, trouble: Exception | None, code: int = 0) -> int:
        """The largest code of all ranks. Where one of them has trouble, all raise."""
        found = int(self.worst(torch.tensor([float(code) if trouble is None else 2.0])))
        if trouble is not None:
            raise trouble
        if found == 2:
            raise RuntimeError(f"another rank could not {what}: see its error. No parameter was moved")
        return found

    def usable(self, opt: Optimizer) -> Sequence[int] | None:
        """Are the gradients of all ranks finite? None skips the step."""
        named = [pair for row in opt.rows for pair in zip(row.names, row.group["params"], strict=True)]
        moving = [(name, param) for name, param in named if param.grad is not None]
        alike: dict[Any, list[torch.Tensor]] = {}
        trouble: Exception | None = None
        bad = False
        try:
            for name, param in moving:
                check_shape(name, param)
                grad = local(param.grad)
                alike.setdefault((grad.dtype, grad.device), []).append(grad)
            bad = not all(finite(grads) for grads in alike.values())
        except Exception as error:
            trouble = error
        if not self.agree("use its gradients", trouble, int(bad)):
            return ()
        found = self.faults(moving)
        if opt.on_nonfinite == "raise":
            raise NonFiniteGradient(found)
        opt.missed = opt.missed + 1
        return None

    def faults(self, moving: Sequence[tuple[str, Any]]) -> dict[str, str]:
        """What is wrong with which gradient, on all ranks together."""
        each = []
        for _, param in moving:
            grad = local(param.grad)
            each.append(self.share(param) * torch.stack((grad.isnan().sum(), grad.isinf().sum())).double())
        counts = self.total(torch.stack(each)).round().long().tolist()
        pairs = zip(moving, counts, strict=True)
        return {name: f"{nan} nan and {inf} inf of {param.numel()}" for (name, param), (nan, inf) in pairs if nan + inf}

    def bodies(self, row: Row, chosen: Sequence[tuple[Any, str]], momenta: bool) -> list[Any]:
        """The bodies of a row, equal in number and order on all ranks."""
        rest, surface = (row.state, momenta, row.lanes), row.surface
        if not isinstance(surface, Surface):
            return [Block(mine, own, *rest, self.cut(mine), row.keeps) for mine, own in alike_in(kind, chosen)]
        made: list[Any] = []
        count = 0
        for mine, own in alike_in(kind_and_shape, chosen):
            how, cut = way(mine[0], surface), self.cut(mine, surface)
            if how == "owners":
                made.append(Gathered(mine, own, *rest, surface, self.size, count))
                count += len(mine)
            elif how == "bands":
                made.append(Bands(mine, own, *rest, surface, cut.share))
            else:
                empty = how == "pieces" and not local(mine[0]).numel()
                made.append((Empty if empty else Moving)(mine, own, *rest, surface, cut))
        return made

    def cut(self, params: Sequence[Any], surface: Surface | None = None) -> Copied | Cut:
        """What this process holds of parameters that are alike."""
        share, first = self.share(params[0]), params[0]
        if not is_sharded(first):
            return Copied(share)
        return (Long if surface is not None and way(first, surface) == "sums" else Cut)(params, share)

    def place(self, named: Mapping[str, Any], surface: Surface, seed: int, lanes: Lanes) -> list[tuple[Any, Any]]:
        """Where parameters start on their surface; a start that one rank refuses is refused by all."""
        chosen = [(param, name) for name, param in named.items() if param.requires_grad]
        trouble: Exception | None = None
        try:
            for param, name in chosen:
                surface.admit(name, local(param))
        except SurfaceError as error:
            trouble = error
        self.agree(f"start on {surface!r}", trouble)
        placed: list[tuple[Any, Any]] = []
        for mine, own in alike_in(kind_and_shape, chosen):
            how = way(mine[0], surface)
            if how != "pieces":
                start = banded_start if how == "bands" else gathered_start
                placed.append(start(mine, own, surface, seed))
            elif local(mine[0]).numel():
                stack = Stack(mine, own, surface, lanes, self.cut(mine))
                placed.append((stack, stack.placed(seed)))
        return placed

    def stacks(
        self, chosen: Sequence[tuple[Any, str]], surface: Surface, lanes: Lanes
    ) -> tuple[list[Stack], list[Collected]]:
        """Parameters that `tether.constrain` holds: those that can be cut, and those that owners must assemble."""
        groups = alike_in(kind_and_shape, chosen)
        cut = [way(mine[0], surface) != "pieces" for mine, _ in groups]
        apart = [Collected(mine, surface) for (mine, _), yes in zip(groups, cut, strict=True) if yes]
        rest = [pair for pair, yes in zip(groups, cut, strict=True) if not yes and local(pair[0][0]).numel()]
        return [Stack(mine, own, surface, lanes, self.cut(mine)) for mine, own in rest], apart

    def violation(self, moving: Sequence[tuple[str, Any]], surface: Surface, lanes: Lanes, state: Any) -> torch.Tensor:
        """The largest violation of these parameters; a matrix that cannot be cut is looked at whole, one at a time."""
        worst = torch.zeros(1, dtype=torch.float64)
        for name, param in moving:
            stack, held = self.seen(name, param, surface, lanes, state)
            if stack is not None:
                point = stack.surface.embed(stack.point(held), stack.gather(stack.params))
                worst = torch.maximum(worst, stack.surface.violation(point).double().cpu())
        return self.worst(worst)

    def seen(self, name: str, param: Any, surface: Surface, lanes: Lanes, state: Any) -> tuple[Stack | None, Any]:
        """What this rank looks at to see whether a parameter is on its surface, and its state."""
        how = way(param, surface)
        if how == "owners":
            return Stack([param.full_tensor()], [name], surface, lanes), state
        if how == "bands":
            exchange, stack = banded([param], [name], surface)
            return stack, {exchange.params[0]: state.get(param, {})}
        if how == "pieces" and not local(param).numel():
            return None, {}
        return Stack([param], [name], surface, lanes, self.cut([param], surface)), state


def kind(x: Any) -> tuple[Any, ...]:
    """What free tensors of a body have in common."""
    return (x.dtype, x.device, *((x.device_mesh, tuple(x.placements)) if is_sharded(x) else ()))


def kind_and_shape(x: Any) -> tuple[Any, ...]:
    """What tensors on a surface have in common."""
    return (*kind(x), tuple(x.shape))


def alike_in(key: Any, chosen: Sequence[tuple[Any, str]]) -> list[tuple[list[Any], list[str]]]:
    """Parameters and their names, those with the same key together."""
    alike: dict[Any, tuple[list[Any], list[str]]] = {}
    for param, name in chosen:
        mine, own = alike.setdefault(key(param), ([], []))
        mine.append(param)
        own.append(name)
    return list(alike.values())
