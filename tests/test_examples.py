"""The examples do what they say."""

import re
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_spiral_prints_a_row_per_method_and_draws_the_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(EXAMPLES)
    import spiral

    picture = tmp_path / "new" / "spiral.png"
    monkeypatch.setattr(
        sys, "argv", ["spiral.py", "--runs", "2", "--steps", "40", "--threads", "1", "--out", str(picture)]
    )
    spiral.main()
    header, *rows = [re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines()[:7]]
    assert header == ["method", "test accuracy %", "worst", "best", "s", "thesis %"]
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
    monkeypatch.syspath_prepend(EXAMPLES)
    import orthogonal

    picture = tmp_path / "orthogonal.png"
    options = ["--layers", "2", "--runs", "2", "--steps", "10", "--soft", "--threads", "1", "--out", str(picture)]
    monkeypatch.setattr(sys, "argv", ["orthogonal.py", *options])
    orthogonal.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("2 ")]
    assert [row[15:39].strip() for row in rows] == list(orthogonal.METHODS)
    violations = {row[15:39].strip(): float(row.split()[-2]) for row in rows}
    assert violations["o-CoLA-od"] < 1e-6
    assert violations["SGD"] > 0.1
    assert picture.read_bytes().startswith(b"\x89PNG")
