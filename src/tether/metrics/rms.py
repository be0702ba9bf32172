"""RMS: every weight has a step size of its own, from the running mean of the squares of its gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from tether.engine.commit import Write, write
from tether.engine.flat import restored
from tether.metrics.metric import Metric, MetricError, setting
from tether.rhythms.rhythm import whole_steps
from tether.surfaces import Surface
from tether.words import parse

if TYPE_CHECKING:
    from tether.engine.blocks import Block

__all__ = ["RMS"]


class RMS(Metric):
    """A diagonal metric from running squares, v ← αv + (1 − α)g², by which entries count √v + ε times: G = 1/(√v + ε).

    With the word X it is preconditioned SGLD (Li et al., 2016): θ ← θ − hGg + √(2τhG) R, and at τ = 0
    ``torch.optim.RMSprop(lr=h, alpha=α, eps=ε)``. With momenta it is Langevin dynamics with the masses 1/G, dθ = Gp dt.
    The word MS is Adam without the correction of its first steps: p = m/(1 − β₁) and
    ``torch.optim.Adam(lr=h/(1 − β₁), betas=(β₁, α))``, with e^{−γ} = β₁.

    v changes with θ, and the term Γ = ∂G/∂θ that would correct for it is left out, as in the publication. So exp(−L/τ)
    is not what is sampled: for α = 0 it is (√v + ε) exp(−L/τ), which doubles the variance in a quadratic well as ε → 0.
    The bias is small only where the memory of 1/(1 − α) steps is long against the time in which the chain forgets. In
    the well θ²/2 at τ = 1, h = 0.01, ε = 0.5, a time of 100 steps, the variance is 1.62 for α = 0, 1.52 for 0.9, 1.26
    for 0.99 and 1.05 for 0.999 instead of 1 (``pytest tests/test_rms.py -k bias``). With `until` v is kept from that
    step on: then the density is right. v begins at 0: from a minimum, with gradients of all points, the first step is
    √(2τh/ε) long, so start elsewhere, or choose ε of the size of the gradients.

    √v is kept in float32 or wider, in ``opt.state[param]["rms"]``; for each replica its own, and for shards theirs.

    >>> import tether
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> opt = tether.Optimizer([("weight", weight)], lr=0.1, metric=RMS(decay=0.75))
    >>> weight.grad = torch.tensor([1.0, -1000.0])
    >>> opt.step()  # v = g²/4, so that both move by 0.1 · 2
    >>> weight.detach()
    tensor([-0.2000,  0.2000])

    Args:
        decay: α, between 0 and 1.
        eps: ε, above 0.
        until: the number of steps after which v stays as it is; None is never.
    """

    entrywise = True
    keeps = ("rms",)

    def __init__(self, decay: float = 0.99, eps: float = 1e-8, until: int | None = None) -> None:
        self.decay = setting("RMS: decay", decay, "at least 0 and below 1", lambda x: 0 <= x < 1, 0.99)
        self.eps = setting("RMS: eps", eps, "finite and above 0", lambda x: 0 < x < math.inf, 1e-8)
        self.until = None if until is None else whole_steps("RMS: ", "until", until)

    def __repr__(self) -> str:
        more = "" if self.until is None else f", until={self.until}"
        return f"RMS({self.decay:g}, eps={self.eps:g}{more})"

    def check(self, part: str, row: Mapping[str, Any]) -> None:
        if parse(row["word"]).needs_closure:
            raise MetricError(f"{part}: {self!r} needs a word with one gradient per step, not {row['word']!r}")
        if isinstance(row["on"], Surface):
            raise MetricError(f"{part}: {self!r} and {row['on']!r} cannot be combined: choose one of metric= and on=")

    def mass(self, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """1/G."""
        return state["rms"] + self.eps

    def enter(self, block: Block, measured: Mapping[str, Any], whole: bool) -> Block | None:
        """Gg for g; or, if `whole`, a step from 0 in the coordinates θ/√G and √G p, which leads back to θ + √G x."""
        mass, keep = self.average(block)
        near, g = block.near(), block.notes.flat["g"]
        if not whole:
            near.buffer("g").copy_(g.div_(mass))
            block.g = block.pick(near.views["g"])
            block.after += keep
            return None
        root = mass.sqrt_()
        near.buffer("g").copy_(g.div_(root))
        near.buffer("θ").zero_()
        p = []
        if block.flat is not None:
            torch.div(block.flat, root, out=near.buffer("p"))
            p = block.pick(near.views["p"])
        found = block.beside(block.pick(near.views["θ"]), p)
        found.g = block.pick(near.views["g"])
        found.after = [*keep, write(near.flat["θ"].div_, root), write(torch._foreach_add_, block.θ, found.θ)]
        if p:
            found.after.append(write(near.flat["p"].mul_, root))
            # for a bad gradient, the way there and back would leave a rounding error
            found.after += restored(block.bad, block.notes, near, "p", "p")
            found.after.append(write(torch._foreach_copy_, block.p, p))
        return found

    def average(self, block: Block) -> tuple[torch.Tensor, list[Write]]:
        """1/G with the gradients of this step, as they lie in the buffers of the block; and the writes that keep √v."""
        notes = block.notes
        g, new = notes.buffer("g"), notes.buffer("new")
        torch._foreach_copy_(block.pick(notes.views["g"]), block.g)
        if self.until is not None and block.step >= self.until:
            return notes.flat["rms"] + self.eps, []
        # by hypot, since squares of large and of small numbers leave the range
        torch.hypot(math.sqrt(self.decay) * notes.flat["rms"], math.sqrt(1 - self.decay) * g, out=new)
        for one in restored(block.bad, notes, notes, "rms", "new"):
            one()
        held, found = (block.pick(notes.views[symbol]) for symbol in ("rms", "new"))
        return new + self.eps, [write(torch._foreach_copy_, held, found)]
