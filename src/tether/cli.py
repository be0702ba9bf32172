"""The command: ``tether list``, ``tether run``, ``tether report``."""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

__all__ = ["main"]

OUT = Path("out/studies")
CODES = """exit codes:
  0    all that was asked for ran to its end
  1    something failed or did not run: data or a package missing, a folder in use, a full disk
  2    the command was wrong, or there is nothing to report; no study was begun
  130  interrupted (Ctrl-C); the same command goes on
  143  terminated (SIGTERM); the same command goes on"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; returns the exit status."""
    options = _parser().parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure") and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # not every terminal knows Greek
    try:
        code = {"list": _list, "run": _run, "report": _report}[options.command](options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except (KeyError, ValueError, OSError) as error:
        print(f"tether: {error.args[0] if isinstance(error, KeyError) else error}", file=sys.stderr)
        return 1 if isinstance(error, OSError) else 2
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from here", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tether",
        description="The papers' experiments, by one command each.",
        epilog=CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="a line for each study")
    running = commands.add_parser("run", help="run studies, or go on with those that were interrupted")
    reporting = commands.add_parser("report", help="all that was run, as one HTML file")
    for command in (listing, running, reporting):
        command.add_argument("--out", type=Path, default=OUT, help=f"where runs are kept (default {OUT})")
    running.epilog, running.formatter_class = CODES, argparse.RawDescriptionHelpFormatter
    running.add_argument("names", nargs="+", metavar="NAME", help="studies, or 'all'")
    scale = running.add_mutually_exclusive_group()
    scale.add_argument("--quick", dest="scale", action="store_const", const="quick", help="seconds, decides nothing")
    scale.add_argument("--full", dest="scale", action="store_const", const="full", help="the paper's scale")
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--jobs", type=int, default=1, help="how many studies, or pieces of a single study, at once")
    running.add_argument("--data", type=Path, help="the folder of the data sets (default: TETHER_DATA)")
    running.add_argument(
        *("--set",), nargs="+", action="extend", default=[], metavar="FIELD=VALUE",
        help="fields of the study's config; such a run has a folder of its own",
    )  # fmt: skip
    reporting.add_argument("--html", type=Path, help="the file to write (default OUT/report.html)")
    reporting.add_argument("--publish", type=Path, metavar="FOLDER", help="copy results and pictures there, small")
    reporting.add_argument("--readme", type=Path, metavar="FILE", help="bring the table 'what holds' in it up to date")
    return parser


@contextmanager
def _terminable() -> Iterator[None]:
    """On SIGTERM end the workers, which releases their locks, and then this process, with 143.

    The handler does not raise: Python drops an exception that is raised while it runs a destructor, and the command
    would go on. Files need no care, for they are whole or not there.
    """
    from tether.studies.workers import end

    if threading.current_thread() is not threading.main_thread():
        yield  # signals belong to the main thread
        return

    def terminate(*_: Any) -> None:
        try:
            end(multiprocessing.active_children())
            cursor = b"\x1b[?25h" if os.isatty(2) else b""  # progress bars hide it
            os.write(2, cursor + b"terminated: the same command goes on from here\n")
        finally:
            os._exit(143)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _list(options: argparse.Namespace) -> int:
    from tether.report import results, scale_of
    from tether.studies import studies

    found = {one["name"]: one for one in results(options.out)}
    width = max(len(name) for name in studies())
    for name, study in studies().items():
        done, verdicts = found.get(name), ""
        if done:
            said = ", ".join(claim["verdict"] for claim in done["claims"])
            verdicts = f"  [{scale_of(done)}: {_printable(said)}]"
        print(f"{name:<{width}}  {study.title} ({study.source}){verdicts}")
    return 0


def _printable(text: str) -> str:
    """Without characters that command a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _run(options: argparse.Namespace) -> int:
    from tether.studies import find, studies
    from tether.studies.files import note
    from tether.studies.runner import Job, ran, run_all

    if options.jobs < 1:
        raise ValueError(f"--jobs {options.jobs} must be 1 or more")
    if options.data is not None:
        os.environ["TETHER_DATA"] = str(options.data)
    os.environ["MPLBACKEND"] = "Agg"  # pictures go to files: a screen that is missing must not end a run
    names = list(studies()) if "all" in options.names else list(dict.fromkeys(options.names))
    scale, jobs = options.scale or "default", []
    for study in map(find, names):
        changes = dict(_change(study, text) for text in options.set)
        try:
            study.at(scale, **changes)
        except TypeError as error:
            raise ValueError(f"--set: {error}") from None
        jobs.append(Job(study.name, scale, options.out, options.seed, changes))
    with _terminable():
        outcomes = run_all(jobs, options.jobs)
    for name, outcome in outcomes.items():
        if not ran(outcome):
            note(f"{name}: {outcome}")
    return 0 if all(map(ran, outcomes.values())) else 1


def _change(study: Any, text: str) -> tuple[str, Any]:
    """A field and its value; text stays text where the field holds text."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set {text!r} must be FIELD=VALUE, for example --set {text}=1")
    known = {field.name: field for field in fields(study.config)}
    if key not in known:
        near = get_close_matches(key, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
        raise ValueError(f"--set: {study.name} has no field {key!r}: {hint}")
    try:
        meant = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value
    return key, value if isinstance(known[key].default, str) and not isinstance(meant, str) else meant


def _report(options: argparse.Namespace) -> int:
    from tether.report import html, publish, results, update_readme

    found = results(options.out)
    if not found:
        raise ValueError(f"nothing has been run in {options.out}: `tether run NAME` first")
    path = options.html or options.out / "report.html"
    path.write_text(html(found), encoding="utf-8")
    print(path)
    if options.publish:
        publish(found, options.publish)
        print(options.publish)
    if options.readme:
        update_readme(found, options.readme)
        print(options.readme)
    return 0


if __name__ == "__main__":
    sys.exit(main())
