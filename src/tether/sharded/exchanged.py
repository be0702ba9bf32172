"""Exchanged: parameters that others have put in the place of those the optimizer was made of.

Accelerate shards a model after its optimizer was made: it gives each param group a list of the sharded parameters, in
the order of the first ones. Names, surfaces and rhythms stay; state that was made already is cut like its parameter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tether.sharded.pieces import is_sharded
from tether.sharded.ranks import admit_sharded, ranks_of
from tether.surfaces import Surface

if TYPE_CHECKING:
    from tether.engine.rows import Row
    from tether.optimizer import Optimizer

__all__ = ["follow"]


@torch.no_grad()
def follow(opt: Optimizer) -> None:
    """Take over the parameters that the param groups hold now. Raises before anything has changed."""
    moved: list[tuple[torch.Tensor, torch.Tensor, dict[str, Any]]] = []
    for row in opt.rows:
        for old, name, param in zip(row.first, row.names, row.group["params"], strict=True):
            admit_sharded(name, param, row.surface, row.metric, opt.replicas)
            if old is not param and old in opt.state:
                moved.append((old, param, cut(row, name, param, opt.state[old])))
    for old, param, state in moved:
        opt.state.pop(old)
        opt.state[param] = state
    opt.ranks = ranks_of([param for row in opt.rows for param in row.group["params"]])
    for row in opt.rows:
        row.ranks = opt.ranks
        row.know()
        row.forget()


def cut(row: Row, name: str, param: Any, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state of a whole parameter, for the sharded one in its place."""
    if isinstance(row.surface, Surface):
        raise RuntimeError(
            f"parameter {name!r} on {row.surface!r} was exchanged for another one in the middle of a run: shard the "
            "model before the first step, or make a new optimizer and load its state"
        )
    if not is_sharded(param):
        return {key: x.to(param.device) for key, x in state.items()}
    from torch.distributed.tensor import distribute_tensor

    where = param.device_mesh, param.placements
    return {
        key: distribute_tensor(x.to(param.device), *where, src_data_rank=None) if x.shape == param.shape else x
        for key, x in state.items()
    }
