"""How time grows with size: plots of the tables whose cases count something, and the slopes of their lines."""

import math
import re
from pathlib import Path
from typing import Any

__all__ = ["drawn", "slope"]

FOLDER = Path(__file__).resolve().parents[1] / "_pictures"  # not committed
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito: told apart by everybody
MARKS = "osv^Dx"


def slope(points: list[tuple[float, float]]) -> float:
    """d log y/d log x by least squares over the last factor of 10 in x, or over the last two points."""
    last = points[-1][0]
    near = [point for point in points if point[0] >= last / 10.0001]
    near = near if len(near) > 1 else points[-2:]
    if len(near) < 2:
        return math.nan
    xs, ys = ([math.log(point[i]) for point in near] for i in (0, 1))
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def drawn(one: dict[str, Any]) -> str:
    """The Markdown of the plot of a table, logarithmic in both directions, with a line of slope 1."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt  # here, so that slopes need no second of waiting for it

    name = "growth-" + re.sub(r"\W+", "-", f"{one['title']} {one['threads']}")
    FOLDER.mkdir(exist_ok=True)
    with plt.rc_context({"svg.hashsalt": name, "font.size": 9}):
        figure, axis = plt.subplots(figsize=(5.5, 3.4))
        for i, of in enumerate(dict.fromkeys(row["of"] for row in one["rows"])):
            points = [(row["case"], row["seconds"][1]) for row in one["rows"] if row["of"] == of]
            style = {"color": COLOURS[i % len(COLOURS)], "marker": MARKS[i % len(MARKS)], "ms": 4, "lw": 1.2}
            axis.loglog(*zip(*points, strict=True), label=of, **style)
        last = max(row["case"] for row in one["rows"])
        top = max(row["seconds"][1] for row in one["rows"] if row["case"] == last)
        axis.plot([last / 30, last], [top / 30, top], color="0.6", ls=":", label="slope 1")
        axis.set(xlabel=one["axis"], ylabel="seconds", title=one["title"])
        axis.legend(fontsize=7)
        figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight", facecolor="white")
        plt.close(figure)
    return f"![{one['title']}: seconds against {one['axis']}](/_pictures/{name}.svg)"
