"""The benchmarks' files: what two runs say, and what the pages make of them."""

import importlib.util
import json
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def load(path, name):
    """A program of the clone, which is in no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


compare, quote, timing = (load(f"benchmarks/{name}.py", f"bench_{name}") for name in ("compare", "quote", "timing"))


@pytest.fixture
def written(tmp_path):
    """Writes a run of two candidates with the given quartiles of their ratios."""

    def write(name, **ratios):
        rows = [{"case": "W1", "of": of, "seconds": [1, 1, 1], "ratio": ratio} for of, ratio in ratios.items()]
        rows.append({"case": "W1", "of": "SGD", "seconds": [1, 1, 1], "ratio": [1, 1, 1]})
        table = {"title": "step", "threads": 1, "base": "SGD", "unit": "ms", "shows": "ratio", "axis": "", "rows": rows}
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"name": "step", "machine": "m", "versions": {}, "tables": [table]}))
        return str(path)

    return write


def test_slower_by_more_than_its_spread_is_said_and_is_the_exit_code(written, capsys):
    old = written("old", ud=[1.9, 2.0, 2.1], od=[1.4, 1.5, 1.6])
    assert compare.main([old, written("same", ud=[2.0, 2.15, 2.3], od=[1.4, 1.5, 1.6])]) == 0  # 7 %, but they overlap
    assert compare.main([old, written("near", ud=[1.9, 2.0, 2.1], od=[1.61, 1.62, 1.63])]) == 1
    capsys.readouterr()
    assert compare.main([old, written("new", ud=[2.4, 2.5, 2.6], od=[1.1, 1.2, 1.3])]) == 1
    said = capsys.readouterr().out
    assert "of 2 rows 1 slower, 1 faster" in said
    assert "slower: ud: 2 (1.9 to 2.1) → 2.5 (2.4 to 2.6), × 1.25" in said
    assert "faster: od: 1.5 (1.4 to 1.6) → 1.2" in said


def test_a_small_change_is_none_however_sharp(written):
    old = written("old", ud=[2.0, 2.0, 2.0])
    new = written("new", ud=[2.08, 2.08, 2.08])
    assert compare.main([old, new]) == 0
    assert compare.main([old, new, "--more", "0.03"]) == 1


def test_folders_are_compared_by_names(written, tmp_path):
    written("step", ud=[1, 1, 1])
    with pytest.raises(SystemExit, match="two files or two folders"):
        compare.main([str(tmp_path), str(tmp_path / "step.json")])
    assert compare.main([str(tmp_path), str(tmp_path)]) == 0


def test_a_run_is_written_with_medians_and_quartiles_of_the_rounds_ratios(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x", "--quick", "--out", str(tmp_path)])
    options = timing.arguments("doc", rounds=9, quick=3, threads=(1, 2))
    assert (options.rounds, options.threads, options.peers) == (3, [1], False)
    run = timing.Run("trial", "A trial", options)
    table = run.table("update", "SGD", "ms")
    table.add("W1", {"SGD": [1.0, 2.0, 4.0], "ours": [3.0, 4.0, 4.0]}, violation={"ours": 1e-7})
    run.write()
    text = (tmp_path / "trial.json").read_text(encoding="utf-8")
    found = json.loads(text)
    sgd, ours = found["tables"][0]["rows"]
    assert ours == {
        "case": "W1",
        "of": "ours",
        "rounds": 3,
        "seconds": [3.5, 4.0, 4.0],
        "ratio": [1.5, 2.0, 2.5],
        "violation": 1e-7,
    }
    assert sgd["ratio"] == [1.0, 1.0, 1.0]
    assert {"machine", "load", "versions", "date", "command"} <= set(found)
    assert sum('"of"' in line for line in text.splitlines()) == 2  # a row is a line


def test_every_quoted_number_is_that_of_the_results():
    for page in quote.PAGES:
        text = page.read_text(encoding="utf-8")
        assert quote.quoted(text) == text, f"{page.name}: python benchmarks/quote.py"
    assert len(quote.MARK.findall((ROOT / "README.md").read_text(encoding="utf-8"))) == 4
    with pytest.raises(LookupError, match="no such row"):
        quote.number("step · update alone · 2-500-1 · nobody")


def test_the_pages_show_every_row(monkeypatch):
    package = types.ModuleType("made")  # without its __init__, which imports Sphinx
    package.__path__ = [str(ROOT / "docs/made")]
    monkeypatch.setitem(sys.modules, "made", package)
    made = load("docs/made/benchmarks.py", "made_benchmarks")
    rows = [
        {"case": "W1", "of": "SGD", "seconds": [0.001, 0.002, 0.003], "ratio": [1, 1, 1]},
        {"case": "W1", "of": "ours", "seconds": [0.003] * 3, "ratio": [1.4, 1.5, 1.6], "violation": 1e-7},
        {"case": "W2", "of": "ours", "seconds": [0.003] * 3, "ratio": [5, 6, 7]},
    ]
    table = {"title": "step", "threads": 2, "base": "SGD", "unit": "ms", "shows": "ratio", "axis": "", "rows": rows}
    assert made.table(table).splitlines() == [
        "| step, 2 threads; × SGD | W1 | W1: violation | W2 |",
        "| --- | --- | --- | --- |",
        "| SGD | 2 ms (1 to 3) |  |  |",
        "| ours | **1.5** (1.4 to 1.6) | 1e-07 | **6** (5 to 7) |",
    ]
    assert "| ours | 3 ms (3 to 3) |" in made.table(table | {"shows": "time"})
    assert made.slope([(1, 5), (10, 1), (50, 25), (100, 100)]) == pytest.approx(2)
