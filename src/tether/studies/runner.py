"""Run studies: one after the other or several at once, each in its folder, with the time that is left."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from tether.studies import find
from tether.studies.lab import Busy, Lab, now, write_text
from tether.studies.needs import missing
from tether.studies.study import Study

__all__ = ["Job", "folder_of", "run_all", "run_one"]


@dataclass(frozen=True)
class Job:
    """What to run, at which scale, and where to keep it."""

    name: str
    scale: str = "default"
    out: Path = Path("out/studies")
    seed: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)


def folder_of(job: Job) -> Path:
    """One folder for each study, scale and seed."""
    return job.out / job.name / (job.scale if job.seed == 0 else f"{job.scale}-seed{job.seed}")


def run_one(job: Job, watch: Any = None, workers: int = 1) -> str:
    """Run a study to its end, or go on with it; returns how it went, in a line."""
    study = find(job.name)
    lacking = missing(study)
    if lacking:
        return f"not run: it needs {'; '.join(lacking)}"
    # One thread: the sums then do not depend on how many studies run at once.
    torch.set_num_threads(1)
    lab = Lab(study, study.at(job.scale, **job.changes), folder_of(job), job.seed)
    lab.watch, lab.workers = watch or lab.watch, workers
    try:
        lab.open()
    except Busy as busy:
        return f"not run: {busy}"
    try:
        return conclude(study, lab, job, study.run(lab.config, lab))
    finally:
        lab.close()


def conclude(study: Study, lab: Lab, job: Job, results: dict[str, Any]) -> str:
    """Judge the claims, draw the figures and write ``result.json``."""
    claims = study.claims(results, lab.config)
    figures = study.draw(results, lab.config)
    for name, figure in figures.items():
        figure.savefig(lab.folder / f"{name}.png", dpi=110, bbox_inches="tight")
    lines = (lab.folder / "metrics.jsonl").read_text().splitlines() if (lab.folder / "metrics.jsonl").exists() else []
    record = {
        "name": study.name,
        "title": study.title,
        "source": study.source,
        "notes": study.notes,
        "scale": job.scale,
        "seed": job.seed,
        "date": now(),
        "seconds": round(sum({line["piece"]: line["seconds"] for line in map(json.loads, lines)}.values()), 1),
        "config": asdict(lab.config),
        "environment": json.loads((lab.folder / "environment.json").read_text()),
        "claims": [asdict(claim) for claim in claims],
        "tables": [asdict(table) for table in study.tables(results, lab.config)],
        "figures": sorted(f"{name}.png" for name in figures),
    }
    write_text(lab.folder / "result.json", json.dumps(record, indent=1, ensure_ascii=False, default=float))
    if figures:
        import matplotlib.pyplot as plt

        plt.close("all")
    return ", ".join(f"{claim.verdict}" for claim in claims) or "done"


def run_all(jobs: Sequence[Job], at_once: int = 1) -> dict[str, str]:
    """Run several studies; one that fails or lacks its data does not keep the others from running.

    Of a single study so many pieces run at once.
    """
    with _bars(jobs) as bars:
        if at_once == 1 or len(jobs) == 1:
            return {
                job.name: _guarded(job, lambda *news, name=job.name: bars(name, *news), bars, at_once) for job in jobs
            }
        return _in_processes(jobs, at_once, bars)


def _guarded(job: Job, watch: Any, bars: Any, workers: int = 1) -> str:
    bars(job.name, 0, 0, "")
    try:
        outcome = run_one(job, watch, workers)
    except Exception as error:
        traceback.print_exc()
        outcome = f"failed: {type(error).__name__}: {error}"
    bars(job.name, -1, -1, outcome)
    return outcome


def _in_processes(jobs: Sequence[Job], at_once: int, bars: Any) -> dict[str, str]:
    context = multiprocessing.get_context("spawn")
    news: Any = context.Queue()
    waiting, outcomes = list(jobs), dict[str, str]()
    running: dict[str, Any] = {}
    while waiting or running:
        while waiting and len(running) < at_once:
            job = waiting.pop(0)
            running[job.name] = context.Process(target=_child, args=(job, news, os.getpid()), daemon=True)
            running[job.name].start()
        try:
            name, done, total, text = news.get(timeout=0.5)
            bars(name, done, total, text)
            if done < 0:
                outcomes[name] = text
                running.pop(name).join()
        except queue.Empty:
            for name, process in list(running.items()):
                if not process.is_alive() and news.empty():
                    outcomes[name] = f"failed: its process ended with {process.exitcode}"
                    bars(name, -1, -1, outcomes[name])
                    del running[name]
    return outcomes


def _child(job: Job, news: Any, parent: int) -> None:
    def watch(done: int, total: int, text: str) -> None:
        if os.getppid() != parent:
            sys.exit("the run this belongs to has ended")
        news.put((job.name, done, total, text))

    _guarded(job, watch, lambda name, done, total, text: news.put((name, done, total, text)))


@contextmanager
def _bars(jobs: Iterable[Job]) -> Iterator[Any]:
    """A bar with the time left for each running study on a terminal, a line at its beginning and end elsewhere."""
    began: dict[str, float] = {}

    def lines(name: str, done: int, total: int, text: str) -> None:
        if done < 0:
            print(f"{name}: {text} ({time.perf_counter() - began[name]:.0f} s)", flush=True)
        elif name not in began:
            began[name] = time.perf_counter()
            print(f"{name} …", flush=True)

    if not sys.stderr.isatty():
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
