"""The overview of chapter 6: rows by hand, and from what another study has written."""

import numpy as np
import pytest

from tether_studies import find, overview
from tether_studies.lab import Lab
from tether_studies.lines import graded
from tether_studies.replay import Absent, replayed
from tether_studies.report import results
from tether_studies.runner import Job, folder_of, run_one

FALLS, BUMP = np.linspace(2, 0, 6), np.array([1.0, 3.0, 3.0, 2.0, 1.0, 0.0])


def runs(line, accuracy, **heights):
    found = graded({"losses": np.stack([line] * 4), "accuracy": np.array(accuracy)})
    return found | {f"{block}: barriers": np.array(height) for block, height in heights.items()}


def row(shape, accuracy, heights=None):
    return overview.Row("data", "less", shape, accuracy, "fig-6.6", ("case",), "base", heights)


def test_a_row_is_judged_by_shape_and_accuracy():
    base, case = runs(FALLS, [50.0, 51, 52, 53]), runs(BUMP, [40.0, 41.5, 42, 43])
    found = overview.effect(row("B", "Worse"), {"base": base, "case": case})
    assert dict(found.shapes) == {"B": 4}
    assert (found.shape.verdict, found.accuracy.verdict) == ("held", "held")
    assert found.gains.tolist() == [[-10, -9.5, -10, -10]]
    assert overview.effect(row("NB/P", "Better"), {"base": base, "case": case}).shape.verdict == "not held"
    assert overview.effect(row("NB/P", "Better"), {"base": base, "case": case}).accuracy.verdict == "not held"


def test_lower_barriers_of_blocks_are_enough():
    blocks = ("B1", "B2", "B3", "B4")
    base = runs(FALLS, [50.0] * 4, **{block: [2.0, 2.1, 1.9, 2.0] for block in blocks})
    case = runs(BUMP, [40.0] * 4, **{block: [1.0, 1.1, 0.9, 1.0] for block in blocks})
    table = {"base": base, "case": case}
    assert overview.effect(row("NB/L-LB", "Worse", overview.of_blocks), table).shape.verdict == "held"
    assert overview.effect(row("H-LB", "Worse", overview.of_blocks), table).shape.verdict == "not held"


def test_runs_without_counterparts_are_not_compared():
    base, case = runs(FALLS, [50.0] * 4), runs(FALLS, [50.0] * 4)
    case["accuracy"] = case["accuracy"][:2]
    with pytest.raises(Absent, match="not every run of 'base'"):
        overview.effect(row("NB", "Better"), {"base": base, "case": case})


@pytest.fixture
def fig_6_5(tmp_path):
    """A study that was run: accuracy 50 from scratch, 40 and a barrier with a block from random labels."""
    study = find("fig-6.5")
    lab = Lab(study, study.at("quick"), folder_of(Job("fig-6.5", "quick", tmp_path)), 0)
    lab.open()

    def piece(i):
        found = {"random labels known": 100.0}
        for decay in lab.config.decays:
            for block in ("scratch", "B1", "B2", "B3", "B4"):
                name, line = f"{decay:g}, {block}: ", FALLS if block == "scratch" else BUMP
                accuracy = (50.0 if block == "scratch" else 40.0) + i
                found |= {f"{name}losses": line[None], f"{name}accuracy": accuracy, f"{name}distance": 1.0}
        return found

    lab.pieces({f"run {i}": lambda i=i: piece(i) for i in range(lab.config.runs)})
    lab.close()
    return tmp_path


def test_the_table_is_made_from_what_other_studies_wrote(fig_6_5):
    run_one(Job("overview", "quick", fig_6_5))
    (found,) = results(fig_6_5)
    rows = {one[1]: one[2:4] for one in found["tables"][0]["rows"]}
    assert len(rows) == len(overview.ROWS) == 15
    assert rows["partial random label pre-training"] == ["8 B", ", ".join(["-10.0 ± 0.0"] * 4)]
    assert rows["depth"] == ["–", "fig-6.6 has not been run here: tether run fig-6.6 --quick"]


def test_a_study_that_is_not_done_is_absent(fig_6_5):
    lab = Lab(find("overview"), find("overview").at("quick"), fig_6_5 / "overview" / "quick", 0)
    config, found = replayed(lab, "fig-6.5")
    assert config == find("fig-6.5").at("quick")
    assert sorted(found) == ["run 0", "run 1"]
    next((fig_6_5 / "fig-6.5" / "quick" / "pieces").glob("run 1*")).unlink()
    with pytest.raises(Absent, match=r"fig-6\.5 has not been run to its end"):
        replayed(lab, "fig-6.5")
