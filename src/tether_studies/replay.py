"""What another study has found next door: its own code goes through its pieces, without doing any."""

import json
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
    return config, _through(lab, name, config, seed, pieces_of_run(folder), flag)


def largest(lab: Lab, name: str) -> tuple[Any, Results]:
    """The config of another study at its largest scale that was run or published here, and what it found."""
    result = next((one for one in results(lab.shelf) if one["name"] == name), None)
    if result is None:
        raise Absent(f"{name} has not been run to its end here: tether run {name}")
    try:
        config = find(name).at(result["scale"], **result["config"])
    except TypeError:
        raise Absent(f"{name} has other settings now than when it was run: tether run {name}") from None
    return config, _through(lab, name, config, result["seed"], recorded(result))


def _through(lab: Lab, name: str, config: Any, seed: int, pieces: Pieces, flag: str = "") -> Results:
    try:
        return find(name).run(config, Recorded(find(name), config, seed, pieces, lab.shelf))
    except NotRecorded:
        raise Absent(f"{name} has not been run to its end: tether run {name}{flag}") from None
