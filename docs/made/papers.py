"""The pages of the papers: every study with its figure, table, verdicts and command, from docs/results/*.json."""

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from tether_studies.judges import HELD, NOT_HELD, UNDECIDED
from tether_studies.report import results
from tether_studies.report.page import command
from tether_studies.report.tables import decisive, what_holds

__all__ = ["PAGES", "page_of", "studies", "summary"]

DOCS = Path(__file__).resolve().parents[1]
PAGES = {  # page → its title
    "chapter_1": "Thesis, chapter 1: time scales",
    "chapter_3": "Thesis, chapter 3: partitioned dynamics",
    "chapter_4": "Thesis, chapter 4, and the ICML paper: constraints",
    "chapter_5": "Thesis, chapter 5: multirate training",
    "chapter_6": "Thesis, chapter 6: what training found",
    "theorems": "Thesis and CoLA poster: theorems",
    "path_sgd_slides": "Path-SGD slides",
    "gd_dynamics_slides": "GD-dynamics slides",
}
SIGNS = {HELD: "✓ held", NOT_HELD: "✗ not held", UNDECIDED: "? not decided"}


@cache
def found() -> list[dict[str, Any]]:
    """The committed results."""
    return decisive(results(DOCS / "results"))


def page_of(result: dict[str, Any]) -> str:
    """The page of a study: the chapter in its name, or else the document that it is from."""
    chapter = re.match(r"[a-z]+-(\d+)", result["name"])
    if chapter:
        page = f"chapter_{chapter[1]}"
    elif result["source"].startswith(("thesis", "CoLA poster", "ICML paper")):
        page = "theorems"
    else:
        page = re.sub(r"\W", "_", result["source"].partition(",")[0].lower())
    if page not in PAGES:
        raise LookupError(
            f"{result['name']} ({result['source']}) belongs to {page!r}, which PAGES in docs/made/papers.py lacks"
        )
    return page


def summary(_: str) -> str:
    """How many claims hold, page by page, and the worst misses."""
    lines = ["| | studies | claims | held | not held | not decided | provisional |", "|---|---|---|---|---|---|---|"]
    for page, title in PAGES.items():
        here = [result for result in found() if page_of(result) == page]
        lines.append(_counts(f"[{title}]({page}.md)", here))
    lines.append(_counts("all", found()))
    return "\n".join([*lines, "", what_holds(found())])


def studies(page: str) -> str:
    """Every study of a page."""
    return "\n\n".join(_study(result) for result in found() if page_of(result) == page)


def _counts(title: str, here: list[dict[str, Any]]) -> str:
    claims = [claim for result in here for claim in result["claims"]]
    count = Counter(claim["verdict"] for claim in claims)
    early = sum(claim["provisional"] for claim in claims)
    return _row([title, len(here), len(claims), count[HELD], count[NOT_HELD], count[UNDECIDED], early])


def _study(result: dict[str, Any]) -> str:
    title = result["title"][0].upper() + result["title"][1:]
    lines = [f"## {_text(title)}", "", f"`{result['name']}`: {_text(result['source'])}.", ""]
    lines += ["| verdict | claim | published | measured |", "|---|---|---|---|"]
    for claim in result["claims"]:
        sign = SIGNS[claim["verdict"]] + (", provisional" if claim["provisional"] else "")
        lines.append(_row([sign, claim["text"], claim["published"], claim["measured"]]))
    for name in result["figures"]:
        lines += ["", f"![{_text(title)}](../results/{name})"]
    for table in result["tables"]:
        lines += ["", *([f"{_text(table['caption'])}:", ""] if table["caption"] else [])]
        lines += [_row(table["head"]), "|" + "---|" * len(table["head"]), *(_row(row) for row in table["rows"])]
    lines += ["", _text(result["notes"]), "", "```", command(result), "```", "", _when(result)]
    return "\n".join(lines)


def _when(result: dict[str, Any]) -> str:
    minutes = result["seconds"] / 60
    took = f"{minutes:.0f} minutes" if minutes >= 2 else f"{result['seconds']:.0f} seconds"
    versions = result["environment"].get("versions", {})
    return f"{result['date'][:10]}, {took}, tether {versions.get('tether', '?')}, torch {versions.get('torch', '?')}."


def _row(cells: list[Any]) -> str:
    shown = (f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells)
    return "| " + " | ".join(_text(cell).replace("|", r"\|") for cell in shown) + " |"


def _text(text: str) -> str:
    """Text of a result on one line, in which nothing is taken for HTML, a formula or emphasis."""
    return re.sub(r"([\\$_*])", r"\\\1", " ".join(text.split())).replace("<", "&lt;")
