"""Cost: operations, bytes and messages of one step under `fully_shard`, from shapes alone.

A step of a part of N entries on W ranks, for the rank that has most to do:

- Free, circle, and sphere by rows: for each entry 2 operations for an update and 40 for a normal, N/W entries, no
  message.
- Orthogonal, n weights cut along the short side of their matrices, r × s, or square: ⌈n/W⌉ matrices, for each drift
  4rs² operations an iteration and 4rs² more. Two all-to-alls for each shape: θ, p and g of the rank's blocks, then θ
  and p of its matrices, with a flag for each rank.
- Orthogonal, cut along the long side: the same operations for n/W matrices. For each drift one all-reduce of ns numbers
  (the longest column), and of ns² for each iteration; with momenta one more after a drift, and after a last kick.
- All parts together: one all-reduce of one number, which says whether the gradients are finite.
- All thermostats together: one all-reduce of one number for each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from tether.letters import LETTERS
from tether.part import DEFAULTS, Part, match
from tether.sharded.pieces import block_of
from tether.surfaces import Surface
from tether.words import Word, parse

__all__ = ["Cost", "cost"]

ITERATIONS = 4  # of an orthogonal drift; a longer step takes more
NORMAL = 40  # operations for a normal: ten rounds of Philox are shared by four


class Cost(NamedTuple):
    """Of one part, or of what all parts share, in one step of one rank."""

    part: str
    operations: float
    bytes: int  # handed to collectives
    messages: int


class Rows(NamedTuple):
    """A cut by rows, as `fully_shard` makes it."""

    dim: int = 0


def cost(
    model: torch.nn.Module | Iterable[tuple[str, torch.Tensor]],
    parts: Sequence[Part],
    mesh: Any,
    *,
    rank: int | None = None,
    iterations: float = ITERATIONS,
    **fields: Any,
) -> list[Cost]:
    """Operations, bytes and messages of one step in which all parts move, a row for each part and for what they share.

    >>> from tether import Orthogonal
    >>> parts = [Part("weight", on=Orthogonal()), Part("bias")]
    >>> for row in cost(torch.nn.Linear(256, 256), parts, 8, word="BAOAB", temperature=1e-6):
    ...     print(row.part, f"{row.operations:.0f} operations, {row.bytes} bytes, {row.messages} messages")
    weight 671088640 operations, 622624 bytes, 2 messages
    bias 1536 operations, 0 bytes, 0 messages
    finite gradients 0 operations, 4 bytes, 1 messages

    Args:
        model: a module or its named parameters, not sharded yet; on the meta device it takes no memory.
        parts: the table, as for `tether.Optimizer`.
        mesh: a mesh of one axis, over which the parameters are cut by rows, or the number of its ranks.
        rank: whose cost; None is the largest of all ranks, number by number.
        iterations: of an orthogonal drift, on average; a longer step takes more.
        fields: defaults for the parts, as for `tether.Optimizer`.
    """
    ranks = mesh if isinstance(mesh, int) else mesh.size()
    named = list(model.named_parameters() if isinstance(model, torch.nn.Module) else model)
    rows, thermostats = [], []
    for part, mine in zip(parts, match(named, parts), strict=True):
        row = part.row({**DEFAULTS, "lr": 0.1, **fields})
        word, on = parse(row["word"]), row["on"]
        if word.needs_closure:
            raise ValueError(f"part {part.where!r}: cost counts words with one gradient a step, not {word.text!r}")
        thermostats.append(sum("p2" in LETTERS[beat.letter].needs for beat in word.program))
        params = [param for _, param in mine]
        chosen = range(ranks) if rank is None else [rank]
        if not isinstance(on, Surface) or on.restricted((2, 2), (0, 0), (1, 2)) is not None:
            each = [(by_entry(word, params, ranks, i), 0, 0) for i in chosen]
        else:
            each = [by_matrix(word, params, ranks, i, on, iterations) for i in chosen]
        operations, sent, messages = (max(one[k] for one in each) for k in range(3))
        rows.append(Cost(part.where, operations, int(sent), int(messages)))
    rows.append(Cost("finite gradients", 0.0, 4, 1))
    if any(thermostats):
        rows.append(Cost("thermostats", 0.0, 8 * sum(thermostats), max(thermostats)))
    return rows


def held_entries(param: torch.Tensor, ranks: int, rank: int) -> int:
    """How many entries of a parameter a rank holds."""
    return math.prod(block_of(param.shape, (ranks,), [Rows()], [rank])[1])


def by_entry(word: Word, params: Sequence[torch.Tensor], ranks: int, rank: int) -> float:
    """Operations of a part whose entries, or rows, move by themselves."""
    letters = [LETTERS[beat.letter] for beat in word.program]
    each = sum(2 * len(letter.changes) + NORMAL * letter.draws for letter in letters)
    return float(each * sum(held_entries(param, ranks, rank) for param in params))


def by_matrix(
    word: Word, params: Sequence[torch.Tensor], ranks: int, rank: int, surface: Surface, iterations: float
) -> tuple[float, int, int]:
    """Operations, bytes and messages of orthogonal matrices."""
    kinds: dict[Any, list[torch.Tensor]] = {}
    for param in params:
        kinds.setdefault((param.dtype, tuple(param.shape)), []).append(param)
    momenta, count = "p" in word.needs, 0
    drifts = sum(max(letter.limit.count("A"), 1) for letter in movers(word))
    operations, sent, messages = 0.0, 0.0, 0.0
    for (dtype, shape), alike in kinds.items():
        size, n, (r, s) = 8 if dtype is torch.float64 else 4, len(alike), surface.coordinates(shape)
        held = held_entries(alike[0], ranks, rank)
        each = drifts * (iterations + 1) * 4 * r * s * s
        if shape[0] > math.prod(shape[1:]):  # cut along the long side
            turns = drifts + (not LETTERS[word.program[-1].letter].moves) if momenta else 0
            operations += n * each * held / (r * s)
            sent += size * n * s * (drifts + s * (drifts * iterations + turns))
            messages += drifts * (1 + iterations) + turns
            continue
        mine = sum((count + i) % ranks == rank for i in range(n))
        count += n
        operations += mine * each
        sent += size * (2 + momenta) * n * held  # θ, p and g of the blocks
        sent += size * ((1 + momenta) * mine * r * s + ranks)  # θ and p of the matrices, and whether all is well
        messages += 2
    return operations, round(sent), round(messages)


def movers(word: Word) -> list[Any]:
    """The letters of a word that move the parameters."""
    return [LETTERS[beat.letter] for beat in word.program if LETTERS[beat.letter].moves]
