"""Tables 6.6 to 6.9 and Figures 6.21 and 6.23: networks against people who judge the same images.

The labels of the thesis's volunteers are not published. Those of other people are read from a CSV file (`labels_of`).
"""

import csv
from pathlib import Path
from typing import Any

import numpy as np

from tether.measure import Agreement
from tether_studies.between_classes import KINDS, POINTS, WAYS, Verdict, percentages
from tether_studies.drawing import draw_means, subplots
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, Table, study
from tether_studies.judges import Judgement, every, less, more, plus_minus, undecided, yes
from tether_studies.replay import Absent, replayed

IMAGES = len(WAYS) * POINTS
PERSON = "person"
RULE = f"its first line is 'person,1,2,…,{IMAGES}', in any order; then a line for each person, labels 0 to 9 or nothing"
TYPES = {  # of Table 6.8
    "A": "networks disagree, people agree (type A)",
    "B, disagree": "both disagree (type B)",
    "B, agree": "both agree (type B)",
    "C": "networks agree, people disagree (type C)",
}


def labels_of(path: str | Path) -> np.ndarray:
    """The labels of people, people × images, nan where one has not voted.

    The file is a CSV. Its first line has ``person`` and the numbers of the images on the sheet ``for-people.png`` of
    table-6.5, in any order. Each further line has a name and that person's labels; an empty cell is no vote.
    """
    with Path(path).open(newline="", encoding="utf-8-sig") as file:
        head, *lines = [[cell.strip() for cell in row] for row in csv.reader(file) if row] or [[]]
    wanted = {str(i) for i in range(1, IMAGES + 1)}
    if not head or head[0] != PERSON or len(set(head)) != len(head) or set(head[1:]) != wanted:
        lacking = sorted(wanted - set(head), key=int)
        told = f"image {lacking[0]} is missing" if lacking else "it has other columns, or one twice"
        raise ValueError(f"{path}: {told}: {RULE}")
    if len(lines) < 2:
        raise ValueError(f"{path}: {len(lines)} people: two or more are needed to disagree; {RULE}")
    found = np.full((len(lines), IMAGES), np.nan)
    for i, row in enumerate(lines):
        if len(row) != len(head):
            raise ValueError(f"{path}: {row[0]!r} has {len(row) - 1} labels for {IMAGES} images; {RULE}")
        for name, cell in zip(head[1:], row[1:], strict=True):
            if cell and cell not in set("0123456789"):
                raise ValueError(f"{path}: {row[0]!r} labels image {name} as {cell!r}; {RULE}")
            found[i, int(name) - 1] = float(cell) if cell else np.nan
    silent = np.flatnonzero(np.isnan(found).all(0))
    if len(silent):
        raise ValueError(f"{path}: nobody has a label for image {silent[0] + 1}; {RULE}")
    return found


