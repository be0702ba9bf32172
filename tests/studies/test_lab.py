"""Runs that can be killed at any time, and the command around them."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import tether_studies as studies
from tether.cli import main
from tether_studies.conclusion import concluded
from tether_studies.experiment import said
from tether_studies.judges import HELD, yes
from tether_studies.lab import Busy, Lab
from tether_studies.needs import MINUTES
from tether_studies.recorded import NotRecorded, Recorded
from tether_studies.report import html, results
from tether_studies.report.publish import recorded
from tether_studies.report.tables import methods_table, what_holds
from tether_studies.runner import Job, folder_of, run_all, run_one
from tether_studies.study import Claim, Study, Table, at
from tether_studies.workers import Processes

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@dataclass(frozen=True)
class Config:
    pieces: int = 3
    size: int = at(4, quick=1)


def dice(config, lab):
    def throw():
        return {"numbers": torch.randn(config.size), "other": np.random.rand(), "text": "six"}

    return lab.pieces({f"throw {i}": throw for i in range(config.pieces)})


def judged(results, config):
    return [Claim("dice fall", "always", f"{len(results)} times", *yes(True, "seen")[:2])]


DICE = Study(
    "dice",
    "dice fall",
    "nobody",
    Config,
    dice,
    judged,
    tables=lambda results, config: [Table(["throw", "number"], [[1, 0.5]])],
)


@pytest.fixture
def listed(monkeypatch):
    def use(*found):
        known = {study.name: study for study in found}
        for module in ("tether_studies", "tether_studies.report.results", "tether_studies.report.publish"):
            monkeypatch.setattr(import_module(module), "studies", lambda: known)

    return use


def pieces(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "pieces").glob("*.npz"))}


def test_pieces_at_once_are_the_same_bits(tmp_path):
    for name, workers in (("one", 1), ("three", 3)):
        lab = Lab(DICE, Config(pieces=7), tmp_path / name, seed=0)
        lab.where, seen = Processes(workers), []
        lab.watch = lambda done, total, piece, seen=seen: seen.append(piece)
        lab.open()
        dice(lab.config, lab)
        lab.close()
        assert set(seen) == {*(f"throw {i}" for i in range(7)), ""}
    assert pieces(tmp_path / "one") == pieces(tmp_path / "three")
    assert len((tmp_path / "three" / "metrics.jsonl").read_text().splitlines()) == 7


def test_a_piece_that_fails_in_a_worker_says_why_and_the_others_are_kept(tmp_path, capfd):
    lab = Lab(DICE, Config(), tmp_path, seed=0)
    lab.where = Processes(2)
    lab.open()
    work = {"good": lambda: {"x": 1.0}, "bad": lambda: {"x": 1 / 0}, "better": lambda: {"x": 2.0}}
    with pytest.raises(ZeroDivisionError):
        lab.pieces(work)
    lab.close()
    assert set(pieces(tmp_path)) == {"good.npz", "better.npz"}


def test_a_piece_is_done_once_and_comes_back_as_it_was_written(tmp_path):
    lab = Lab(DICE, Config(), tmp_path, seed=0)
    lab.open()
    first = dice(lab.config, lab)
    torch.manual_seed(99)
    again = dice(lab.config, lab)
    lab.close()
    assert all(np.array_equal(first[p][key], again[p][key]) for p in first for key in first[p])
    assert first["throw 0"]["text"].item() == "six"
    assert not np.array_equal(first["throw 0"]["numbers"], first["throw 1"]["numbers"])  # each has its own seed
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["piece"] for line in lines] == ["throw 0", "throw 1", "throw 2"]
    assert lines[0]["other"] == first["throw 0"]["other"].item()


def test_pieces_depend_on_their_name_and_the_seed_alone(tmp_path):
    found = {}
    for name, seed, config in (("a", 0, Config()), ("b", 0, Config(pieces=2)), ("c", 1, Config())):
        lab = Lab(DICE, config, tmp_path / name, seed)
        lab.open()
        found[name] = dice(config, lab)
        lab.close()
    assert np.array_equal(found["a"]["throw 1"]["numbers"], found["b"]["throw 1"]["numbers"])
    assert not np.array_equal(found["a"]["throw 1"]["numbers"], found["c"]["throw 1"]["numbers"])


def test_another_config_has_another_folder_and_two_processes_do_not_share_one(tmp_path):
    lab = Lab(DICE, Config(), tmp_path / "run", 0)
    lab.open()
    dice(lab.config, lab)
    with pytest.raises(Busy, match="dice is being run by another process"):
        Lab(DICE, Config(), tmp_path / "run", 0).open()
    lab.close()
    other = Lab(DICE, Config(size=2), tmp_path / "run", 0)
    other.open()
    assert other.folder.parent == tmp_path
    assert len(pieces(tmp_path / "run")) == 3
    assert not pieces(other.folder)
    assert dice(other.config, other)["throw 0"]["numbers"].shape == (2,)
    other.close()


def test_results_that_cannot_be_written_are_named(tmp_path):
    lab = Lab(DICE, Config(), tmp_path, 0)
    lab.open()
    with pytest.raises(TypeError, match="piece 'odd': 'thing' is no number"):
        lab.pieces({"odd": lambda: {"thing": object()}})
    lab.close()


def test_killed_and_resumed_equals_uninterrupted_bit_for_bit(tmp_path):
    command = [sys.executable, "-m", "tether", "run", "fig-1.9", "--quick", "--set", "points=40", "steps=60"]

    command += ["--out", str(tmp_path / "killed")]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    job = Job("fig-1.9", "quick", tmp_path / "killed", changes={"points": 40, "steps": 60})
    folder = folder_of(job)
    deadline = time.time() + 120
    while not list(folder.glob("pieces/*.npz")) and killed.poll() is None and time.time() < deadline:
        time.sleep(0.005)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not (folder / "result.json").exists()
    assert 1 <= len(pieces(folder)) < 4
    complete = replace(job, out=tmp_path / "whole")
    for one in (job, complete):
        run_one(one)
    whole = folder_of(complete)
    assert pieces(folder) == pieces(whole)
    a, b = (json.loads((path / "result.json").read_text()) for path in (folder, whole))
    assert a["claims"] == b["claims"]


# the command


def test_a_study_that_fails_or_lacks_data_does_not_stop_the_others(tmp_path, listed, monkeypatch, capsys):
    def fall(config, lab):
        raise RuntimeError("the table broke")

    monkeypatch.setenv("TETHER_DATA", str(tmp_path))
    broken = Study("broken", "", "", Config, fall, judged)
    hungry = Study("hungry", "", "", Config, dice, judged, data=("mnist", "pip:no-such-package", "weights:none-such"))
    listed(broken, hungry, DICE)
    assert main(["run", "all", "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr()
    assert "RuntimeError: the table broke" in said.err
    assert "put there the four files of MNIST" in said.err
    assert "pip install no-such-package" in said.err
    assert "pip install --no-deps none-such" in said.err
    assert json.loads((tmp_path / "out/dice/default/result.json").read_text())["claims"][0]["verdict"] == HELD


def test_several_at_once_give_the_same_numbers(tmp_path):
    jobs = [Job("fig-1.9", "quick", tmp_path / "two", seed, {"points": 20, "steps": 20}) for seed in (0,)]
    assert run_all(jobs, at_once=2)["fig-1.9"] == "done: a quick run decides nothing"
    one = Job("fig-1.9", "quick", tmp_path / "one", 0, {"points": 20, "steps": 20})
    run_one(one)
    assert pieces(folder_of(one)) == pieces(folder_of(jobs[0]))


def test_list_run_and_report(tmp_path, listed, capsys):
    listed(DICE)
    out = ["--out", str(tmp_path)]
    assert main(["report", *out]) == 2
    assert "nothing has been run" in capsys.readouterr().err
    assert main(["run", "dice", "--quick", "--set", "size=2", *out]) == 0
    assert main(["run", "dice", *out, "--seed", "3"]) == 0
    assert main(["list", *out]) == 0
    assert "dice   ? min  dice fall (nobody)  [default: held]" in capsys.readouterr().out
    readme = tmp_path / "README.md"
    readme.write_text(
        "before\n<!-- what holds -->\nstale\n<!-- end -->\nbetween\n<!-- methods -->\nstale\n<!-- end -->\n"
    )
    assert main(["report", *out, "--publish", str(tmp_path / "docs"), "--readme", str(readme)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "dice fall" in page
    assert "tether run dice --seed 3" in page
    assert "http" not in page  # nothing from elsewhere
    text = readme.read_text()
    assert "Of 1 claims 1 hold, 0 do not" in text
    assert "| `dice` | dice fall (nobody) | 1 **held** |" in (tmp_path / "docs/README.md").read_text()
    assert "| dice | dice fall | always | 3 times | **held** |" in (tmp_path / "docs/README.md").read_text()
    assert "| `sgd` |" in text
    assert "stale" not in text
    assert json.loads((tmp_path / "docs/dice.json").read_text())["seed"] == 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "dic"], "did you mean 'dice'"),
        (["run", "dice", "--set", "sice=3"], "did you mean 'size'"),
        (["run", "dice", "--jobs", "0"], "--jobs 0"),
    ],
)
def test_mistakes_are_answered_with_the_fix(arguments, says, listed, capsys, tmp_path):
    listed(DICE)
    assert main([*arguments, "--out", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err


def test_configs_hold_plain_values():
    @dataclass(frozen=True)
    class Odd:
        thing: object = field(default_factory=object)

    with pytest.raises(TypeError, match="is no plain value"):
        Study("odd", "", "", Odd, dice, judged).at("default")


# the list


def test_every_study_on_the_list_is_whole():
    for name, study in studies.studies().items():
        assert study.title, name
        assert study.source, name
        for scale in ("default", "quick", "long", "full"):
            study.at(scale)


def test_the_pages_are_up_to_date():
    root = Path(__file__).parents[2]
    assert methods_table() in (root / "docs" / "methods.md").read_text()
    assert what_holds(results(RESULTS)) in (root / "README.md").read_text()


def test_every_verdict_that_is_not_held_is_explained():
    """docs/studies.md has a paragraph for each study with a claim that does not hold, and a row for each open one."""
    page = (RESULTS.parent / "studies.md").read_text()
    _, _, failing = page.partition("\n## Where a claim does not hold\n")
    failing, _, undecided = failing.partition("\n## What is not decided\n")
    for one in results(RESULTS):
        verdicts = {claim["verdict"] for claim in one["claims"]}
        if "not held" in verdicts:
            assert f"\n- **{one['name']}**" in failing, f"{one['name']}: what was varied, what would make it hold?"
        if "not decided" in verdicts:
            assert f"\n| {one['name']} |" in undecided, f"{one['name']}: with which command, in how many hours?"


# Studies that have another config than their committed results, or none yet: they wait for the next long run.
WAITING: set[str] = set()


def test_the_committed_results_are_those_of_the_studies():
    """Nothing was lost, and no text lags behind the source: `tether report --publish docs/results` if one does."""
    found = {one["name"]: one for one in results(RESULTS)}
    assert found.keys() <= studies.studies().keys()  # a new study may not have been run yet
    assert sum(len(one["claims"]) for one in found.values()) >= 234
    for name, one in found.items():
        if name in WAITING:
            continue
        study = studies.studies()[name]
        config = study.at(one["scale"], **one["config"])
        assert not study.changed(one["scale"], config), name
        assert (one["title"], one["source"], one["notes"]) == (study.title, study.source, study.notes)
        told = iter(said(config))
        assert all((claim["text"], claim["published"]) in told for claim in one["claims"]), name  # in this order
        assert MINUTES.get(name, 0) <= 30, f"{name}: 15 minutes of two cores"
        try:
            again = study.run(config, Recorded(study, config, one["seed"], recorded(one), RESULTS))
        except NotRecorded:  # its pieces are gone
            continue
        assert one["claims"] == concluded(study, config, one["scale"], again)["claims"], name  # by the judges of now
    assert html(list(found.values())).count("<section class=page") == len(found)
