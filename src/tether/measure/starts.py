"""Other states to start training from (section 6.1.4 of the thesis): pure functions of states and labels.

Train from them with ``model.load_state_dict(...)``. A start on random labels is the result of training on ``(inputs,
random_labels(targets))``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tether.measure.line import LinearPath
from tether.measure.states import State, between, check_states, chosen

__all__ = ["random_labels", "start_at_barrier", "transplant"]


def start_at_barrier(path: LinearPath, start: State, end: State, shift: float = 0.0) -> dict[str, torch.Tensor]:
    """The state at the top of a path's barrier (section 6.1.4, Figure 6.3), in new tensors.

    Args:
        path: the `linear_path` from start to end.
        start: θ_i.
        end: θ_f.
        shift: move so far beyond the top, or before it if negative (±0.1 in Table 6.3), but not beyond the ends.
    """
    if not path.barrier > 0:
        raise ValueError(f"the path has no barrier to start at: {path}; choose a place with between(start, end, alpha)")
    return between(start, end, min(1.0, max(0.0, path.barrier.alpha + shift)))


def transplant(state: State, donor: State, where: str | Sequence[str]) -> dict[str, torch.Tensor]:
    """A state with the tensors that match `where` taken from another, in new tensors.

    Partial (pre-)training (Figure 6.4) is ``transplant(trained, initial, "layer3.*")``: all but one block trained.
    The block-wise adversarial start (Figure 6.5) is ``transplant(initial, random, "layer3.*")``, with a state trained
    on `random_labels`.

    >>> transplant({"0.w": torch.zeros(1), "1.w": torch.zeros(1)}, {"0.w": torch.ones(1), "1.w": torch.ones(1)}, "1.*")
    {'0.w': tensor([0.]), '1.w': tensor([1.])}

    Args:
        state: the state that gives the other tensors.
        donor: another state of the same model.
        where: a glob, or several, on names.
    """
    check_states(state, donor)
    taken = set(chosen(state, where))
    return {name: (donor[name] if name in taken else x).detach().clone() for name, x in state.items()}


def random_labels(
    targets: torch.Tensor, classes: int | None = None, seed: int = 0, fraction: float = 1.0
) -> torch.Tensor:
    """Labels with a fraction replaced by uniformly random classes (section 6.1.4, Figure 6.2B).

    >>> labels = random_labels(torch.tensor([0, 1, 2, 3] * 50))
    >>> sorted(set(labels.tolist()))
    [0, 1, 2, 3]

    Args:
        targets: the labels.
        classes: the number of classes; None takes the largest label plus one.
        seed: the seed of the draw.
        fraction: the fraction of labels to replace, at random places.
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction={fraction!r} must be between 0 and 1; e.g. fraction=1.0 for all labels")
    if targets.is_floating_point():
        raise TypeError(f"targets are {targets.dtype}, no classes: pass whole numbers and make others of the result")
    generator = torch.Generator().manual_seed(seed)
    count = classes if classes is not None else int(targets.max()) + 1
    drawn = torch.randint(count, targets.shape, generator=generator).to(targets.device, targets.dtype)
    places = torch.randperm(targets.numel(), generator=generator)[: round(fraction * targets.numel())]
    result = targets.clone()
    result.view(-1)[places] = drawn.view(-1)[places]
    return result
