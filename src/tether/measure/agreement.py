"""Do networks disagree on the same images as people? (section 6.2)"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Agreement", "Group", "agreement"]

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
MISSING = -1


class Group(NamedTuple):
    """What a group of judges says, image by image and pair by pair."""

    labels: Labels  # judges × images, −1 where a vote is missing
    agree: Mask  # have all who voted chosen the same label?
    vote: Labels  # the most frequent label; the smallest if there are several
    certainty: Array  # the fraction of votes for it
    pairwise: Array  # judges × judges: the fraction of images on which two disagree; nan if they share none

    @property
    def disagreement(self) -> float:
        """Fraction of images on which at least two judges differ."""
        return float((~self.agree).mean())

    @property
    def pairs(self) -> Array:
        """Fractions of images on which two judges disagree, for every pair once."""
        found: Array = self.pairwise[np.triu_indices(len(self.labels), 1)]
        return found[~np.isnan(found)]


class Spread(NamedTuple):
    """Mean and (population) standard deviation; nan for no values."""

    mean: float
    std: float

    def __str__(self) -> str:
        return f"{self.mean:.3g} ± {self.std:.2g}"


@dataclass(frozen=True)
class Agreement:
    """Fractions of types of images and of errors among all images; nan without human labels."""

    type_a: float  # models disagree, people agree
    type_b: float  # both disagree, or both agree on the same label
    type_c: float  # models agree, people disagree
    contradiction: float  # both agree, on different labels
    type: list[str]  # of every image: "A", "B", "C" or "contradiction"
    model_errors: Array  # of each model: how often it differs from people who agree
    group_error: float  # how often at least one model does
    vote_error: float  # how often the models' most frequent label does
    models: Group
    humans: Group | None
    probabilities: Array | None  # models × images: the largest of each prediction

    @property
    def disagreement(self) -> Spread:
        """Of two models, over all pairs."""
        return _spread(self.models.pairs)

    @property
    def human_disagreement(self) -> Spread:
        """Of two people, over all pairs."""
        return _spread(self.humans.pairs if self.humans else np.empty(0))

    @property
    def error(self) -> Spread:
        """Of a model, over all models."""
        return _spread(self.model_errors)

    @property
    def softmax(self) -> dict[str, Spread]:
        """The maximum softmax over all models and the images of a type (Table 6.8); type B in its two halves."""
        if self.probabilities is None or self.humans is None:
            raise ValueError("the maximum softmax by type needs both human_labels and probabilities")
        types, apart = np.array(self.type), ~self.models.agree
        rows = {
            "A": types == "A",
            "B, disagree": (types == "B") & apart,
            "B, agree": (types == "B") & ~apart,
            "C": types == "C",
            "contradiction": types == "contradiction",
        }
        known = ~np.isnan(self.probabilities)
        return {name: _spread(self.probabilities[:, mine][known[:, mine]]) for name, mine in rows.items()}

    @property
    def certainty(self) -> dict[float, tuple[int, float]]:
        """Certainty of people → how many images, and the mean certainty of the models on them (Table 6.9)."""
        if self.humans is None:
            raise ValueError("certainty by that of people needs human_labels; that of the models is .models.certainty")
        sure = self.humans.certainty.round(9)
        return {
            float(level): (int((sure == level).sum()), float(self.models.certainty[sure == level].mean()))
            for level in np.unique(sure)[::-1]
        }

    def __str__(self) -> str:
        m, n = self.models.labels.shape
        text = f"{m} models disagree on {100 * self.models.disagreement:.3g} % of {n} images"
        if self.humans is None:
            return text
        shares = {"A": self.type_a, "B": self.type_b, "C": self.type_c}
        types = ", ".join(f"{name} {100 * share:.3g} %" for name, share in shares.items())
        return (
            f"{text}; with {len(self.humans.labels)} people type {types}, {100 * self.group_error:.3g} % misclassified"
        )

    def plot(self, ax: Any = None, columns: int | None = None) -> Any:
        """A square for every image: blue type A, red type C, grey if both agree, white if neither does (6.23)."""
        import matplotlib.pyplot as plt
        from matplotlib.patches import Patch, Rectangle

        ax = plt.subplots(layout="constrained")[1] if ax is None else ax
        n = len(self.models.agree)
        columns = columns or math.ceil(math.sqrt(n))
        colours = {"A": "#4c78b0", "C": "#c2452d", "both agree": "#bdbdbd", "both disagree": "#ffffff"}
        colours |= {"contradiction": "#222222", "?": "#f4ead0"}
        both = {True: "both agree", False: "both disagree"}
        names = [both[bool(x)] if kind == "B" else kind for kind, x in zip(self.type, self.models.agree, strict=True)]
        for k, name in enumerate(names):
            ax.add_patch(Rectangle((k % columns, k // columns), 1, 1, facecolor=colours[name], edgecolor="#888888"))
        ax.set(xlim=(0, columns), ylim=(-(-n // columns), 0), aspect="equal")
        ax.set(xlabel="image, modulo the columns", ylabel="row of images")
        shown = [Patch(facecolor=colours[x], edgecolor="#888888", label=x) for x in colours if x in names]
        ax.legend(handles=shown, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        return ax


def agreement(model_labels: Any, human_labels: Any = None, probabilities: Any = None) -> Agreement:
    """Types A, B and C of images, errors, disagreements and certainties of models against people (section 6.2).

    If people agree on an image, their label is the truth: a model with another label is wrong there. The group is wrong
    if any of its models is. All are fractions of all images, as in Tables 6.6 and 6.7.

    >>> models = [[1, 1, 3, 4], [1, 2, 3, 4]]
    >>> people = [[1, 1, 3, 4], [1, 1, 5, 4], [1, 1, 3, 4]]
    >>> print(agreement(models, people))
    2 models disagree on 25 % of 4 images; with 3 people type A 25 %, B 50 %, C 25 %, 25 % misclassified

    Both may agree on different labels: such a contradiction is an error, but of neither type (footnote 6). A missing
    vote, −1 or nan, is no disagreement: only those who voted on an image count there, and a model is judged on the
    images it voted on. In a tie the smallest label wins.

    Args:
        model_labels: a row for each model and a column for each image; integers of 0 or more.
        human_labels: a row for each person, with the same images as columns.
        probabilities: of the models, models × images × classes, for the maximum softmax by type.
    """
    models = _group("model_labels", model_labels)
    m, n = models.labels.shape
    largest = None if probabilities is None else _largest(probabilities, models.labels)
    if human_labels is None:
        nan = math.nan
        return Agreement(nan, nan, nan, nan, ["?"] * n, np.full(m, nan), nan, nan, models, None, largest)
    humans = _group("human_labels", human_labels)
    if humans.labels.shape[1] != n:
        raise ValueError(f"{n} images in model_labels but {humans.labels.shape[1]} in human_labels: columns are images")
    types = np.where(models.agree, np.where(humans.agree, "B", "C"), np.where(humans.agree, "A", "B")).astype(object)
    types[models.agree & humans.agree & (models.vote != humans.vote)] = "contradiction"
    voted = models.labels != MISSING
    wrong = voted & humans.agree & (models.labels != humans.vote)
    a, b, c, contradiction = (float((types == name).mean()) for name in ("A", "B", "C", "contradiction"))
    errors: Array = wrong.sum(1) / np.maximum(voted.sum(1), 1)
    errors[~voted.any(1)] = math.nan
    group, vote = float(wrong.any(0).mean()), float((humans.agree & (models.vote != humans.vote)).mean())
    return Agreement(a, b, c, contradiction, types.tolist(), errors, group, vote, models, humans, largest)


def _group(name: str, given: Any) -> Group:
    labels = _labels(name, given)
    voted = labels != MISSING
    empty = np.flatnonzero(~voted.any(0))
    if len(empty):
        raise ValueError(f"{name}: nobody has voted on image {empty[0]}: leave it out, labels[:, keep]")
    kinds, flat = np.unique(labels, return_inverse=True)  # labels may be far apart
    flat = flat.reshape(labels.shape)
    counts = np.zeros((labels.shape[1], len(kinds)), dtype=np.int64)
    np.add.at(counts, (np.arange(labels.shape[1]), flat), voted.astype(np.int64))
    vote: Labels = kinds[counts.argmax(1)]
    certainty = counts.max(1) / voted.sum(0)
    agree: Mask = counts.max(1) == voted.sum(0)
    both = voted[:, None] & voted[None]
    differ = both & (labels[:, None] != labels[None])
    with np.errstate(invalid="ignore"):
        pairwise = differ.sum(2) / both.sum(2)
    return Group(labels, agree, vote, certainty, pairwise)


def _labels(name: str, given: Any) -> Labels:
    """A table of integers, missing votes −1."""
    if isinstance(given, torch.Tensor):
        given = given.detach().cpu().numpy()
    try:
        table = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be a table of integers with a row for each judge and a column for each image, all of one "
            "length; a missing vote is -1 or nan"
        ) from error
    if table.ndim != 2 or not table.size:
        raise ValueError(
            f"{name} has shape {table.shape}: it must have a row for each judge and a column for each image; a single "
            f"judge is one row, [{name}]"
        )
    table = np.where(np.isnan(table), MISSING, table)
    if np.any(table != np.floor(table)) or np.any(table < MISSING) or np.any(np.isinf(table)):
        bad = table[(table != np.floor(table)) | (table < MISSING) | np.isinf(table)][0]
        raise ValueError(
            f"{name} holds {bad:g}: labels are integers of 0 or more, and -1 or nan where a vote is missing"
        )
    return table.astype(np.int64)


def _largest(probabilities: Any, labels: Labels) -> Array:
    """The largest probability of every prediction; nan where the vote is missing."""
    if isinstance(probabilities, torch.Tensor):
        probabilities = probabilities.detach().cpu().double().numpy()
    table: Array = np.asarray(probabilities, dtype=np.float64)
    if table.ndim != 3 or table.shape[:2] != labels.shape:
        raise ValueError(f"probabilities has shape {table.shape}: it must be {labels.shape} × classes, as model_labels")
    voted = labels != MISSING
    sums = table[voted].sum(-1)
    if np.any(table[voted] < -1e-6) or np.any(np.abs(sums - 1) > 1e-3):
        raise ValueError("probabilities must be 0 or more and add up to 1 over the classes: pass logits.softmax(-1)")
    if labels.max() >= table.shape[2]:
        raise ValueError(f"label {labels.max()} has no probability: there are {table.shape[2]} classes, from 0")
    largest = table.max(2)
    own = np.take_along_axis(table, np.maximum(labels, 0)[:, :, None], 2)[:, :, 0]
    apart = voted & (own < largest)
    if apart.any():
        model, image = np.argwhere(apart)[0]
        raise ValueError(
            f"model {model} labels image {image} as {labels[model, image]}, not its most probable class: do the "
            "rows and columns of model_labels and probabilities belong together?"
        )
    return np.where(voted, largest, math.nan)


def _spread(values: Array) -> Spread:
    return Spread(float(values.mean()), float(values.std())) if len(values) else Spread(math.nan, math.nan)
