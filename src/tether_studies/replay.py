"""What another study has found next door, at the same scale and with the same seed: its pieces as they were written."""

import json
from typing import Any

from tether_studies import find
from tether_studies.lab import Lab, digest
from tether_studies.recorded import NotRecorded, Recorded, pieces_of_run
from tether_studies.study import Results

__all__ = ["Absent", "replayed"]


class Absent(LookupError):
    """A study that has not been run to its end; the message says what to run."""


def replayed(lab: Lab, name: str) -> tuple[Any, Results]:
    """The config of another study, and what it found: its own code goes through its pieces, without doing any."""
    study, scale = find(name), lab.folder.name.removesuffix(f"-{digest(lab.config)}")
    folder = lab.folder.parents[1] / name / scale
    flag = {"quick": " --quick", "long": " --long", "full": " --full"}.get(scale.partition("-")[0], "")
    try:
        fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        seed = fields.pop("seed")
        config = study.at("default", **fields)
    except (OSError, ValueError, TypeError, KeyError):
        raise Absent(f"{name} has not been run here: tether run {name}{flag}") from None
    try:
        return config, study.run(config, Recorded(study, config, seed, pieces_of_run(folder)))
    except NotRecorded:
        raise Absent(f"{name} has not been run to its end: tether run {name}{flag}") from None
