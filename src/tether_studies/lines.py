"""Lines of loss between states, as the studies of chapters 3 and 6 keep, grade and count them.

A line is graded by four numbers: the α at which a tenth of the drop is reached (`tenth`), how far the loss rises above
its start (`rise`), how far it climbs on the way (`climb`), and how far it turns up at the end (`upturn`), apart:
many nets have their least test loss before α = 1. Shapes are a view of them with stated tolerances (`shapes_of`).
"""

import copy
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

import tether
from tether.measure import LinearPath, layer_paths
from tether_studies.images import Pair
from tether_studies.judges import Judgement, yes
from tether_studies.quantities import Quantity, of_key
from tether_studies.study import Results

__all__ = ["ACCURACY", "BARRIER", "DISTANCE", "RISE", "SHAPES", "TENTH", "TOLERANCE", "UPTURN", "State", "all_are"]
__all__ += [
    "LOW",
    "by_layer",
    "climb",
    "counted",
    "gathered",
    "graded",
    "line_of",
    "packed",
    "rise",
    "shapes_of",
    "state_of",
    "tenth",
    "upturn",
]

State = dict[str, torch.Tensor]
SLACK, FLAT = 0.02, 0.5  # of the largest loss on a line; of its length
LOW = SLACK * math.log(10)  # climbs that are no barriers, where the largest loss is that of a guess among ten classes
TOLERANCE = f"a barrier climbs by more than {100 * SLACK:g} % of the largest loss"
SHAPES = Quantity("shapes", lambda one: one["shapes"], show=lambda shapes: counted(shapes))
BARRIER, DISTANCE = of_key("barriers", "barrier", 2), of_key("distance", "distance", 2)
TENTH = Quantity("α at a tenth of the drop", lambda one: tenth(one["losses"]), 2)
RISE = Quantity("rise above the start", lambda one: rise(one["losses"]), 2)
UPTURN = Quantity("upturn at the end", lambda one: upturn(one["losses"]), 2)
ACCURACY = of_key("accuracy", "test accuracy (%)")


def state_of(net: torch.nn.Module) -> State:
    """A copy of the state in which a network is."""
    return copy.deepcopy(net.state_dict())


def packed(name: str, paths: Sequence[LinearPath]) -> Results:
    """The lines of several runs under a name: losses, and accuracies at the end."""
    return {
        f"{name}: losses": np.stack([path.losses.numpy() for path in paths]),
        f"{name}: accuracies": [100 * float(path.accuracies[-1]) for path in paths if path.accuracies is not None],
    }


def line_of(found: Results, name: str) -> Results:
    """What was packed under a name, its shapes and barriers, with the loss at start, top and end."""
    line = graded({key: found[f"{name}: {key}"] for key in ("losses", "accuracies")})
    return line | {"start": line["losses"][:, 0], "top": line["losses"].max(1), "end": line["losses"][:, -1]}


def graded(found: Results) -> Results:
    """What was found, with shapes and heights of barriers beside all losses of lines."""
    added: Results = {}
    for key, losses in found.items():
        if str(key).endswith("losses"):
            name = str(key).removesuffix("losses")
            added |= {f"{name}shapes": shapes_of(losses), f"{name}barriers": climb(losses)}
    return {**found, **added}


def tenth(losses: np.ndarray) -> np.ndarray:
    """The α at which each line has first lost a tenth of what it loses in all; nan if it loses nothing.

    >>> tenth(np.array([[10.0, 9.5, 8.0, 0.0], [1.0, 2.0, 2.0, 1.0]])).round(3).tolist()
    [0.444, nan]
    """
    found = np.full(len(losses), np.nan)
    for i, line in enumerate(losses):
        level = line[0] - 0.1 * (line[0] - line[-1])
        below = np.flatnonzero(line <= level)
        if line[-1] < line[0] and len(below):
            k = below[0]  # never 0: the level lies below the start
            found[i] = (k - 1 + (line[k - 1] - level) / (line[k - 1] - line[k])) / (len(line) - 1)
    return found


def turning(losses: np.ndarray) -> np.ndarray:
    """For each line the point from which on it only rises; the last one if it ends falling."""
    falls = np.diff(losses) < 0
    last: np.ndarray = losses.shape[1] - 1 - np.argmax(falls[:, ::-1], 1)
    return np.where(falls.any(1), last, 0)


def upturn(losses: np.ndarray) -> np.ndarray:
    """How far each line has risen at α = 1 since it last fell."""
    return losses[:, -1] - losses[np.arange(len(losses)), turning(losses)]


def climb(losses: np.ndarray) -> np.ndarray:
    """The largest rise on the way, max over i < j of L_j − L_i before the upturn at the end: the height of a barrier.

    >>> climb(np.array([[2.0, 1.0, 4.0, 0.5, 0.7], [2.0, 1.5, 1.0, 0.5, 0.9]])).tolist()
    [3.0, 0.0]
    """
    rises = losses - np.minimum.accumulate(losses, 1)
    before = np.arange(losses.shape[1]) <= turning(losses)[:, None]
    return np.where(before, rises, 0.0).max(1)


def rise(losses: np.ndarray) -> np.ndarray:
    """How far each line rises above its start, before the upturn at the end; 0 if it does not."""
    before = np.arange(losses.shape[1]) <= turning(losses)[:, None]
    return np.where(before, losses - losses[:, :1], 0.0).max(1)


def shapes_of(losses: np.ndarray) -> np.ndarray:
    """The shape of each line, a view of the numbers above.

    *barrier*: it climbs by more than 2 % of the largest loss on it; *plateau*: no barrier, and a tenth of the drop is
    not reached on the first half of the way; *monotone*: neither. *not finite*: a loss is inf or nan.
    """
    with np.errstate(invalid="ignore"):
        barred = climb(losses) > SLACK * np.abs(losses).max(1)
        flat = ~(tenth(losses) < FLAT)
    shapes = np.where(barred, "barrier", np.where(flat, "plateau", "monotone"))
    return np.where(np.isfinite(losses).all(1), shapes, "not finite")


def by_layer(nets: tether.Replicas, start: State, end: State, test: Pair, points: int, loss: Any) -> Results:
    """The lines of single layers of some replicas, each with the other layers at their end (6.2)."""
    found, results = layer_paths(nets, start, end, test, points, loss=loss), dict[str, Any]()
    for layer in found[0]:
        results |= packed(f"layer {layer}", [paths[layer] for paths in found])
    return results


def gathered(runs: Mapping[str, Results] | Sequence[Results], key: str) -> np.ndarray:
    """What all runs found under a key."""
    return np.concatenate([np.atleast_1d(one[key]) for one in (runs.values() if isinstance(runs, Mapping) else runs)])


def counted(shapes: Any) -> str:
    """How many lines have which shape, the most frequent first."""
    return ", ".join(f"{count} {shape}" for shape, count in Counter(map(str, shapes)).most_common())


def all_are(wanted: str, shapes: Any, evidence: str = "") -> Judgement:
    """Do all lines have this shape? Verdict and evidence, which is the count of shapes if there is no other."""
    return yes(all(str(shape) == wanted for shape in shapes), evidence or counted(shapes))
