"""Verdict: whether the gradients of a step are finite, decided on their device.

The host does not wait for the answer. All writes of the step are masked by it, so that a step with a bad gradient moves
nothing, and the host reads it when the next step begins. By then it has long arrived. A step that moved nothing does
not count: the host takes it back.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tether.engine import host
from tether.engine.commit import local
from tether.engine.given import named
from tether.engine.gradients import NonFiniteGradient, check_kind

__all__ = ["Verdict", "sound"]

Groups = list[dict[str, Any]]


class Verdict:
    """Which gradients of a step are not finite: `bad` is one answer, or one for each replica, on the device."""

    def __init__(self, groups: Groups, replicas: int) -> None:
        self.names, grads, first = list[str](), list[torch.Tensor](), 0
        for group in groups:
            for i, (name, param) in enumerate(named(group, first)):
                grad = None if param.grad is None else local(param.grad)
                if grad is not None and grad.numel():
                    check_kind(group, first, i)
                    self.names.append(name)
                    grads.append(grad)
            first += len(group["params"])
        self.each = sound(grads) if grads else torch.ones(1, dtype=torch.bool, device=groups[0]["params"][0].device)
        self.bad = ~(by_replica(grads, replicas) if replicas else self.each.all())
        self.stopped = groups[0]["stopped"]
        if replicas and self.stopped:  # they rest anyway
            self.bad = self.bad.index_fill(0, host.indices(self.stopped, self.bad.device), False)
        self.replicas = replicas
        self.ready: Any = None
        self.counts: list[dict[str, Any]] = []  # step numbers and step sizes before the step, by group

    def sent(self) -> Verdict | None:
        """The same on its way to the host, which does not wait for it now; None on meta, which knows no answers."""
        device = self.bad.device
        if device.type == "meta":
            return None
        own = copy.copy(self)
        own.bad, own.each = (x.to("cpu", non_blocking=True) for x in (self.bad, self.each))
        if device.type != "cpu":
            own.ready = torch.Event(device)
            own.ready.record()
        return own

    def found(self) -> bool:
        """Was a gradient not finite?"""
        if self.ready is not None:
            self.ready.synchronize()
        return bool(self.bad.any())

    def error(self) -> NonFiniteGradient:
        """What to raise if one was not."""
        names = [name for name, fine in zip(self.names, self.each.tolist(), strict=False) if not fine]
        names = names or ["a parameter of another rank"]
        faulty = self.bad.nonzero().flatten().tolist() if self.replicas else []
        return NonFiniteGradient(dict.fromkeys(names, "in the step before this one"), faulty)


def sound(grads: Sequence[torch.Tensor]) -> torch.Tensor:
    """For each gradient whether it is finite, by a number of operations that does not depend on how many there are."""
    alike: dict[Any, list[int]] = {}
    for i, grad in enumerate(grads):
        alike.setdefault((grad.dtype, grad.device), []).append(i)
    found = []
    for own in alike.values():
        # the largest |entry| is finite exactly where all are
        largest = torch._foreach_norm([grads[i] for i in own], math.inf)
        found.append(torch.stack(largest).isfinite())
    if len(found) == 1:
        return found[0]
    order = [i for own in alike.values() for i in own]
    back = sorted(range(len(order)), key=order.__getitem__)
    device = grads[0].device
    return torch.cat([x.to(device, non_blocking=True) for x in found])[host.indices(back, device)]


def by_replica(grads: Iterable[torch.Tensor], rows: int) -> torch.Tensor:
    """For each replica whether all of its gradients are finite."""
    found = [grad.reshape(rows, -1).isfinite().all(1) for grad in grads]
    return torch.stack([x.to(found[0].device) for x in found]).all(0)
