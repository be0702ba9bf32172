"""Results to commit: small files, concluded anew from their pieces, so that they never lag behind the source."""

import json
from pathlib import Path
from typing import Any

from tether_studies import studies
from tether_studies.conclusion import concluded, drawn
from tether_studies.experiment import Experiment, said
from tether_studies.files import note, whole, write_text
from tether_studies.recorded import NotRecorded, Recorded, pieces_of_run, read_pieces, write_pieces
from tether_studies.report.tables import by_study, decisive, every_claim
from tether_studies.study import Results, Study

__all__ = ["anew", "publish", "recorded"]

Result = dict[str, Any]
HEAD = """# What the studies found

Made by `tether report --publish docs/results`. Each study has its file here, with its config, and in `pieces/` the
numbers of all its runs, from which the same command judges it again. `tether run NAME` runs it again, with `--long` or
`--full` where the scale is named. Verdicts are by Student's t at 5 %; those from fewer than four runs are provisional.

"""


def publish(found: list[Result], folder: Path) -> None:
    """Write results, pictures and pieces to a folder that is committed, and a README of them.

    Every result is concluded from its pieces first, by the judges and texts of now; so
    ``tether report --publish FOLDER`` brings a folder up to date. Quick runs are left out, and so are runs
    of a changed config: they are not the study's result.
    """
    readme = folder / "README.md"
    if readme.exists() and not readme.read_bytes().startswith(HEAD.partition("\n")[0].encode()):
        raise ValueError(f"{readme} is not made by `tether report`: choose another folder, --publish docs/results")
    folder.mkdir(parents=True, exist_ok=True)
    for result in found:
        if result["changes"]:
            note(f"did not publish {result['name']}: its config was changed ({', '.join(result['changes'])})")
    written = []
    for result in decisive(found):
        name, pieces = result["name"], recorded(result)
        record, pictures = anew(result, pieces, folder)
        names = {x if x.startswith(f"{name}-") else f"{name}-{x}": content for x, content in pictures.items()}
        for picture, content in names.items():
            with whole(folder / picture) as file:
                file.write(content)
        if pieces:
            (folder / "pieces").mkdir(exist_ok=True)
            write_pieces(folder / "pieces" / f"{name}.npz", pieces)
        record = {key: x for key, x in record.items() if key != "folder"} | {"figures": sorted(names)}
        write_text(folder / f"{name}.json", json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        written.append(record)
    write_text(readme, f"{HEAD}{by_study(written)}\n\n## Every claim\n\n{every_claim(written)}\n")


def recorded(result: Result) -> dict[str, Results]:
    """The pieces of a result, from the folder of its run or from beside its published file; empty if they are gone."""
    beside: Path = result["folder"] / "pieces" / f"{result['name']}.npz"
    if (result["folder"] / "result.json").exists():
        return pieces_of_run(result["folder"])
    return read_pieces(beside) if beside.exists() else {}


def anew(result: Result, pieces: dict[str, Results], shelf: Path) -> tuple[Result, dict[str, bytes]]:
    """A result as the study concludes it now, and its pictures; without pieces only its texts are those of now.

    `shelf` has the results of others, for a study that is made of them.
    """
    study = studies().get(result["name"])
    kept = {name: (result["folder"] / name).read_bytes() for name in result["figures"]}
    if study is None:
        return result, kept
    try:
        config = study.at(result["scale"], **result["config"])
        results = study.run(config, Recorded(study, config, result["seed"], pieces, shelf))
    except (NotRecorded, TypeError) as error:
        if not pieces and isinstance(error, NotRecorded):
            return result | retold(study, config, result), kept
        note(f"{result['name']} stays as it was judged: {error}")
        return result, kept
    return result | concluded(study, config, result["scale"], results), drawn(study, config, results)


def retold(study: Study, config: Any, result: Result) -> Result:
    """The texts of a result as they stand in the study."""
    published = dict(said(config)) if isinstance(config, Experiment) else {}
    claims = [one | {"published": published.get(one["text"], one["published"])} for one in result["claims"]]
    return {"title": study.title, "source": study.source, "notes": study.notes, "claims": claims}