@study("table-6.7", "thesis, Tables 6.6–6.9, Figures 6.21, 6.23", ("mnist",))
class People(Experiment):
    """networks disagree on other images than people do

    People judge the 165 images of table-6.5 (its sheet for-people.png); their labels are a CSV file (docs/studies.md),
    `--set people=FILE`. They are set against the networks that table-6.5 has trained at the same scale in the same
    folder. Nothing is trained: first `tether run table-6.5`.

    The labels of the thesis's ten volunteers are not published: without a file nothing is measured. All people given
    are set against nine networks; the thesis takes nine of its ten. Networks and targets are those of table-6.5.
    """

    says = """
        a network errs on far fewer images than nine together
            | 5.9, 4.3, 3.5 % each, 15.2, 11.5, 7.3 % together (97.5, 98, 98.5 %; Table 6.6)
        two people disagree as often as two networks
            | 9.3 ± 2.2 % of the dataset; 11.3, 8.5, 7.4 % for networks (Table 6.6)
        with higher accuracy there are fewer images of type A and more of type C
            | type A 15.2, 11.5, 7.3 %, type C 6.1, 9.1, 8.5 % (Table 6.7)
        the maximum softmax is much lower for type A images than for type C images
            | 0.83 ± 0.178, 0.85 ± 0.172, 0.83 ± 0.187 against 0.97 ± 0.067, 0.96 ± 0.091, 0.97 ± 0.082 (Table 6.8)
        and higher where people disagree too than for type A
            | 0.87 ± 0.149, 0.86 ± 0.152, 0.89 ± 0.138 where both disagree (Table 6.8)
        there is not a clear correlation between the certainty of people and of models | Table 6.9
        with higher accuracy networks of one kind have fewer images of type A
            | the percentage of type A images decreases with test accuracy (Figure 6.21, left)
        and more of type C | the number of type C images increases with test accuracy (Figure 6.21, right)
    """
    people: str = ""  # the file

    def run(self, lab: Lab) -> Results:
        """What table-6.5 found, against the labels; or a word on what is missing."""
        if not self.people:
            return {"missing": "no labels of people: tether run table-6.7 --set people=FILE (docs/studies.md)"}
        labels = labels_of(self.people)
        try:
            config, found = replayed(lab, "table-6.5")
        except Absent as absent:
            return {"missing": str(absent)}
        return {"config": config, "verdicts": config.verdicts(found, labels)}

    def claims(self, results: Results) -> Found:
        nine = [one.between for one in results["verdicts"]["nine"] if one] if "verdicts" in results else []
        if not nine:
            why = results.get("missing", "not all nine networks reached a target accuracy")
            yield from [("not measured", undecided(why))] * 8
            return
        one, together = [100 * v.error.mean for v in nine], [100 * v.group_error for v in nine]
        text = f"{percentages(one)} % each, {percentages(together)} % together"
        yield text, yes(all(b > 2 * a for a, b in zip(one, together, strict=True)), "more than twice as many")
        two, human = [100 * v.disagreement.mean for v in nine], 100 * nine[0].human_disagreement.mean
        text = f"{human:.1f} % for two people, {percentages(two)} % for two networks"
        yield text, yes(min(two) / 2 <= human <= 2 * max(two), "within a factor of two")
        a, c = ([100 * getattr(v, kind) for v in nine] for kind in ("type_a", "type_c"))
        text = f"type A {percentages(a)} %, type C {percentages(c)} %"
        yield text, yes(a == sorted(a, reverse=True) and c == sorted(c), "A falls and C rises at every step")
        for other in ("C", "B, disagree"):
            yield softer(nine, other)
        yield self.certain(results)
        yield self.of_kinds(results, "type_a", falling=True)
        yield self.of_kinds(results, "type_c", falling=False)

    def levels(self, results: Results, kind: str) -> list[list[Agreement]]:
        """At every target the groups of one kind that reached it."""
        config, found = results["config"], results["verdicts"]
        groups: list[list[Verdict | None]] = [found[name] for name in config.groups_of(kind)]
        return [[one.between for one in level if one] for level in zip(*groups, strict=True)]

    def certain(self, results: Results) -> tuple[str, Judgement]:
        """The correlation of certainties over the images on which people are not all of one mind."""
        found = {}
        for kind in results["config"].kinds:
            pairs = [(v.humans.certainty, v.models.certainty) for v in self.levels(results, kind)[-1] if v.humans]
            x, y = (np.concatenate([pair[k] for pair in pairs] or [np.empty(0)]) for k in (0, 1))
            unsure = x < 1
            if np.unique(x[unsure]).size > 1 and np.unique(y[unsure]).size > 1:
                found[kind] = float(np.corrcoef(x[unsure], y[unsure])[0, 1])
        if not found:
            return "none", undecided("people or networks are equally sure of all images")
        text = ", ".join(f"{kind}s {r:+.2f}" for kind, r in found.items())
        return f"correlation {text}", yes(all(abs(r) < 0.5 for r in found.values()), "held if all are below 0.5")

    def of_kinds(self, results: Results, share: str, falling: bool) -> tuple[str, Judgement]:
        """A type's share of the images at the first and the last target, for each kind of network."""
        said, judged = [], {}
        for kind in results["config"].kinds:
            first, *_, last = [[100 * getattr(v, share) for v in level] for level in self.levels(results, kind)]
            said.append(f"{kind}s {plus_minus(first)} to {plus_minus(last)} %")
            if len(first) == len(last) > 1:
                judged[kind] = less(last, first) if falling else more(last, first)
        return "; ".join(said), every(judged) if judged else undecided("too few groups reached both targets")

    def tables(self, results: Results) -> list[Table]:
        if "verdicts" not in results:
            return []
        config, nine = results["config"], results["verdicts"]["nine"]
        reached = [(f"{t:g}", one.between) for t, one in zip(config.targets, nine, strict=True) if one]
        rows = [
            [target, str_of(v.error), *(f"{100 * x:.1f}" for x in (v.group_error, v.models.disagreement))]
            + [f"{100 * x:.1f}" for x in (v.type_a, v.type_c)]
            for target, v in reached
        ]
        head = ["test accuracy", "errors of each", "of any", "nine disagree", "type A", "type C"]
        made = [Table(head, rows, "Per cent of the images (Tables 6.6, 6.7)")]
        soft = [[label, *(str(v.softmax[key]) for _, v in reached)] for key, label in TYPES.items()]
        made.append(Table(["images", *(t for t, _ in reached)], soft, "Maximum softmax by target (Table 6.8)"))
        return [*made, self.certainties(results)]

    def certainties(self, results: Results) -> Table:
        """Table 6.9: how sure groups of one kind are, by how sure people are."""
        config, rows = results["config"], []
        levels = sorted({x for kind in config.kinds for v in self.levels(results, kind)[0] for x in v.certainty})[::-1]
        for kind in config.kinds:
            for target, groups in zip(config.targets, self.levels(results, kind), strict=True):
                cells = [plus_minus([100 * v.certainty[x][1] for v in groups if x in v.certainty]) for x in levels]
                rows.append([f"{target:g}", kind, *cells])
        head = ["test accuracy", "networks", *(f"people {100 * x:.0f} % sure" for x in levels)]
        return Table(head, rows, "Certainty of the networks of a group in per cent (Table 6.9)")

    def draw(self, results: Results) -> Figures:
        if "verdicts" not in results:
            figure, axis = subplots(figsize=(6, 1.2))
            axis.text(0.5, 0.5, results["missing"], ha="center", va="center", fontsize=8)
            axis.set_axis_off()
            return {"people": figure}
        config = results["config"]
        kind = "CNN" if "CNN" in config.kinds else config.kinds[0]
        levels = self.levels(results, kind)
        figure, panels = subplots(1, len(levels), figsize=(3.2 * len(levels), 4.4), squeeze=False)
        for axis, target, groups in zip(panels[0], config.targets, levels, strict=True):
            axis.set(title=f"{kind}s of {target:g} %", xticks=[], yticks=[])
            if groups:
                axis.imshow(coloured(groups[0]).reshape(len(WAYS), POINTS, 3))
        curves, pair = subplots(1, 2, figsize=(8, 3.4))
        for axis, share, label in zip(pair, ("type_a", "type_c"), ("type A", "type C"), strict=True):
            for x in (x for x in KINDS if x in config.kinds):
                values = [[100 * getattr(v, share) for v in groups] for groups in self.levels(results, x)]
                draw_means(axis, config.targets, values, label=f"{x}s")
            axis.set(xlabel="test accuracy (%)", ylabel=f"images of {label} (%)", ylim=(0, None))
            axis.legend()
        return {"people": figure, "types": curves}


