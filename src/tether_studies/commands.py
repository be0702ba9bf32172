"""The sub-commands that the studies add to ``tether``: ``list``, ``run`` and ``report``.

Each takes a parser, adds its arguments and returns what to do with them (see `tether.cli`).
"""

import argparse
import ast
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

__all__ = ["list_studies", "report", "run"]

OUT = Path("out/studies")
Action = Callable[[argparse.Namespace], int]


def list_studies(parser: argparse.ArgumentParser) -> Action:
    """A line for each study: the minutes of one core at its default scale, what it shows, and the data it needs."""
    _out(parser)
    return _list


def run(parser: argparse.ArgumentParser) -> Action:
    """Run studies, or go on with those that were interrupted."""
    _out(parser)
    parser.add_argument("names", nargs="+", metavar="NAME", help="studies, or 'all'")
    scale = parser.add_mutually_exclusive_group()
    scale.add_argument("--quick", dest="scale", action="store_const", const="quick", help="seconds, decides nothing")
    told = {"long": "hours: enough to decide its claims", "full": "days: the paper's size, or what its notes say"}
    for name, what in told.items():
        scale.add_argument(f"--{name}", dest="scale", action="store_const", const=name, help=what)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        *("--jobs",), type=int,
        help="how many studies, or pieces of a single study, at once (default 1); with --ray, studies (default 4)",
    )  # fmt: skip
    parser.add_argument(
        *("--ray",), nargs="?", const="", metavar="ADDRESS",
        help="hand the pieces to the Ray cluster at HOST:PORT, or 'auto'; without an address, to one started here",
    )  # fmt: skip
    parser.add_argument("--data", type=Path, help="the folder of the data sets (default: TETHER_DATA)")
    parser.add_argument(
        *("--set",), nargs="+", action="extend", default=[], metavar="FIELD=VALUE",
        help="fields of the study's config; such a run has a folder of its own",
    )  # fmt: skip
    return _run


def report(parser: argparse.ArgumentParser) -> Action:
    """Write all that was run as one HTML file."""
    _out(parser)
    parser.add_argument("--html", type=Path, help="the file to write (default OUT/report.html)")
    parser.add_argument("--publish", type=Path, metavar="FOLDER", help="judge all again and write it there, small")
    parser.add_argument(
        *("--readme",), type=Path, nargs="+", default=[], metavar="FILE",
        help="pages with '<!-- what holds -->' or '<!-- methods -->': bring them up to date",
    )  # fmt: skip
    parser.add_argument("--documents", type=Path, metavar="FILE", help="write the page of all figures and theorems")
    return _report


def _out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=OUT, help=f"where runs are kept (default {OUT})")


def _list(options: argparse.Namespace) -> int:
    from tether_studies import studies
    from tether_studies.needs import MINUTES
    from tether_studies.report import results, scale_of

    found = {one["name"]: one for one in results(options.out)}
    width = max(len(name) for name in studies())
    for name, study in studies().items():
        done, verdicts = found.get(name), ""
        if done:
            said = ", ".join(claim["verdict"] for claim in done["claims"])
            verdicts = f"  [{scale_of(done)}: {_printable(said)}]"
        time = f"{MINUTES[name]} min" if name in MINUTES else "? min"
        needs = f"  needs {', '.join(one.rpartition(':')[2] for one in study.data)}" if study.data else ""
        print(f"{name:<{width}}  {time:>6}  {study.title} ({study.source}){needs}{verdicts}")
    return 0


def _printable(text: str) -> str:
    """Without characters that command a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _run(options: argparse.Namespace) -> int:
    from tether_studies import find, studies
    from tether_studies.files import note
    from tether_studies.runner import Job, ran, run_all

    if options.jobs is not None and options.jobs < 1:
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
    if options.ray is None:
        with _terminable():
            outcomes = run_all(jobs, options.jobs or 1)
    else:
        try:
            outcomes = _on_ray(jobs, options)
        except ModuleNotFoundError as error:
            note(str(error))
            return 1
    for name, outcome in outcomes.items():
        if not ran(outcome):
            note(f"{name}: {outcome}")
    return 0 if all(map(ran, outcomes.values())) else 1


def _on_ray(jobs: Sequence[Any], options: argparse.Namespace) -> dict[str, str]:
    """Run studies with their pieces on a Ray cluster."""
    from tether_studies.cluster.session import session
    from tether_studies.runner import run_all

    with session(options.ray or None) as address, _terminable():
        from tether_studies.cluster.tasks import Cluster

        return run_all(jobs, options.jobs or 4, Cluster(address))


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


@contextmanager
def _terminable() -> Iterator[None]:
    """On SIGTERM end the workers, which releases their locks, and then this process, with 143.

    The handler does not raise: Python drops an exception that is raised while it runs a destructor, and the command
    would go on. Files need no care, for they are whole or not there.
    """
    from tether_studies.workers import end

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


def _report(options: argparse.Namespace) -> int:
    from tether_studies.documents import page
    from tether_studies.files import write_text
    from tether_studies.report import html, publish, results, update_readme

    if options.documents:
        write_text(options.documents, page())
        print(options.documents)
    found = results(*filter(None, (options.out, options.publish)))
    if options.documents and not found:
        return 0  # the page needs no runs
    if not found:
        raise ValueError(f"nothing has been run in {options.out}: `tether run NAME` first")
    if options.html or options.out.is_dir():
        path = options.html or options.out / "report.html"
        path.write_text(html(found), encoding="utf-8")
        print(path)
    if options.publish:
        publish(found, options.publish)
        found = results(options.publish)
        print(options.publish)
    for page_to_update in options.readme:
        update_readme(found, page_to_update)
        print(page_to_update)
    return 0
