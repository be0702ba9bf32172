"""What a study is declared with: scales, recipes, quantities, runs side by side."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import tether
from tether_studies import experiment
from tether_studies.experiment import recipe
from tether_studies.judges import more, yes
from tether_studies.lab import Lab
from tether_studies.quantities import Quantity, against, at_end, of_key, tabulated, within
from tether_studies.study import Study, at, no_figures


@dataclass(frozen=True)
class Config:
    runs: int = at(4, quick=2, full=20)
    words: int | None = at(1000, full=None)
    rate: float = 0.5


STUDY = Study("small", "a title", "nobody", Config, lambda config, lab: {})


def test_a_field_has_a_value_at_every_scale():
    study = STUDY
    assert [study.at(scale).runs for scale in ("quick", "default", "full")] == [2, 4, 20]
    assert [study.at(scale).words for scale in ("quick", "default", "full")] == [1000, 1000, None]
    assert study.at("quick", runs=7).runs == 7
    assert study.changed("quick", study.at("quick", runs=7)) == {"runs": 7}


@pytest.fixture
def declared(monkeypatch):
    """A small experiment, on a list of its own."""
    monkeypatch.setattr(experiment, "KNOWN", {})
    accuracy = of_key("accuracy", "test accuracy %", unit=" %")

    @experiment.study("small", "nobody, Figure 1", ("mnist",))
    class Small(experiment.Experiment):
        """dice fall

        Two throws of {two} dice.

        The paper
        has three.
        """

        says = """
            dice fall | Figure 1: always, {runs} runs
            a claim that is too long for a line is
                continued | and so is
                what is published
            nobody knows | nothing
        """
        columns = (accuracy,)
        caption = "{runs} runs, {words} words"
        runs: int = at(4, quick=2)
        words: int | None = at(1000, full=None)

        def run(self, lab):
            return {}

        def claims(self, results):
            yield accuracy.more(results, "SGD", "Adam")
            yield accuracy.less(results, ("SGD", "Adam"), "LOL", told="in the end: ", names=("LOL",))
            yield None

    return experiment.KNOWN["small"]


# standard errors: √(2 · 0.25² / 3) / 2 = 0.10, of a difference √2 times that
RUNS = {name: mean + np.array([0.0, 0.25, -0.25, 0.0]) for name, mean in (("SGD", 3), ("Adam", 1), ("LOL", 5))}
RESULTS = {name: {"accuracy": x} for name, x in RUNS.items()}


def test_an_experiment_is_a_study_with_its_docstring_as_title_and_notes(declared):
    assert (declared.name, declared.source, declared.data) == ("small", "nobody, Figure 1", ("mnist",))
    assert (declared.title, declared.notes) == ("dice fall", "The paper has three.")
    assert declared.draw is no_figures
    assert declared.at("quick").runs == 2


def test_claims_are_what_the_paper_says_beside_what_was_found(declared):
    first, second, third = declared.claims(RESULTS, declared.at("quick"))
    assert (first.text, first.published) == ("dice fall", "Figure 1: always, 2 runs")
    assert (first.measured, first.verdict) == ("SGD 3.0 ± 0.1 %, Adam 1.0 ± 0.1 %", "held")
    assert first.evidence == "difference 2 ± 0 over 4 pairs of runs, t = inf (3.18 needed)"
    assert second.text == "a claim that is too long for a line is continued"
    assert (second.published, second.measured) == ("and so is what is published", "in the end: LOL 5.0 ± 0.1 %")
    assert second.evidence.startswith(
        "SGD < LOL: difference 2 ± 0 over 4 pairs of runs, t = inf (3.18 needed) (held); Adam < LOL: "
    )
    assert (third.text, third.measured, third.verdict) == ("nobody knows", "not run", "not decided")
    assert third.evidence == "this config does not test it"


def test_a_claim_that_is_forgotten_is_an_error(declared, monkeypatch):
    monkeypatch.setattr(declared.config, "claims", lambda self, results: iter([("seen", yes(True, ""))]))
    with pytest.raises(ValueError, match="Small says 3 claims and judges 1: `claims` must yield"):
        list(declared.claims(RESULTS, declared.at("quick")))


def test_a_docstring_that_lacks_a_paragraph_is_an_error():
    class Bare(experiment.Experiment):
        """only a title"""

    with pytest.raises(ValueError, match="bare: the docstring of Bare has 1 of three paragraphs: title, setting"):
        experiment.study("bare", "nobody")(Bare)


def test_the_table_follows_from_the_columns_and_none_is_all(declared):
    (table,) = declared.tables(RESULTS, declared.at("full"))
    assert (table.head, table.caption) == (["method", "test accuracy %"], "4 runs, all words")
    assert table.rows == [["SGD", "3.0 ± 0.1"], ["Adam", "1.0 ± 0.1"], ["LOL", "5.0 ± 0.1"]]


def test_two_runs_are_set_against_each_other():
    pairs = dict.fromkeys(("here", "there"), (RUNS["SGD"], RUNS["Adam"]))
    measured, (verdict, evidence, runs, _) = against(more, pairs, unit=" %")
    assert measured == "here 3.0 ± 0.1 against 1.0 ± 0.1; there 3.0 ± 0.1 against 1.0 ± 0.1 %"
    assert (verdict, evidence.count("(held)"), runs) == ("held", 2, 4)
    assert against(more, {"": pairs["here"]}) == ("3.0 ± 0.1 against 1.0 ± 0.1", more(*pairs["here"]))


def test_pieces_may_be_named_by_tuples(tmp_path):
    lab = Lab(STUDY, Config(), tmp_path, seed=0)
    lab.open()
    names = [("chess", "Adam"), ("poker", "Adam"), ("poker", "SGD, momentum")]
    found = lab.each(names, lambda name: {"x": len(name[1])})
    lab.close()
    assert list(found) == names
    assert sorted(path.stem for path in tmp_path.glob("pieces/*.npz")) == sorted(map(", ".join, names))
    assert {name: int(one["x"]) for name, one in within(found, "poker").items()} == {"Adam": 4, "SGD, momentum": 13}


def test_a_recipe_is_of_tether_or_of_torch():
    net = torch.nn.Linear(2, 1)
    ours, theirs = recipe("sgld", lr=0.1, noise=0.1)(net, 7), recipe("Adam", lr=0.2)(net, 7)
    assert isinstance(ours, tether.Optimizer)
    assert ours.param_groups[0]["seed"] == 7
    assert isinstance(theirs, torch.optim.Adam)
    assert theirs.param_groups[0]["lr"] == 0.2


def test_run_i_of_all_names_has_one_seed_and_runs_are_the_last_axis(tmp_path):
    lab = Lab(STUDY, Config(), tmp_path, seed=3)
    lab.open()
    found = lab.runs(["a", "b"], 2, lambda name, seed: {"seed": seed, "curve": [len(name), 5.0, 6.0]})
    lab.close()
    seeds = [lab.named_seed(f"run {i}") for i in range(2)]
    assert found["a"]["seed"].tolist() == found["b"]["seed"].tolist() == seeds
    assert seeds[0] != seeds[1]
    assert found["b"]["curve"].tolist() == [[1.0, 1.0], [5.0, 5.0], [6.0, 6.0]]
    assert sorted(path.stem for path in tmp_path.glob("pieces/*.npz")) == [
        f"{x}, run {i}" for x in "ab" for i in (0, 1)
    ]


def test_texts_and_tables_follow_from_the_quantities():
    accuracy = at_end("accuracy", "test accuracy %", unit=" %")
    best = Quantity("best", accuracy.take, show=max)
    results = {name: {"accuracy": np.array([[0.0] * 3, x])} for name, x in (("SGD", [1, 2, 3]), ("Adam", [4, 4, 4]))}
    assert accuracy.listed(results) == "SGD 2.0 ± 0.6 %, Adam 4.0 ± 0.0 %"
    assert accuracy.listed(results, "Adam") == "Adam 4.0 ± 0.0 %"
    table = tabulated("method", results, [accuracy, best], "three runs")
    assert (table.head, table.caption) == (["method", "test accuracy %", "best"], "three runs")
    assert table.rows == [["SGD", "2.0 ± 0.6", 3], ["Adam", "4.0 ± 0.0", 4]]
    rows = {("two turns", name): found for name, found in results.items()}
    assert tabulated(["data", "method"], rows, [best]).rows == [["two turns", "SGD", 3], ["two turns", "Adam", 4]]
