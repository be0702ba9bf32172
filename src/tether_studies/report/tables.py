"""What pages say that is made, not written: between two comments, anew each time."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

from tether_studies.files import write_text
from tether_studies.judges import HELD, NOT_HELD, UNDECIDED

__all__ = ["by_study", "every_claim", "methods_table", "update_readme", "what_holds"]

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


def what_holds(found: list[Result], worst: int = 4) -> str:
    """How many claims hold, in a sentence, and the studies with the most misses, as Markdown."""
    claims = [claim for result in decisive(found) for claim in result["claims"]]
    count, early = Counter(claim["verdict"] for claim in claims), sum(claim["provisional"] for claim in claims)
    told = f"{count[HELD]} hold, {count[NOT_HELD]} do not, {count[UNDECIDED]} are not decided"
    provisional = f"; {early} of these verdicts are provisional, from fewer than four runs" if early else ""
    lines = [f"Of {len(claims)} claims {told}{provisional}."]
    misses = {result["name"]: _missed(result) for result in decisive(found)}
    most = sorted((name for name in misses if misses[name]), key=lambda name: -len(misses[name]))[:worst]
    for name in most:
        one = next(result for result in found if result["name"] == name)
        what = f"{len(misses[name])} of {len(one['claims'])} claims not held, such as “{misses[name][0]}”"
        lines.append(_plain(f"- `{name}` ({one['source'].partition(';')[0]}): {what}"))
    return "\n".join([lines[0], *([""] if most else []), *lines[1:]])


def by_study(found: list[Result]) -> str:
    """A line for each study with the number of its verdicts, as Markdown."""
    lines = ["| study | what it is about | claims |", "|---|---|---|"]
    for result in decisive(found):
        count = Counter(claim["verdict"] for claim in result["claims"])
        verdicts = ", ".join(f"{count[verdict]} {_bold(verdict)}" for verdict in VERDICTS if count[verdict])
        early = sum(claim["provisional"] for claim in result["claims"])
        verdicts += f" ({'all' if early == len(result['claims']) else early} provisional)" if early else ""
        lines.append(_row((f"`{result['name']}`", f"{result['title']} ({result['source']})", verdicts)))
    return "\n".join(lines)


def _missed(result: Result) -> list[str]:
    return [claim["text"] for claim in result["claims"] if claim["verdict"] == NOT_HELD]


def decisive(found: list[Result]) -> list[Result]:
    """Without quick runs, which show that a program works and nothing else, and without those of a changed config."""
    return [result for result in found if result["scale"] != "quick" and not result["changes"]]


def _verdict(claim: dict[str, Any]) -> str:
    return _bold(claim["verdict"]) + (" (provisional)" if claim["provisional"] else "")


def _bold(verdict: str) -> str:
    return f"**{verdict}**" if verdict == HELD else verdict


def _row(cells: tuple[str, ...]) -> str:
    """A row of Markdown. Text from a file stays in its cell, and is not taken for HTML."""
    return "| " + " | ".join(_plain(cell).replace("|", "\\|") for cell in cells) + " |"


def _plain(text: str) -> str:
    """Text on one line, which is not taken for HTML."""
    return TAG.sub("&lt;", " ".join(text.split()))


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
    """Write anew what stands between the comments ``<!-- what holds -->`` (or ``methods``) and ``<!-- end -->``."""
    text, made = path.read_text(encoding="utf-8"), {"what holds": what_holds(found), "methods": methods_table()}
    pattern = re.compile(rf"(<!-- ({'|'.join(made)}) -->\n).*?(\n?<!-- end -->)", re.DOTALL)
    text, places = pattern.subn(lambda found: f"{found[1]}{made[found[2]]}\n<!-- end -->", text)
    if not places:
        marks = " or ".join(f"'<!-- {mark} -->'" for mark in made)
        raise ValueError(f"{path} has no place for what is made: write {marks}, and '<!-- end -->' on another line")
    write_text(path.resolve(), text)  # a link stays one
