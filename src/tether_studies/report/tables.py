"""Tables of the README that are made, not written: between two comments, anew each time."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

from tether_studies.files import write_text
from tether_studies.judges import HELD, NOT_HELD, UNDECIDED

__all__ = ["every_claim", "methods_table", "update_readme", "what_holds"]

TAG = re.compile(r"<(?=[a-zA-Z/!?])")  # where HTML would begin; "< 0.1" is less than
Result = dict[str, Any]
VERDICTS = (HELD, NOT_HELD, UNDECIDED)


def every_claim(found: list[Result]) -> str:
    """Every claim with what was published, what was measured and whether it holds, as Markdown."""
    lines = ["| study | claim | published | measured | |", "|---|---|---|---|---|"]
    for result in decisive(found):
        for claim in result["claims"]:
            scale = "" if result["scale"] == "default" else f" --{result['scale']}"
            cells = (f"{result['name']}{scale}", claim["text"], claim["published"], claim["measured"], _verdict(claim))
            lines.append(_row(cells))
    return "\n".join(lines)


def what_holds(found: list[Result]) -> str:
    """How many claims hold in a sentence, and a line for each study, as Markdown."""
    claims = [claim for result in decisive(found) for claim in result["claims"]]
    count, early = Counter(claim["verdict"] for claim in claims), sum(claim["provisional"] for claim in claims)
    told = f"{count[HELD]} hold, {count[NOT_HELD]} do not, {count[UNDECIDED]} are not decided"
    lines = [f"Of {len(claims)} claims {told}; {early} of these verdicts are provisional, from fewer than four runs."]
    lines += ["", "| study | what it is about | claims |", "|---|---|---|"]
    for result in decisive(found):
        count = Counter(claim["verdict"] for claim in result["claims"])
        verdicts = ", ".join(f"{count[verdict]} {_bold(verdict)}" for verdict in VERDICTS if count[verdict])
        early = sum(claim["provisional"] for claim in result["claims"])
        verdicts += f" ({'all' if early == len(result['claims']) else early} provisional)" if early else ""
        lines.append(_row((f"`{result['name']}`", f"{result['title']} ({result['source']})", verdicts)))
    return "\n".join(lines)


def decisive(found: list[Result]) -> list[Result]:
    """Without quick runs, which show that a program works and nothing else, and without those of a changed config."""
    return [result for result in found if result["scale"] != "quick" and not result["changes"]]


def _verdict(claim: dict[str, Any]) -> str:
    return _bold(claim["verdict"]) + (" (provisional)" if claim["provisional"] else "")


def _bold(verdict: str) -> str:
    return f"**{verdict}**" if verdict == HELD else verdict


def _row(cells: tuple[str, ...]) -> str:
    """A row of Markdown. Text from a file stays in its cell, and is not taken for HTML."""
    return "| " + " | ".join(TAG.sub("&lt;", " ".join(cell.split())).replace("|", "\\|") for cell in cells) + " |"


def methods_table() -> str:
    """Every method of `tether.methods` with the first line of its docstring and its source, as Markdown."""
    from tether import methods

    lines = ["| `tether.methods.` | what it is | source |", "|---|---|---|"]
    for name in methods.__all__:
        if name != "citation":
            what = (getattr(methods, name).__doc__ or "").partition("\n")[0].rstrip(".")
            source = methods.citation(name)
            authors = ", ".join(re.findall(r"(?:[A-Z]\. )+([A-Z][\w-]+)", source))
            year = re.findall(r"\b(?:19|20)\d\d\b", source)[-1]
            lines.append(f"| `{name}` | {what} | {authors} {year} |".replace("|θ|", "\\|θ\\|"))
    return "\n".join(lines)


def update_readme(found: list[Result], path: Path) -> None:
    """Write both tables between their comments, ``<!-- what holds -->`` … ``<!-- end -->``; nothing else changes."""
    text = path.read_text(encoding="utf-8")
    for mark, table in (("what holds", what_holds(found)), ("methods", methods_table())):
        pattern = re.compile(rf"(<!-- {mark} -->\n).*?(\n<!-- end -->)", re.DOTALL)
        found_at = pattern.search(text)
        if found_at is None:
            raise ValueError(f"{path} has no place for the table: write '<!-- {mark} -->' and '<!-- end -->' in it")
        before, after = text[: found_at.end(1)], text[found_at.start(2) :]
        text = before + table + after
    write_text(path.resolve(), text)  # a link stays one