def str_of(spread: Any) -> str:
    return f"{100 * spread.mean:.1f} ± {100 * spread.std:.1f}"


def softer(nine: list[Agreement], other: str) -> tuple[str, Judgement]:
    """Is the maximum softmax lower for type A than for another type, at every target?"""
    pairs = [(v.softmax["A"].mean, v.softmax[other].mean) for v in nine]
    text = f"{', '.join(f'{a:.2f}' for a, _ in pairs)} against {', '.join(f'{b:.2f}' for _, b in pairs)}"
    if any(np.isnan(x) for pair in pairs for x in pair):
        return text, undecided("a target without images of both types")
    return text, yes(all(a < b for a, b in pairs), f"at each of {len(pairs)} targets")


def coloured(found: Agreement) -> np.ndarray:
    """Figure 6.23: blue where networks disagree, red where people do, darker over three classes; grey, white: both."""
    assert found.humans is not None
    cells = np.empty((len(found.type), 3))
    for k in range(len(cells)):
        networks, people = (len(np.unique(x[x >= 0])) for x in (found.models.labels[:, k], found.humans.labels[:, k]))
        if (networks > 1) == (people > 1):
            cells[k] = (1.0, 1.0, 1.0) if networks > 1 else (0.74, 0.74, 0.74)
        elif networks > 1:
            cells[k] = (0.62, 0.74, 0.9) if networks == 2 else (0.18, 0.35, 0.62)
        else:
            cells[k] = (0.93, 0.65, 0.6) if people == 2 else (0.68, 0.14, 0.1)
    return cells
