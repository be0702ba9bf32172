"""What another study has found next door: its own code goes through its pieces, without doing any."""

import json
from collections.abc import Callable, Iterable
from typing import Any

from tether_studies import find
from tether_studies.lab import Lab, digest
from tether_studies.recorded import NotRecorded, Pieces, Recorded, pieces_of_run
from tether_studies.report.publish import recorded
from tether_studies.report.results import results
from tether_studies.study import Results

__all__ = ["Absent", "largest", "replayed"]


class Absent(LookupError):
    """A study that has not been run to its end; the message says what to run."""


def replayed(lab: Lab, name: str) -> tuple[Any, Results]:
    """The config of another study, and what it found at the same scale and with the same seed."""
    scale = lab.folder.name.removesuffix(f"-{digest(lab.config)}")
    folder = lab.shelf / name / scale
    flag = {"quick": " --quick", "long": " --long", "full": " --full"}.get(scale.partition("-")[0], "")
    try:
        fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        seed = fields.pop("seed")
        config = find(name).at("default", **fields)
    except (OSError, ValueError, TypeError, KeyError):
        raise Absent(f"{name} has not been run here: tether run {name}{flag}") from None
    return config, _through(lab, name, config, seed, lambda: pieces_of_run(folder), flag)


def largest(lab: Lab, names: Iterable[str]) -> dict[str, tuple[Any, Results] | Absent]:
    """The config of each study at its largest scale that was run or published here, and what it found; or why not."""
    known, found = {one["name"]: one for one in results(lab.shelf)}, dict[str, tuple[Any, Results] | Absent]()
    for name in names:
        try:
            found[name] = _largest(lab, name, known.get(name))
        except Absent as absent:
            found[name] = absent
    return found


def _largest(lab: Lab, name: str, result: dict[str, Any] | None) -> tuple[Any, Results]:
    if result is None:
        raise Absent(f"{name} has not been run to its end here: tether run {name}")
    try:
        config = find(name).at(result["scale"], **result["config"])
    except TypeError:
        raise Absent(f"{name} has other settings now than when it was run: tether run {name}") from None
    return config, _through(lab, name, config, result["seed"], lambda: recorded(result))


def _through(lab: Lab, name: str, config: Any, seed: int, read: Callable[[], Pieces], flag: str = "") -> Results:
    try:
        pieces = read()
    except Exception as error:  # numpy has many words for a damaged file
        raise Absent(f"{name} has a damaged piece ({error}): tether run {name}{flag}") from None
    try:
        return find(name).run(config, Recorded(find(name), config, seed, pieces, lab.shelf))
    except NotRecorded:
        raise Absent(f"{name} has not been run to its end: tether run {name}{flag}") from None
