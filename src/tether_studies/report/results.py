"""The results that lie in a folder of runs, checked before anything is made of them."""

import json
from pathlib import Path
from typing import Any

from tether_studies import studies
from tether_studies.files import note, whole, write_text
from tether_studies.report.tables import decisive, every_claim

__all__ = ["publish", "results", "scale_of"]

Result = dict[str, Any]
SCALES = ("quick", "default", "full")
HEAD = "# What the studies found\n\nMade by `tether report --publish`; each study has its file here.\n\n"

TEXT, NUMBER = str, (int, float)
RESULT = {
    **dict.fromkeys(("name", "title", "source", "notes", "scale", "date"), TEXT),
    **dict.fromkeys(("config", "environment"), dict),
    **dict.fromkeys(("claims", "tables", "figures"), list),
    "seed": int,
    "seconds": NUMBER,
}
CLAIM = dict.fromkeys(("text", "published", "measured", "verdict", "evidence"), TEXT)
TABLE = {"head": list, "rows": list, "caption": TEXT}


def results(out: Path) -> list[Result]:
    """One result for each study, the largest scale there is, in the order of the papers; `folder` is where it lies.

    A result whose config was changed stands for its study only if there is no other. Files that hold no result are
    left out, with a word on stderr.
    """
    best: dict[str, Result] = {}
    for path in sorted(out.glob("*/*/result.json")) + sorted(out.glob("*.json")):
        try:
            found = _read(path)
        except (OSError, ValueError, OverflowError, RecursionError) as error:
            note(f"left out {path}: {error}")
            continue
        held = best.get(found["name"])
        if held is None or _rank(found) > _rank(held):
            best[found["name"]] = found
    order = {name: i for i, name in enumerate(studies())}
    return sorted(best.values(), key=lambda found: order.get(found["name"], len(order)))


def scale_of(found: Result) -> str:
    """The scale of a result, and whether its config was changed."""
    return f"{found['scale']}, changed" if found["changes"] else str(found["scale"])


def _rank(found: Result) -> tuple[Any, ...]:
    return not found["changes"], SCALES.index(found["scale"]), -found["seed"], found["date"]


def _read(path: Path) -> Result:
    """A result as the runner wrote it; ValueError names what is not as it should be."""
    found = json.loads(path.read_text(encoding="utf-8"))
    json.dumps(found, ensure_ascii=False).encode()  # half of a character can be read, but not written
    _check("the result", found, RESULT)
    found["seconds"] = float(found["seconds"])
    for claim in found["claims"]:
        _check("a claim", claim, CLAIM)
        claim["provisional"] = bool(claim.get("provisional"))
    for table in found["tables"]:
        _check("a table", table, TABLE)
        if not all(isinstance(row, list) for row in table["rows"]):
            raise ValueError("a row of a table is no list")
    if found["scale"] not in SCALES:
        raise ValueError(f"its scale {found['scale']!r} is none of {', '.join(SCALES)}")
    if not _plain(found["name"]):
        raise ValueError(f"its name {found['name']!r} is no name of a file")
    changes = found.setdefault("changes", {})  # results of older versions had the scale's own config
    if not isinstance(changes, dict) or not isinstance(found["environment"].setdefault("versions", {}), dict):
        raise ValueError("its changes or versions are no dictionary")
    found["folder"] = path.parent
    found["figures"] = [name for name in found["figures"] if _is_picture(path, name)]
    return found


def _check(what: str, value: Any, kinds: dict[str, Any]) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no dictionary")
    for key, kind in kinds.items():
        if not isinstance(value.get(key), kind):
            raise ValueError(f"{what} has {key!r}: {str(value.get(key))[:40]!r}, which is no {_word(kind)}")


def _word(kind: Any) -> str:
    return "number" if kind is NUMBER else kind.__name__


def _plain(name: Any) -> bool:
    """Is this the name of a file, and no path that leads elsewhere?"""
    if not isinstance(name, str) or not name or name.startswith("."):
        return False
    return name.isprintable() and not set(name) & set("/\\:")


def _is_picture(path: Path, name: Any) -> bool:
    """Is it a picture in the folder of its result? A link that leads out of there is not."""
    inside = _plain(name) and name.endswith(".png")
    if inside and (path.parent / name).resolve().parent == path.parent.resolve() and (path.parent / name).is_file():
        return True
    note(f"left out the figure {name!r} of {path}: it must be the name of a .png file in the same folder")
    return False


def publish(found: list[Result], folder: Path) -> None:
    """Copy results and pictures to a folder that is committed: ``NAME.json``, ``NAME-FIGURE.png`` and a README.

    Quick runs are left out, and so are runs of a changed config: they are not the study's result.
    """
    readme = folder / "README.md"
    if readme.exists() and not readme.read_bytes().startswith(HEAD.partition("\n")[0].encode()):
        raise ValueError(f"{readme} is not made by `tether report`: choose another folder, --publish docs/results")
    folder.mkdir(parents=True, exist_ok=True)
    for result in found:
        if result["changes"]:
            note(f"did not publish {result['name']}: its config was changed ({', '.join(result['changes'])})")
    for result in decisive(found):
        pictures = []
        for picture in result["figures"]:
            name = picture if picture.startswith(f"{result['name']}-") else f"{result['name']}-{picture}"
            content = (result["folder"] / picture).read_bytes()
            with whole(folder / name) as file:
                file.write(content)
            pictures.append(name)
        record = {key: value for key, value in result.items() if key != "folder"} | {"figures": pictures}
        write_text(folder / f"{result['name']}.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    write_text(readme, f"{HEAD}{every_claim(found)}\n")
