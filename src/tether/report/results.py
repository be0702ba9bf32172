"""The results that lie in a folder of runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tether.studies import studies

__all__ = ["publish", "results"]

Result = dict[str, Any]
SCALES = ("quick", "default", "full")


def results(out: Path) -> list[Result]:
    """One result for each study, the largest scale there is, in the order of the papers; `folder` is where it lies."""
    best: dict[str, Result] = {}
    for path in sorted(out.glob("*/*/result.json")) + sorted(out.glob("*.json")):
        try:
            found = json.loads(path.read_text())
            rank = (SCALES.index(found["scale"]), -found["seed"])
        except (ValueError, KeyError):
            continue  # not one of ours
        found["folder"] = path.parent
        held = best.get(found["name"])
        if held is None or rank > (SCALES.index(held["scale"]), -held["seed"]):
            best[found["name"]] = found
    order = {name: i for i, name in enumerate(studies())}
    return sorted(best.values(), key=lambda found: order.get(found["name"], len(order)))


def publish(found: list[Result], folder: Path) -> None:
    """Copy results and pictures to a folder that is committed: ``NAME.json`` and ``NAME-FIGURE.png``."""
    folder.mkdir(parents=True, exist_ok=True)
    for result in found:
        if result["scale"] == "quick":
            continue  # it shows that a program works, and nothing else
        pictures = []
        for picture in result["figures"]:
            source = result["folder"] / picture
            name = picture if picture.startswith(f"{result['name']}-") else f"{result['name']}-{picture}"
            if source.resolve() != (folder / name).resolve():
                shutil.copyfile(source, folder / name)
            pictures.append(name)
        record = {key: value for key, value in result.items() if key != "folder"} | {"figures": pictures}
        (folder / f"{result['name']}.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
