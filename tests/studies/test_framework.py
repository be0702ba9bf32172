"""What a study is declared with: scales, recipes, quantities, runs side by side."""

from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pytest
import torch

import tether
from tether_studies.lab import Lab
from tether_studies.quantities import Quantity, at_end, tabulated
from tether_studies.recipes import recipe
from tether_studies.study import Study, at


@dataclass(frozen=True)
class Config:
    runs: int = at(4, quick=2, full=20)
    words: int | None = at(1000, full=None)
    rate: float = 0.5


STUDY = Study("small", "a title", "nobody")


def test_a_field_has_a_value_at_every_scale():
    study = Study("small", "", "", Config)
    assert [study.at(scale).runs for scale in ("quick", "default", "full")] == [2, 4, 20]
    assert [study.at(scale).words for scale in ("quick", "default", "full")] == [1000, 1000, None]
    assert study.at("quick", runs=7).runs == 7
    assert study.changed("quick", study.at("quick", runs=7)) == {"runs": 7}


def test_a_study_is_the_rest_of_its_module():
    module = ModuleType("small")
    module.Config, module.run = Config, lambda config, lab: {"x": config.runs}
    bound = STUDY.of(module)
    assert bound.run(bound.at("quick"), None) == {"x": 2}
    assert list(bound.claims({}, None)) == []
    with pytest.raises(NotImplementedError, match=r"tether_studies\.find\(NAME\)"):
        STUDY.run(None, None)


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
