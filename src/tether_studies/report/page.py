"""The report: one HTML file without anything from elsewhere, a page for each study."""

import base64
import json
import shlex
from collections import Counter
from html import escape as escape_text
from pathlib import Path
from typing import Any

from tether_studies.judges import HELD, NOT_HELD, UNDECIDED
from tether_studies.report.results import Result, scale_of

__all__ = ["command", "html"]

KINDS = {HELD: "held", NOT_HELD: "not-held", UNDECIDED: "not-decided"}
STYLE = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
QUICK = "<p class=note>Runs marked <em>quick</em> show that a program works; they decide nothing.</p>"


def html(found: list[Result]) -> str:
    """The whole report."""
    pages = "\n".join(_page(result) for result in found)
    return (
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n"
        '<meta name=viewport content="width=device-width, initial-scale=1">\n'
        f"<title>tether: the papers, reproduced</title>\n<style>\n{STYLE}</style>\n"
        f"<main>\n{_front(found)}\n{pages}\n</main>\n</html>\n"
    )


def _front(found: list[Result]) -> str:
    count = Counter(claim["verdict"] for result in found for claim in result["claims"] if result["scale"] != "quick")
    badges = " ".join(f"{_badge(verdict)} {n}" for verdict, n in count.most_common())
    early = sum(claim["provisional"] for result in found for claim in result["claims"] if result["scale"] != "quick")
    hours = sum(result["seconds"] for result in found) / 3600
    where = found[0]["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    dates = sorted({result["date"][:10] for result in found})
    rows = "".join(_claim_row(result, claim) for result in found for claim in result["claims"])
    return f"""<section id=front>
<h1>The papers, reproduced</h1>
<p>{len(found)} studies, {sum(len(result["claims"]) for result in found)} claims. {badges}</p>
<p class=small>Verdicts are by Student's t at 5 %, two-sided, run by run; {early} of them are provisional, from
fewer than four runs.</p>
<p class=small>{escape(" to ".join(dict.fromkeys((dates[0], dates[-1]))))}; {hours:.1f} hours of computing on one thread
each; {escape(where.get("processor") or where.get("system", ""))}, python {escape(where.get("python", ""))},
{escape(versions)}.</p>
{QUICK if any(result["scale"] == "quick" for result in found) else ""}
<table class=claims>
<thead><tr><th>study<th>claim<th>published<th>measured<th>verdict<th>scale<th>time</thead>
<tbody>{rows}</tbody>
</table>
</section>"""


def _claim_row(result: Result, claim: dict[str, Any]) -> str:
    cells = {"study": f'<a href="#{escape(result["name"])}">{escape(result["name"])}</a>'}
    cells |= {"claim": escape(claim["text"])} | {key: escape(claim[key]) for key in ("published", "measured")}
    cells |= {
        "verdict": _badge(claim["verdict"], result["scale"], claim["provisional"]),
        "scale": escape(scale_of(result)),
    }
    cells["time"] = _time(result["seconds"])
    return "<tr>" + "".join(f'<td data-label="{label}">{cell}' for label, cell in cells.items())


def _verdict(result: Result, claim: dict[str, Any]) -> str:
    return _badge(claim["verdict"], result["scale"], claim["provisional"])


def _badge(verdict: str, scale: str = "default", provisional: bool = False) -> str:
    kind = "quick" if scale == "quick" else KINDS.get(verdict, "other")
    return f'<span class="badge {kind}">{escape(verdict)}{", provisional" if provisional else ""}</span>'


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _page(result: Result) -> str:
    claims = "".join(
        f"<li>{_verdict(result, claim)} <strong>{escape(claim['text'])}</strong>"
        f"<br>published: {escape(claim['published'])}<br>measured: {escape(claim['measured'])}"
        + (f"<br><span class=small>{escape(claim['evidence'])}</span>" if claim["evidence"] else "")
        for claim in result["claims"]
    )
    encoded = {name: base64.b64encode((result["folder"] / name).read_bytes()).decode() for name in result["figures"]}
    figures = "".join(
        f'<figure><img alt="{escape(name)}" src="data:image/png;base64,{content}"></figure>'
        for name, content in encoded.items()
    )
    commit = result["environment"].get("commit") or "not from a repository"
    return f"""<section class=page id="{escape(result["name"])}">
<p class=small><a href="#">all studies</a></p>
<h2>{escape(result["name"])}: {escape(result["title"])}</h2>
<p class=small>{escape(result["source"])}; {escape(scale_of(result))} scale, {escape(result["date"][:10])},
{_time(result["seconds"])}</p>
<ul class=verdicts>{claims}</ul>
{figures}
{"".join(_table(table) for table in result["tables"])}
{f"<p>{escape(result['notes'])}</p>" if result["notes"] else ""}
<pre class=command>{escape(command(result))}</pre>
<details><summary>config</summary><pre>{escape(json.dumps(result["config"], indent=1, ensure_ascii=False))}</pre>
<p class=small>commit {escape(commit)}, seed {escape(result["seed"])}</p></details>
</section>"""


def command(result: Result) -> str:
    """What runs the study again; a list of JSON is a tuple for `--set`."""
    flag = "" if result["scale"] == "default" else f" --{result['scale']}"
    seed = f" --seed {result['seed']}" if result["seed"] else ""
    values = {key: tuple(x) if isinstance(x, list) else x for key, x in result["changes"].items()}
    changes = " ".join(shlex.quote(f"{key}={value}") for key, value in values.items())
    return f"tether run {result['name']}{flag}{seed}{' --set ' if changes else ''}{changes}"


def _table(table: dict[str, Any]) -> str:
    cells = [[f"{value:.4g}" if isinstance(value, float) else value for value in row] for row in table["rows"]]
    head = "".join(f"<th>{escape(name)}" for name in table["head"])
    rows = "".join("<tr>" + "".join(f"<td>{escape(value)}" for value in row) for row in cells)
    caption = f"<caption>{escape(table['caption'])}</caption>" if table["caption"] else ""
    return f"<div class=wide><table>{caption}<thead><tr>{head}</thead><tbody>{rows}</tbody></table></div>"


def escape(value: Any) -> str:
    """Anything as text of HTML: nothing from a file is taken for markup."""
    return escape_text(str(value))
