"""Checkpoints: what they hold, and whether one is of the optimizer it is loaded into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tether.engine.blocks import Lanes
from tether.engine.given import named
from tether.engine.rows import Row
from tether.noise import STREAM
from tether.surfaces import Surface

__all__ = ["check_checkpoint", "take_over", "with_every_parameter"]


def check_checkpoint(state_dict: dict[str, Any], rows: Sequence[Row], lanes: Lanes) -> None:
    """Raise unless words, metrics, surfaces, shapes and the noise are those of the optimizer."""
    saved_groups, groups = state_dict["param_groups"], [row.group for row in rows]
    if not any("word" in saved for saved in saved_groups):
        raise ValueError(
            "the checkpoint is of another optimizer, not of tether's: its groups have no word. Load the model alone, "
            "and begin a new run"
        )
    sizes = [[len(group["params"]) for group in each] for each in (groups, saved_groups)]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"the optimizer has parameter groups of {sizes[0]} tensors, but the checkpoint of {sizes[1]}: build the "
            "optimizer with the checkpoint's parts, for the checkpoint's model"
        )
    for i, (saved, group) in enumerate(zip(saved_groups, groups, strict=True)):
        if saved.get("word") != group["word"]:
            raise ValueError(
                f"part {group['where']!r} (group {i}) runs the word {group['word']!r}, but the checkpoint was "
                f"saved with {saved.get('word')!r}: build the optimizer with the checkpoint's parts"
            )
        if saved.get("stream", 1) != STREAM:
            raise ValueError(
                f"the checkpoint names its noise by version {saved.get('stream', 1)} of the generator, this tether by "
                f"version {STREAM}: the run would go on with other numbers. Continue it with the tether that saved it, "
                "or load the model alone and make a new optimizer"
            )
        if saved.get("metric") != group["metric"]:
            raise ValueError(
                f"part {group['where']!r} (group {i}) has the metric {group['metric']}, but the checkpoint was "
                f"saved with {saved.get('metric')}: build the optimizer with the checkpoint's parts"
            )
        if saved.get("on") != group["on"]:
            raise ValueError(
                f"part {group['where']!r} (group {i}) is on {group['on']}, but the checkpoint was saved on "
                f"{saved.get('on')}: build the optimizer with the checkpoint's parts"
            )
        if saved.get("rhythm", group["rhythm"]) != group["rhythm"]:
            raise ValueError(
                f"part {group['where']!r} (group {i}) has the rhythm {group['rhythm']}, but the checkpoint was saved "
                f"with {saved['rhythm']}: build the optimizer with the checkpoint's parts"
            )
        for j, (name, param) in zip(saved["params"], named(group, 0), strict=False):
            momentum = state_dict["state"].get(j, {}).get("momentum")
            surface, dims = rows[i].surface, int(lanes.batched)
            expected = tuple(param.shape)
            if rows[i].bound and isinstance(surface, Surface):
                whole = (sum(x.numel() for x in group["params"]) // lanes.rows,)
                own = surface.coordinates(whole if surface.together else param.shape[dims:])
                expected = (*param.shape[:dims], *own)
            if momentum is not None and tuple(momentum.shape) != expected:
                raise ValueError(
                    f"{name!r} has shape {tuple(param.shape)} and so a momentum of shape {expected}, but the one "
                    f"in the checkpoint has {tuple(momentum.shape)}: this is the checkpoint of another model"
                )


def with_every_parameter(packed: dict[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    """A state dict with some state for every parameter that moves, or for none, as distributed checkpoints want it."""
    if packed["state"]:
        state = dict(packed["state"])
        for saved, row in zip(packed["param_groups"], rows, strict=True):
            made = (row.leader or row).made
            moving = {param for body in made or () for param in body.home}
            for i, param, trained in zip(saved["params"], row.group["params"], row.trained, strict=True):
                if param in moving or (trained and made is None):
                    state.setdefault(i, {"step": torch.tensor(float(row.group["step"]))})
        packed["state"] = state
    return packed


def take_over(rows: Sequence[Row], groups: Sequence[dict[str, Any]], state: Any, given: dict[str, Any]) -> None:
    """Take over what torch has loaded.

    It casts state to the parameter's dtype, too coarse for points and averages in half precision, and does not copy it.
    """
    for saved, row, group in zip(given["param_groups"], rows, groups, strict=True):
        row.group = group
        row.know()
        row.forget()
        wide = group["on"] != "Free()" or group["metric"] is not None
        for j, param in zip(saved["params"], group["params"], strict=True):
            if j in given["state"]:
                state[param] = {
                    key: value.to(param.device, value.dtype if wide else param.dtype, copy=True)
                    for key, value in given["state"][j].items()
                }
        row.state, row.chosen = state, row.choices()
