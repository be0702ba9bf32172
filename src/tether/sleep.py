"""Sleep: a random share of a part's weights is 0 for some steps, then moves once with a longer one (5.5.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tether.motion import Lanes
from tether.noise import Normals

__all__ = ["Sleep"]

Values = list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


class Sleep:
    """Which weights of a part sleep, and what a step does to them.

    For `nap` steps the sleepers are 0 and the others move with h. Then they wake as they were, all move together once,
    the sleepers with h·nap, and others fall asleep. Who sleeps is named by (seed, cycle, parameter), as noise is.
    """

    def __init__(self, names: Sequence[str], params: Sequence[torch.Tensor], lanes: Lanes) -> None:
        self.names, self.lanes = list(names), lanes
        self.trained = [param.requires_grad for param in params]
        self._known: tuple[tuple[int, int], list[torch.Tensor]] = ((-1, -1), [])

    def masks(self, group: dict[str, Any], cycle: int) -> list[torch.Tensor]:
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

    def _sleepers(self, group: dict[str, Any], cycle: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for param, mask, trained in zip(group["params"], self.masks(group, cycle), self.trained, strict=True):
            if trained:
                yield param, mask

    def lie_down(self, group: dict[str, Any], state: Any, cycle: int = 0) -> None:
        """Put the sleepers of a cycle to 0, and keep what they were."""
        for param, mask in self._sleepers(group, cycle):
            state[param]["held"] = param.detach().clone()
            param.detach()[mask] = 0.0

    def rise(self, group: dict[str, Any], state: Any) -> None:
        """Undo `lie_down` where the sleepers are still 0: a checkpoint is about to say who sleeps."""
        for param, mask in self._sleepers(group, group["step"] // (group["nap"] + 1)):
            held = state.get(param, {}).get("held")
            if held is not None and not param.detach()[mask].any():
                param.detach()[mask] = held[mask]

    def fall_asleep_again(self, group: dict[str, Any]) -> None:
        """Put the sleepers of the present cycle to 0, if this is their time: a checkpoint has been loaded."""
        cycle, phase = divmod(group["step"], group["nap"] + 1)
        if phase < group["nap"]:
            for param, mask in self._sleepers(group, cycle):
                param.detach()[mask] = 0.0

    def before(self, group: dict[str, Any], state: Any) -> Values:
        """What the coming step must not change, or must change by more: the sleepers and their momenta."""
        found = []
        for param, mask in self._sleepers(group, group["step"] // (group["nap"] + 1)):
            for tensor in (param.detach(), state[param].get("momentum")):
                if tensor is not None:
                    found.append((tensor, mask, tensor[mask]))
        return found

    def after(self, group: dict[str, Any], state: Any, values: Values) -> None:
        """Keep the sleepers asleep, wake them, or lengthen the step they have just made together with the others."""
        cycle, phase = divmod(group["step"], group["nap"] + 1)
        if phase < group["nap"]:
            for tensor, mask, value in values:
                tensor[mask] = value
        if phase == group["nap"] - 1:
            for param, mask in self._sleepers(group, cycle):
                param.detach()[mask] = state[param]["held"][mask]
        if phase == group["nap"]:
            moved = {param.data_ptr() for param in group["params"]}
            for tensor, mask, value in values:
                if tensor.data_ptr() in moved:  # the words X and MS move by a multiple of h
                    tensor[mask] = value + group["nap"] * (tensor[mask] - value)
            self.lie_down(group, state, cycle + 1)
