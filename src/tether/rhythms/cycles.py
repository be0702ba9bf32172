"""Cycles: what a part does over several steps, beside moving by its word at each of them (5.5.1, 5.9.3).

A cycle looks at a part before and after its step; what it must remember is kept with the optimizer's state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tether.engine.blocks import Lanes
from tether.letters import exp
from tether.noise import Normals

__all__ = ["Cycle", "Merge", "Sleep", "cycle"]

Group = dict[str, Any]
Values = list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def cycle(group: Group, names: Sequence[str], lanes: Lanes) -> Cycle | None:
    """What a row of the table asks for."""
    if group["asleep"]:
        return Sleep(names, group["params"], lanes)
    return Merge() if group["merge"] > 1 else None


class Cycle:
    """Does nothing, at every occasion there is."""

    def start(self, group: Group, state: Any) -> None:
        """The part has been made."""

    def before(self, group: Group, state: Any) -> Any:
        """A step is about to be made; what this returns is handed to `after`."""

    def after(self, group: Group, state: Any, values: Any) -> None:
        """It has been made, and is not counted yet."""

    def rise(self, group: Group, state: Any) -> None:
        """Show the part as a whole: for an evaluation, a checkpoint that is about to be loaded, or the end of a run."""

    def lie_down(self, group: Group, state: Any) -> None:
        """Undo that."""

    def loaded(self, group: Group) -> None:
        """It has been loaded."""


class Merge(Cycle):
    """A slow copy makes one step h·merge while the part makes `merge` steps h; then both become their mean (5.9.3).

    They part from the same point, so the slow copy's gradient is the first one of the cycle: it costs none of its own.
    It has a momentum of its own.
    """

    def start(self, group: Group, state: Any) -> None:
        for param in group["params"]:
            if param.requires_grad:
                state[param]["slow copy"] = param.detach().clone()
                if group["word"] == "MS":
                    state[param]["slow momentum"] = torch.zeros_like(param)

    def before(self, group: Group, state: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The step of the slow copy, to be written once the part has made its own."""
        found = []
        for param in group["params"] if group["step"] % group["merge"] == 0 else ():
            own = state.get(param, {})
            if param.grad is not None and "slow copy" in own:
                h, γ, ω = (_wide(x, param) for x in (group["lr"], group["friction"], group["weight_decay"]))
                g = param.grad + ω * param.detach()
                if "slow momentum" in own:
                    g = exp(-γ) * own["slow momentum"] + g
                    found.append((own["slow momentum"], g))
                found.append((own["slow copy"], param.detach() - group["merge"] * h * g))
        return found

    def after(self, group: Group, state: Any, values: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for tensor, value in values:
            tensor.copy_(value)
        if (group["step"] + 1) % group["merge"] == 0:
            for param in group["params"]:
                copy = state.get(param, {}).get("slow copy")
                if copy is not None and param.grad is not None:
                    copy.copy_(param.detach().lerp_(copy, 0.5))


def _wide(x: Any, param: torch.Tensor) -> Any:
    """A number, or one for each replica in the shape of a parameter."""
    if isinstance(x, torch.Tensor):
        return x.to(param).reshape(-1, *[1] * (param.dim() - 1)) if x.dim() else float(x)
    return x


class Sleep(Cycle):
    """Which weights of a part sleep, and what a step does to them.

    For `nap` steps the sleepers are 0 and the others move with h. Then they wake as they were, all move together once,
    the sleepers with h·nap, and others fall asleep. Who sleeps is named by (seed, cycle, parameter), as noise is.
    """

    def __init__(self, names: Sequence[str], params: Sequence[torch.Tensor], lanes: Lanes) -> None:
        self.names, self.lanes = list(names), lanes
        self.trained = [param.requires_grad for param in params]
        self._known: tuple[tuple[int, int], list[torch.Tensor]] = ((-1, -1), [])

    def masks(self, group: Group, cycle: int) -> list[torch.Tensor]:
        """Where the sleepers of a cycle are, parameter by parameter."""
        if self._known[0] != (group["seed"], cycle):
            masks = []
            for name, param in zip(self.names, group["params"], strict=True):
                size, cpu = param.numel(), torch.device("cpu")
                rows, numbers = self.lanes.rows, self.lanes.numbers
                normals = Normals([f"sleep/{name}"], [size], [0], size, torch.float64, cpu, rows, numbers)
                sleeps = torch.special.ndtr(normals.draw(group["seed"], cycle, 0)) < group["asleep"]
                masks.append(sleeps.view(param.shape).to(param.device))
            self._known = ((group["seed"], cycle), masks)
        return self._known[1]

    def _sleepers(self, group: Group, cycle: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for param, mask, trained in zip(group["params"], self.masks(group, cycle), self.trained, strict=True):
            if trained:
                yield param, mask

    def start(self, group: Group, state: Any) -> None:
        self.lie_down(group, state)

    def lie_down(self, group: Group, state: Any) -> None:
        """Put the sleepers to 0, if this is their time."""
        cycle, phase = divmod(group["step"], group["nap"] + 1)
        if phase < group["nap"]:
            self._lie_down(group, state, cycle)

    def _lie_down(self, group: Group, state: Any, cycle: int) -> None:
        """Put the sleepers of a cycle to 0, and keep what they were."""
        for param, mask in self._sleepers(group, cycle):
            # in place, so that a replica that sits this step out keeps its own
            state[param].setdefault("held", torch.empty_like(param, requires_grad=False)).copy_(param.detach())
            param.detach().masked_fill_(mask, 0.0)

    def rise(self, group: Group, state: Any) -> None:
        """Give the sleepers their values back, if this is their time."""
        cycle, phase = divmod(group["step"], group["nap"] + 1)
        if phase < group["nap"]:
            self._rise(group, state, cycle)

    def _rise(self, group: Group, state: Any, cycle: int) -> None:
        for param, mask in self._sleepers(group, cycle):
            if "held" in state.get(param, {}):
                asleep = mask & (param.detach() == 0)  # all but those of a replica that sat out when they lay down
                torch.where(asleep, state[param]["held"], param.detach(), out=param.detach())

    def loaded(self, group: Group) -> None:
        """Put the sleepers of the present cycle to 0, if this is their time."""
        cycle, phase = divmod(group["step"], group["nap"] + 1)
        if phase < group["nap"]:
            for param, mask in self._sleepers(group, cycle):
                param.detach()[mask] = 0.0

    def before(self, group: Group, state: Any) -> Values:
        """What the coming step must not change, or must change by more: the sleepers and their momenta."""
        found = []
        for param, mask in self._sleepers(group, group["step"] // (group["nap"] + 1)):
            for tensor in (param.detach(), state[param].get("momentum")):
                if tensor is not None:
                    found.append((tensor, mask, tensor.clone()))
        return found

    def after(self, group: Group, state: Any, values: Values) -> None:
        """Keep the sleepers asleep, wake them, or lengthen the step they have just made together with the others."""
        cycle, phase = divmod(group["step"], group["nap"] + 1)
        if phase < group["nap"]:
            for tensor, mask, value in values:
                torch.where(mask, value, tensor, out=tensor)
        if phase == group["nap"] - 1:
            self._rise(group, state, cycle)
        if phase == group["nap"]:
            moved = {param.data_ptr() for param in group["params"]}
            for tensor, mask, value in values:
                if tensor.data_ptr() in moved:  # the words X and MS move by a multiple of h
                    torch.where(mask, value + group["nap"] * (tensor - value), tensor, out=tensor)
            self._lie_down(group, state, cycle + 1)
