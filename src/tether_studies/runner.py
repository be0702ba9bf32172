"""Run studies: one after the other or several at once, each in its folder, with the time that is left."""

import json
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, cast

import torch

from tether_studies import find
from tether_studies.files import note, whole, write_text
from tether_studies.judges import UNJUDGED
from tether_studies.lab import Busy, Lab, digest, now
from tether_studies.needs import missing
from tether_studies.study import Study
from tether_studies.workers import end, end_with_parent

__all__ = ["Job", "folder_of", "ran", "run_all", "run_one"]

FAILED, NOT_RUN = "failed: ", "not run: "
DECIDES_NOTHING = "a quick run decides nothing"


@dataclass(frozen=True)
class Job:
    """What to run, at which scale, and where to keep it."""

    name: str
    scale: str = "default"
    out: Path = Path("out/studies")
    seed: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)


def folder_of(job: Job) -> Path:
    """One folder for each study, scale and seed; a config with changed fields has one of its own, with its digest."""
    study = find(job.name)
    config = study.at(job.scale, **job.changes)
    name = job.scale if job.seed == 0 else f"{job.scale}-seed{job.seed}"
    return job.out / job.name / (f"{name}-{digest(config)}" if study.changed(job.scale, config) else name)


def ran(outcome: str) -> bool:
    """Did a study run to its end?"""
    return not outcome.startswith((FAILED, NOT_RUN))


def run_one(job: Job, watch: Any = None, workers: int = 1) -> str:
    """Run a study to its end, or go on with it; returns how it went, in a line."""
    study = find(job.name)
    config = study.at(job.scale, **job.changes)
    lacking = _lacking(job)
    if lacking:
        return lacking
    # One thread: the sums then do not depend on how many studies run at once.
    torch.set_num_threads(1)
    lab = Lab(study, config, folder_of(job), job.seed)
    lab.watch, lab.workers = watch or lab.watch, workers
    try:
        lab.open()
        return conclude(study, lab, job, study.run(lab.config, lab))
    except Busy as busy:
        return f"{NOT_RUN}{busy}"
    finally:
        lab.close()


def _lacking(job: Job) -> str:
    lacking = missing(find(job.name))
    return f"{NOT_RUN}it needs {'; '.join(lacking)}" if lacking else ""


def conclude(study: Study, lab: Lab, job: Job, results: dict[str, Any]) -> str:
    """Judge the claims, draw the figures and write ``result.json``."""
    claims = list(study.claims(results, lab.config))
    if job.scale == "quick":
        claims = [replace(claim, verdict=UNJUDGED, evidence=DECIDES_NOTHING, provisional=False) for claim in claims]
    figures = study.draw(results, lab.config)
    for name, figure in figures.items():
        with whole(lab.folder / f"{name}.png") as file:
            figure.savefig(file, format="png", dpi=110, bbox_inches="tight")
    record = {
        "name": study.name,
        "title": study.title,
        "source": study.source,
        "notes": study.notes,
        "scale": job.scale,
        "seed": job.seed,
        "date": now(),
        "seconds": round(lab.seconds(), 1),
        "config": asdict(lab.config),
        "changes": study.changed(job.scale, lab.config),
        "environment": json.loads((lab.folder / "environment.json").read_text(encoding="utf-8")),
        "claims": [asdict(claim) for claim in claims],
        "tables": [asdict(table) for table in study.tables(results, lab.config)],
        "figures": sorted(f"{name}.png" for name in figures),
    }
    write_text(lab.folder / "result.json", json.dumps(record, indent=1, ensure_ascii=False, default=float))
    if figures:
        import matplotlib.pyplot as plt

        plt.close("all")
    verdicts = [f"{claim.verdict}{' (provisional)' if claim.provisional else ''}" for claim in claims]
    return f"done: {DECIDES_NOTHING}" if job.scale == "quick" else ", ".join(verdicts) or "done"


def run_all(jobs: Sequence[Job], at_once: int = 1) -> dict[str, str]:
    """Run several studies; one that fails or lacks its data does not keep the others from running.

    What a study lacks is said before the first one begins. Of a single study so many pieces run at once.
    """
    lacking = {job.name: _lacking(job) for job in jobs}
    for name, outcome in lacking.items():
        if outcome:
            note(f"{name}: {outcome}")
    ready = [job for job in jobs if not lacking[job.name]]
    with _bars() as bars:
        if at_once == 1 or len(ready) == 1:
            outcomes = {job.name: _guarded(job, partial(bars, job.name), at_once) for job in ready}
        else:
            outcomes = _in_processes(ready, at_once, bars)
    return {job.name: lacking[job.name] or outcomes[job.name] for job in jobs}


def _guarded(job: Job, tell: Callable[[int, int, str], None], workers: int = 1) -> str:
    tell(0, 0, "")
    try:
        outcome = run_one(job, tell, workers)
    except Exception as error:
        traceback.print_exc()
        outcome = f"{FAILED}{type(error).__name__}: {error}"
    tell(-1, -1, outcome)
    return outcome


def _in_processes(jobs: Sequence[Job], at_once: int, bars: Any) -> dict[str, str]:
    """Each study in a process with a pipe of its own: one that is killed cannot block the others."""
    context = multiprocessing.get_context("spawn")
    waiting, outcomes = list(jobs), dict[str, str]()
    running: dict[Any, tuple[str, Any]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                news, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(job, theirs), daemon=True)
                running[news] = job.name, process
                process.start()
                theirs.close()  # the pipe ends with the child then
            for ready in cast("list[Any]", wait(list(running))):
                name, process = running[ready]
                try:
                    told = ready.recv()
                except (EOFError, OSError):
                    process.join()
                    told = (-1, -1, f"{FAILED}its process ended with {process.exitcode}")
                bars(name, *told)
                if told[0] < 0:
                    outcomes[name] = told[2]
                    del running[ready]
                    process.join()
    finally:
        end(process for _, process in running.values())
    return outcomes


def _child(job: Job, news: Any) -> None:
    end_with_parent()
    _guarded(job, lambda *told: news.send(told))


@contextmanager
def _bars() -> Iterator[Any]:
    """A bar with the time left for each running study on a terminal, a line at its beginning and end elsewhere."""
    began: dict[str, float] = {}

    def lines(name: str, done: int, total: int, text: str) -> None:
        if done < 0:
            print(f"{name}: {text} ({time.perf_counter() - began.get(name, time.perf_counter()):.0f} s)", flush=True)
        elif name not in began:
            began[name] = time.perf_counter()
            print(f"{name} …", flush=True)

    if not sys.stderr.isatty() or find_spec("rich") is None:
        yield lines
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.fields[name]:<12}"),
        BarColumn(30),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), speed_estimate_period=3600) as progress:
        tasks: dict[str, Any] = {}

        def bars(name: str, done: int, total: int, text: str) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task("", total=None, name=name)
            if done < 0:
                progress.update(tasks[name], description=text)
                progress.stop_task(tasks[name])
            elif total:
                progress.update(tasks[name], completed=done, total=total, description=text)

        yield bars
