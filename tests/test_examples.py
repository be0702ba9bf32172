"""The examples do what they say, with torch and tether alone, or with one client."""

import ast
import re
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
CLIENTS = {  # run by tests/clients
    "with_trainer.py": {"transformers"},
    "with_accelerate.py": {"accelerate"},
    "with_peft.py": {"peft", "transformers"},
    "with_lightning.py": {"lightning"},
    "with_torchrun.py": set(),
}
ALSO = CLIENTS | {"search.py": {"optuna"}}  # run by tests/test_search.py


def played(name, monkeypatch, capsys, *options):
    """The rows that an example prints under its header, as cells."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, options)])
    module = __import__(name)
    module.main()
    lines = [re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines()]
    return module, [cells for cells in lines if len(cells) > 3]


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.name)
def test_an_example_needs_torch_and_tether_and_one_client_at_most(file):
    nodes = list(ast.walk(ast.parse(file.read_text())))
    named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    packages = {name.partition(".")[0] for name in named} - set(sys.stdlib_module_names)
    assert packages <= {"torch", "tether", *ALSO.get(file.name, {"matplotlib", "picture"})}


@pytest.mark.parametrize("name", CLIENTS)
def test_an_example_of_a_client_is_short(name):
    assert len((EXAMPLES / name).read_text().splitlines()) <= 40


def test_the_page_on_clients_shows_lines_of_the_examples():
    page = (EXAMPLES.parent / "docs" / "clients.md").read_text(encoding="utf-8")
    there = {line.strip() for name in CLIENTS for line in (EXAMPLES / name).read_text().splitlines()}
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == len(CLIENTS)
    assert [line for block in blocks for line in block.splitlines() if line.strip() not in there] == []


def test_spiral_prints_a_row_per_method_and_draws_the_picture(tmp_path, monkeypatch, capsys):
    picture = tmp_path / "new" / "spiral.png"
    options = ("--runs", 2, "--steps", 40, "--out", picture)
    _, (header, *rows) = played("spiral", monkeypatch, capsys, *options)
    assert header == ["method", "test accuracy %", "worst", "best", "seconds", "thesis %"]
    thesis = {"SGD": "79.0", "SGLD": "78.0", "Adam": "83.7", "AdLaLa γ=10": "85.5", "AdLaLa γ=0.5": "93.4", "LOL": "–"}
    assert {row[0]: row[-1] for row in rows} == thesis
    for method, accuracy, worst, best, seconds, _ in rows:
        mean, error = map(float, accuracy.split(" ± "))
        assert 20 <= float(worst) <= mean <= float(best) <= 80, method  # nobody learns a spiral in 40 steps
        # of two runs the mean is halfway and the standard error half the distance, to the printed digit
        assert abs(mean - (float(worst) + float(best)) / 2) <= 0.11, method
        assert abs(error - (float(best) - float(worst)) / 2) <= 0.11, method
        assert float(seconds) >= 0, method
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_orthogonal_prints_a_row_per_method_and_draws_the_picture(tmp_path, monkeypatch, capsys):
    picture = tmp_path / "orthogonal.png"
    options = ("--layers", 2, "--runs", 2, "--steps", 10, "--out", picture)
    module, (header, *rows) = played("orthogonal", monkeypatch, capsys, *options)
    assert header == ["method", "test accuracy %", "worst", "violation", "seconds"]
    violations = {row[0]: float(row[3]) for row in rows}
    assert tuple(violations) == module.METHODS
    assert violations["o-CoLA-od"] < 1e-6
    assert 1e-6 < violations["SGD, orthogonal start"] < 0.1 < violations["SGD"]  # ten steps leave the surface
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_tempering_crosses_the_barrier_where_hmc_alone_does_not(monkeypatch, capsys):
    module, (header, *rows) = played("tempering", monkeypatch, capsys, "--chains", 32, "--steps", 80)
    assert header == ["method", "τ", "upper well %", "exact", "mean energy", "exact", "draws %"]
    hmc, *others = rows
    assert [row[1] for row in rows] == ["0.3", *2 * [f"{τ:g}" for τ in module.LADDER]]
    assert float(hmc[2].split(" ± ")[0]) > 90  # all began there
    for row in others:
        upper = float(row[2].split(" ± ")[0])
        assert abs(upper - float(row[3])) < 30, row  # 80 proposals have not quite forgotten the start
    assert all(float(row[-1]) == 100 for row in rows[:5])
    assert sum(float(row[-1]) for row in rows[5:]) == pytest.approx(100, abs=2)  # one chain, four temperatures


def test_without_matplotlib_the_table_comes_and_the_picture_is_explained(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.syspath_prepend(EXAMPLES)
    import picture

    picture.draw(tmp_path / "none.png", [], "")
    assert capsys.readouterr().out == "The picture needs matplotlib: pip install matplotlib\n"
    assert not (tmp_path / "none.png").exists()
