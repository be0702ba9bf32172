"""Motion: how a word's letters reach the tensors of one part, in as few passes as they allow.

A letter is linear in θ, p, g and R for all dynamics of the papers. Run on formal sums it yields its
coefficients, e.g. O gives ``p ← 0.9 p + 0.3 R``, and a whole word of those is carried out at once: by the
compiled kernel in one pass over memory, or by a few fused calls of torch. A letter that is not linear is
applied tensor by tensor, which is also the reference that the tests compare with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tether.engine.blocks import Block, Lanes, Program, Update
from tether.engine.sums import Scalar, coefficients, per_replica, steady_coefficients
from tether.letters import LETTERS
from tether.words import Beat

__all__ = ["Motion"]

Tensors = list[torch.Tensor]
FIELDS = ("γ", "τ", "ε", "σ", "N")  # the scalars that stay as they are during a step


class Motion:
    """One part on the move: its blocks, and the values of its fields for this step."""

    def __init__(
        self,
        params: Tensors,
        names: list[str],
        momenta: bool,
        state: Mapping[torch.Tensor, Any],
        reference: bool,
        lanes: Lanes,
    ) -> None:
        self.reference, self.has_momenta = reference, momenta
        self.stretched: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.composed: tuple[Any, Program, int] | None = None
        chosen: dict[tuple[torch.dtype, torch.device], tuple[Tensors, list[str]]] = {}
        self.waiting: Tensors = []
        for param, name in zip(params, names, strict=True):
            if param.grad is None and "momentum" not in state.get(param, {}):
                self.waiting.append(param)
                continue
            mine, labels = chosen.setdefault((param.dtype, param.device), ([], []))
            mine.append(param)
            labels.append(name)
        self.blocks = [Block(mine, labels, state, momenta, lanes) for mine, labels in chosen.values()]

    def stale(self, momenta: bool) -> bool:
        """Must the blocks be made anew: for a first gradient, another dtype, or a word that needs momenta now?"""
        if momenta and not self.has_momenta:
            return True
        if any(param.grad is not None for param in self.waiting):
            return True
        return not all(block.fits() for block in self.blocks)

    def begin(
        self, scalars: dict[str, Scalar], weight_decay: Scalar, gradient: bool = True, resting: Sequence[int] = ()
    ) -> None:
        """Take the gradients and the values of the fields; for letters before the first kick, no gradient.

        The gradients of resting replicas, which may be nan, count as 0.
        """
        for block in self.blocks:
            block.begin(weight_decay, gradient, resting)
        self.live = [block for block in self.blocks if block.g or not gradient]
        self.scalars = scalars
        self.scalars["N"] = sum([block.count for block in self.live])

    fallible = False

    def measured(self, metric: Any, factors: Mapping[str, Any], whole: bool) -> None:
        """Take this step in the metric γ: with g/γ for g, or, if `whole`, in the coordinates √γ θ.

        Those make noise and momenta what they are in the metric: dθ = −γ⁻¹∇L dt + √(2τ/γ) dW for X. No weight enters
        its own γ unless it is shared, so that the divergence of γ⁻¹ vanishes and exp(−L/τ) is still what is sampled.
        """
        for block in self.live:
            mine = [factors[name] for name in block.pick(block.names)]
            block.g = [metric.divide(g, f, power=0.5 if whole else 1.0) for g, f in zip(block.g, mine, strict=True)]
            if whole:
                for param, f in zip(block.pick(block.params), mine, strict=True):
                    root = metric.divide(torch.ones_like(param), f, power=-0.5)
                    root[root == 0] = 1.0  # no path leads there: as it is
                    param.mul_(root)
                    self.stretched.append((param, root))

    def finish(self) -> None:
        """Back to the parameters, where the step was taken in other coordinates; a free motion cannot fail."""
        for param, root in self.stretched:
            param.div_(root)
        self.stretched = []

    def remember_gradient(self) -> None:
        """Keep the gradient at hand as g0."""
        for block in self.blocks:
            block.first = {i: g.clone() for i, g in zip(block.active, block.g, strict=True)}

    def run(self, beats: tuple[Beat, ...], before: float, now: float, name: tuple[int, int, int]) -> int:
        """Apply the letters in turn; returns how many draws have been named."""
        seed, step, draw = name
        if not self.live:
            return draw
        scalars = self.scalars
        values = (before, now, draw, *(scalars[s] for s in FIELDS))
        if self.composed and self.composed[0][0] is beats and same(self.composed[0][1], values):
            _, program, draw = self.composed
            for block in self.live:
                block.run(program, seed, step)
            return draw

        thermostat = scalars["ξ"]
        if per_replica(thermostat):
            scalars["ξ"] = thermostat.cpu()
        elif isinstance(thermostat, torch.Tensor) and thermostat.device.type == "cpu":
            scalars["ξ"] = thermostat.item()  # plain numbers are faster, and there is no device to wait for
        updates: list[Update] = []
        whole = not self.reference  # does one program hold the whole word, whatever the thermostat?

        def settle() -> None:
            if updates:
                program = Program(list(updates))
                updates.clear()
                for block in self.live:
                    block.run(program, seed, step)

        for beat in beats:
            letter = LETTERS[beat.letter]
            scalars["h"] = beat.before * before + beat.now * now
            whole = whole and not {"ξ", "p2"} & set(letter.needs)
            if "p2" in letter.needs:
                settle()
                squares = [block.square() for block in self.live]
                scalars["p2"] = sum(squares[1:], squares[0])
                if isinstance(scalars["ξ"], float):
                    scalars["p2"] = scalars["p2"].item()
                elif per_replica(scalars["ξ"]):
                    scalars["p2"] = scalars["p2"].cpu()
            if letter.changes == ("ξ",):
                scalars["ξ"] = letter.map(*(scalars[s] for s in letter.needs))
                continue
            if self.reference:
                terms = None
            elif any(isinstance(scalars[s], torch.Tensor) for s in letter.scalars) or "ξ" in letter.needs:
                terms = coefficients(letter, scalars)
            else:
                terms = steady_coefficients(letter.name, tuple([scalars[s] for s in letter.scalars]))
            if terms is None:
                whole = False
                settle()
                for block in self.live:
                    block.run_by_tensor(letter, scalars, seed, step, draw)
            else:
                updates += [(symbol, sum_, draw) for symbol, sum_ in terms]
            draw += "R" in letter.needs
        if whole and updates:
            self.composed = ((beats, values), Program(list(updates)), draw)
        settle()
        if isinstance(thermostat, torch.Tensor):
            scalars["ξ"] = torch.as_tensor(scalars["ξ"], dtype=thermostat.dtype, device=thermostat.device)
        return draw


def same(xs: tuple[Scalar, ...], ys: tuple[Scalar, ...]) -> bool:
    """Equal numbers, or the very same tensors."""
    try:
        return xs == ys  # tuples compare by identity first
    except RuntimeError:  # two tensors of many numbers that are not the same one
        return False
