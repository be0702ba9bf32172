"""Pieces as Ray tasks. A lost process or node costs what was done since the last checkpoint, and nothing else.

The machines of a cluster have disks of their own, so nothing here is a path that two of them share. A piece travels as
bytes; in them, paths in the folder of the run stand for paths in a folder that the task makes for itself. Checkpoints
that the piece writes there are sent to the `Post`, from which the driver takes them to its own disk, and from which the
task fetches the newest one if Ray starts it again. The driver alone writes to the folder of the run: it holds the lock.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import torch
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tether_studies.cluster.parcels import packed, scratch, sending, unpacked
from tether_studies.cluster.session import connect
from tether_studies.environment import environment
from tether_studies.files import note, whole
from tether_studies.study import Results
from tether_studies.workers import Work

if TYPE_CHECKING:
    from tether_studies.lab import Lab

__all__ = ["Cluster", "Post"]

RETRIES = 10  # how often a piece is begun again after its process or its node was lost
SAME = ("tether", "torch", "numpy")  # packages on which the bits of a result depend


class Post:
    """An actor beside the driver, which takes what running pieces have to say and keeps their newest checkpoints."""

    def __init__(self, checkpoints: dict[str, bytes]) -> None:
        self.newest = checkpoints
        self.begun: list[tuple[str, str]] = []
        self.fresh: set[str] = set()

    def begin(self, name: str, node: str) -> bytes | None:
        """A piece begins on a node; returns the checkpoint from which it goes on."""
        self.begun.append((name, node))
        return self.newest.get(name)

    def save(self, name: str, checkpoint: bytes) -> None:
        self.newest[name] = checkpoint
        self.fresh.add(name)

    def take(self) -> tuple[list[tuple[str, str]], dict[str, bytes]]:
        """What is new: the pieces that were begun and where, and checkpoints."""
        news = self.begun, {name: self.newest[name] for name in self.fresh}
        self.begun, self.fresh = [], set()
        return news

    def forget(self, name: str) -> None:
        self.newest.pop(name, None)
        self.fresh.discard(name)


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster: as many pieces at once as it has processors."""

    address: str

    def run(self, lab: Lab, work: Work, watch: Callable[[str], None]) -> None:
        """Hand all pieces to the cluster; if some fail, the others are kept and then the first error is raised."""
        if not work:
            return
        connect(self.address)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        saved = {name: lab.checkpoint(name).read_bytes() for name in work if lab.checkpoint(name).exists()}
        post = ray.remote(Post).options(num_cpus=0, scheduling_strategy=here).remote(saved)
        task = ray.remote(piece).options(num_cpus=1, max_retries=RETRIES)
        facts = _facts()
        tasks = {task.remote(name, packed(lab, todo), facts, post): name for name, todo in work.items()}
        errors: dict[str, BaseException] = {}
        try:
            _collect(lab, tasks, post, watch, errors)
        finally:
            for one in tasks:
                ray.cancel(one, force=True)
            ray.kill(post)
        for name in work:
            if name in errors:
                raise errors[name]


def _collect(
    lab: Lab, tasks: dict[Any, str], post: Any, watch: Callable[[str], None], errors: dict[str, BaseException]
) -> None:
    """Bring home what tasks send and find, until the last has ended."""
    waiting, running = list(tasks), dict[str, str]()
    while waiting:
        ended, waiting = ray.wait(waiting, timeout=0.5)
        # A task sends its last checkpoint before it ends, so that nothing can come after its result.
        begun, checkpoints = ray.get(post.take.remote())
        for name, node in begun:
            if name in running:
                note(f"{lab.study.name}: {name} was lost with {running[name]} and begins again on {node}")
            running[name] = node
        for name, checkpoint in checkpoints.items():
            _keep_checkpoint(lab, name, checkpoint)
        for one in ended:
            name = tasks[one]
            running.pop(name, None)
            post.forget.remote(name)
            try:
                arrays, seconds, said = ray.get(one)
            except RayTaskError as error:
                errors[name] = _cause(error)
            except RayError as error:
                errors[name] = RuntimeError(f"{name} was lost {RETRIES + 1} times ({error})")
            else:
                sys.stderr.write(said)
                lab.keep(name, arrays, seconds)
        if begun or ended:
            watch(_listed(list(running)))


def _keep_checkpoint(lab: Lab, name: str, checkpoint: bytes) -> None:
    if lab.done(name):
        return  # from a node that was given up and did not know it
    try:
        with whole(lab.checkpoint(name)) as file:
            file.write(checkpoint)
    except OSError as error:
        note(f"{lab.checkpoint(name)} could not be written ({error}): make room for it")


def _listed(names: list[str]) -> str:
    """The pieces that run, as a text of a line.

    >>> _listed(["a", "b", "c", "d"])
    '4 at once: a; b; c …'
    """
    if len(names) < 2:
        return "".join(names)
    return f"{len(names)} at once: {'; '.join(names[:3])}{' …' if len(names) > 3 else ''}"


def _cause(error: RayTaskError) -> BaseException:
    """What a piece raised, under the traceback from its node."""
    cause = error.cause if isinstance(error.cause, BaseException) else RuntimeError(str(error))
    cause.__cause__ = error
    return cause


def _facts() -> dict[str, Any]:
    """What a task must know of the driver."""
    versions = environment()["versions"]
    data = os.environ.get("TETHER_DATA")
    return {"data": data and str(Path(data).resolve()), "versions": {name: versions.get(name) for name in SAME}}


def piece(name: str, parcel: bytes, facts: dict[str, Any], post: Any) -> tuple[Results, float, str]:
    """The task: do a piece on this node; returns what it found, its seconds, and what it wrote to stderr."""
    node, own = ray.util.get_node_ip_address(), _facts()["versions"]
    if own != facts["versions"]:
        raise RuntimeError(f"node {node} has {own}, the driver {facts['versions']}: install the same on every node")
    if facts["data"] and Path(facts["data"]).is_dir():
        os.environ["TETHER_DATA"] = facts["data"]  # else the node's own, if it was started with one
    os.environ["MPLBACKEND"] = "Agg"
    torch.set_num_threads(1)  # as everywhere: the sums then do not depend on the number of threads
    with scratch() as folder, redirect_stderr(StringIO()) as said:
        lab, work = unpacked(parcel, folder)
        place = lab.checkpoint(name)
        place.parent.mkdir()
        saved = ray.get(post.begin.remote(name, node))
        if saved is not None:
            place.write_bytes(saved)
        with sending(place, lambda content: ray.get(post.save.remote(name, content))):
            arrays, seconds = lab.result(name, work)
    return arrays, seconds, said.getvalue()
