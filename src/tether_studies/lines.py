"""Lines of loss between states, as the studies of chapters 3 and 6 keep and count them."""

import copy
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

__all__ = ["ACCURACY", "BARRIER", "DISTANCE", "SHAPES", "State", "all_are", "by_layer", "counted", "gathered"]
__all__ += ["highest", "line_of", "packed", "state_of"]

State = dict[str, torch.Tensor]
SHAPES = Quantity("shapes", lambda one: one["shapes"], show=lambda shapes: counted(shapes))
BARRIER, DISTANCE = of_key("barriers", "barrier", 2), of_key("distance", "distance", 2)
ACCURACY = of_key("accuracy", "test accuracy (%)")


def state_of(net: torch.nn.Module) -> State:
    """A copy of the state in which a network is."""
    return copy.deepcopy(net.state_dict())


def packed(name: str, paths: Sequence[LinearPath]) -> Results:
    """The lines of several runs under a name: losses, shapes, heights of barriers, and accuracies at the end."""
    return {
        f"{name}: losses": np.stack([path.losses.numpy() for path in paths]),
        f"{name}: shapes": [path.shape for path in paths],
        f"{name}: barriers": [path.barrier.height for path in paths],
        f"{name}: accuracies": [100 * float(path.accuracies[-1]) for path in paths if path.accuracies is not None],
    }


def line_of(found: Results, name: str) -> Results:
    """What was packed under a name, with the loss at start, top and end."""
    line = {key: found[f"{name}: {key}"] for key in ("losses", "shapes", "barriers", "accuracies")}
    return line | {"start": line["losses"][:, 0], "top": line["losses"].max(1), "end": line["losses"][:, -1]}


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


def highest(results: Results, name: str) -> np.ndarray:
    """How far each line rises above the loss at its start; negative where it never does again."""
    losses = results[f"{name}: losses"]
    rise: np.ndarray = losses[:, 1:].max(1) - losses[:, 0]
    return rise
