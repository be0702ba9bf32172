"""The command: ``tether list``, ``tether run``, ``tether report``."""

from __future__ import annotations

import argparse
import ast
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

__all__ = ["main"]

OUT = Path("out/studies")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="tether", description="The papers' experiments, by one command each.")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="a line for each study")
    running = commands.add_parser("run", help="run studies, or go on with those that were interrupted")
    reporting = commands.add_parser("report", help="all that was run, as one HTML file")
    for command in (listing, running, reporting):
        command.add_argument("--out", type=Path, default=OUT, help=f"where runs are kept (default {OUT})")
    running.add_argument("names", nargs="+", metavar="NAME", help="studies, or 'all'")
    scale = running.add_mutually_exclusive_group()
    scale.add_argument("--quick", dest="scale", action="store_const", const="quick", help="seconds, decides nothing")
    scale.add_argument("--full", dest="scale", action="store_const", const="full", help="the paper's scale")
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--jobs", type=int, default=1, help="how many studies, or pieces of a single study, at once")
    running.add_argument("--data", type=Path, help="the folder of the data sets (default: TETHER_DATA)")
    running.add_argument("--set", nargs="+", default=[], metavar="FIELD=VALUE", help="fields of the study's config")
    reporting.add_argument("--html", type=Path, help="the file to write (default OUT/report.html)")
    reporting.add_argument("--publish", type=Path, metavar="FOLDER", help="copy results and pictures there, small")
    reporting.add_argument("--readme", type=Path, metavar="FILE", help="bring the table 'what holds' in it up to date")
    options = parser.parse_args(arguments)
    try:
        return {"list": _list, "run": _run, "report": _report}[options.command](options)
    except (KeyError, ValueError, FileNotFoundError) as error:
        print(f"tether: {error.args[0] if isinstance(error, KeyError) else error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from here", file=sys.stderr)
        return 130


def _list(options: argparse.Namespace) -> int:
    from tether.report import results
    from tether.studies import studies

    found = {(one["name"], one["scale"]): one for one in results(options.out)}
    width = max(len(name) for name in studies())
    for name, study in studies().items():
        done = found.get((name, "full")) or found.get((name, "default")) or found.get((name, "quick"))
        verdicts = ", ".join(claim["verdict"] for claim in done["claims"]) if done else ""
        print(f"{name:<{width}}  {study.title} ({study.source})" + (f"  [{done['scale']}: {verdicts}]" if done else ""))
    return 0


def _run(options: argparse.Namespace) -> int:
    from tether.studies import find, studies
    from tether.studies.runner import Job, run_all

    if options.jobs < 1:
        raise ValueError(f"--jobs {options.jobs} must be 1 or more")
    if options.data is not None:
        os.environ["TETHER_DATA"] = str(options.data)
    names = list(studies()) if "all" in options.names else options.names
    changes = {}
    for text in options.set:
        key, _, value = text.partition("=")
        for name in names:
            _known(find(name), key)
        changes[key] = _value(value)
    jobs = [Job(find(name).name, options.scale or "default", options.out, options.seed, changes) for name in names]
    outcomes = run_all(jobs, options.jobs)
    for name, outcome in outcomes.items():
        if outcome.startswith("not run"):
            print(f"{name}: {outcome}", file=sys.stderr)
    return 1 if any(outcome.startswith("failed") for outcome in outcomes.values()) else 0


def _known(study: Any, key: str) -> None:
    known = [field.name for field in fields(study.config)]
    if key not in known:
        near = get_close_matches(key, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
        raise ValueError(f"--set: {study.name} has no field {key!r}: {hint}")


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _report(options: argparse.Namespace) -> int:
    from tether.report import every_claim, html, publish, results, update_readme

    found = results(options.out)
    if not found:
        raise FileNotFoundError(f"nothing has been run in {options.out}: `tether run NAME` first")
    path = options.html or options.out / "report.html"
    path.write_text(html(found))
    print(path)
    if options.publish:
        publish(found, options.publish)
        head = "# What the studies found\n\nMade by `tether report --publish`; each study has its file here.\n\n"
        (options.publish / "README.md").write_text(f"{head}{every_claim(found)}\n")
        print(options.publish)
    if options.readme:
        update_readme(found, options.readme)
        print(options.readme)
    return 0


if __name__ == "__main__":
    sys.exit(main())
