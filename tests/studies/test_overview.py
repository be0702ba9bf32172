"""The overview of chapter 6: rows by hand, and from what another study has written."""

import numpy as np
import pytest

from tether_studies import find, overview
from tether_studies.lab import Lab
from tether_studies.lines import graded
from tether_studies.recorded import Recorded
from tether_studies.replay import Absent, largest, replayed
from tether_studies.report import publish, results
from tether_studies.runner import Job, conclude, folder_of, run_one

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
    assert [case.gains.tolist() for case in found.cases] == [[-10, -9.5, -10, -10]]
    assert found.cases[0][:2] == ("less (case)", "B")
    assert overview.effect(row("NB/P", "Better"), {"base": base, "case": case}).shape.verdict == "not held"
    assert overview.effect(row("NB/P", "Better"), {"base": base, "case": case}).accuracy.verdict == "not held"


def test_the_shape_tells_nothing_where_accuracy_rises_and_falls_with_it():
    def case(shape, gain):
        return overview.Case(f"{gain:+g}", shape, gain + np.array([-0.1, 0.0, 0.1, 0.0]))

    both = overview.both_ways([case("NB", 5.0), case("NB", -6.0), case("B", 0.05)])
    assert (both.verdict, both.runs) == ("held", 4)
    assert both.evidence == "NB: +5.0 ± 0.0 by +5 and -6.0 ± 0.0 by -6"
    assert overview.both_ways([case("NB", 5.0), case("P", -6.0)]).verdict == "not decided"
    assert overview.both_ways([case("NB", 5.0), case("NB", -0.15)]).verdict == "not decided"  # t = 3.7
    assert overview.both_ways([]).verdict == "not decided"


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


def fig_6_5(out, scale, accuracy):
    """A study that was run: this accuracy from scratch, 10 less and a barrier with a block from random labels."""
    study, job = find("fig-6.5"), Job("fig-6.5", scale, out)
    lab = Lab(study, study.at(scale), folder_of(job), 0)
    lab.open()

    def piece(i):
        found = {"random labels known": 100.0}
        for decay in lab.config.decays:
            for block in ("scratch", "B1", "B2", "B3", "B4"):
                name, line = f"{decay:g}, {block}: ", FALLS if block == "scratch" else BUMP
                right = accuracy + i - (0.0 if block == "scratch" else 10.0 + i % 2)
                found |= {f"{name}losses": line[None], f"{name}accuracy": right, f"{name}distance": 1.0}
        return found

    found = lab.pieces({f"run {i}": lambda i=i: piece(i) for i in range(lab.config.runs)})
    conclude(study, lab, job, found)
    lab.close()


def rows_of(result):
    return {one[1]: one[2:4] for one in result["tables"][0]["rows"]}


def test_the_table_is_made_from_what_other_studies_wrote(tmp_path):
    fig_6_5(tmp_path, "quick", 50.0)
    run_one(Job("overview", "quick", tmp_path))
    rows = rows_of(results(tmp_path)[-1])
    assert len(rows) == len(overview.ROWS) == 15
    assert rows["partial random label pre-training"] == ["8 B", ", ".join(["-10.5 ± 0.5"] * 4)]
    assert rows["depth"] == ["–", "fig-6.6 has not been run to its end here: tether run fig-6.6"]


def test_what_is_published_is_made_from_what_is_published(tmp_path):
    """A longer run of another study changes the overview that stands beside it, without a run of the overview."""
    out, docs = tmp_path / "out", tmp_path / "docs"
    fig_6_5(out, "default", 50.0)
    run_one(Job("overview", "default", out))
    publish(results(out), docs)
    assert rows_of(results(docs)[-1])["partial random label pre-training"][0] == "16 B"
    fig_6_5(out, "long", 60.0)
    publish(results(out / "none", docs), docs)
    assert rows_of(results(docs)[-1])["partial random label pre-training"][0] == "16 B"
    publish(results(out, docs), docs)
    runs = find("fig-6.5").at("long").runs
    assert rows_of(results(docs)[-1])["partial random label pre-training"][0] == f"{4 * runs} B"
    config = find("overview").at("default")
    found = find("overview").run(config, Recorded(find("overview"), config, 0, {}, docs))
    assert found["fig-6.5"]["0", "scratch"]["accuracy"].tolist() == [60.0 + i for i in range(runs)]


def test_a_study_that_is_not_done_is_absent(tmp_path):
    fig_6_5(tmp_path, "quick", 50.0)
    lab = Lab(find("overview"), find("overview").at("quick"), tmp_path / "overview" / "quick", 0)
    for config, found in (replayed(lab, "fig-6.5"), largest(lab, ["fig-6.5"])["fig-6.5"]):
        assert config == find("fig-6.5").at("quick")
        assert sorted(found) == ["run 0", "run 1"]
    (second,) = (tmp_path / "fig-6.5" / "quick" / "pieces").glob("run 1*")
    second.write_bytes(second.read_bytes()[:100])
    for says in ("fig-6.5 has a damaged piece", "fig-6.5 has not been run to its end"):
        with pytest.raises(Absent, match=says):
            replayed(lab, "fig-6.5")
        assert str(largest(lab, ["fig-6.5"])["fig-6.5"]).startswith(says)
        second.unlink(missing_ok=True)
    with pytest.raises(Absent, match=r"fig-6\.6 has not been run here: tether run fig-6\.6 --quick"):
        replayed(lab, "fig-6.6")


def test_labels_of_people_belong_to_the_images_of_one_scale(tmp_path):
    fig_6_5(tmp_path, "quick", 50.0)
    fig_6_5(tmp_path, "default", 60.0)
    lab = Lab(find("table-6.7"), find("table-6.7").at("quick"), tmp_path / "table-6.7" / "quick", 0)
    assert replayed(lab, "fig-6.5")[0].runs == 2
    assert largest(lab, ["fig-6.5"])["fig-6.5"][0].runs == 4
