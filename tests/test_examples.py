"""The examples do what they say."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch

import tether

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


@pytest.fixture
def mnist(monkeypatch):
    """The first 600 training and 200 test images."""
    if "TETHER_DATA" not in os.environ:
        pytest.skip("the real sets lie elsewhere")
    few = {train: [x[:n] for x in tether.data.mnist(train=train)] for train, n in ((True, 600), (False, 200))}
    monkeypatch.setattr(tether.data, "mnist", lambda train=True: few[train])
    return few


def run(script, options, tmp_path, monkeypatch):
    """What the script measured, and its picture."""
    found, picture = tmp_path / "results" / "found.json", tmp_path / "picture.png"
    paths = ["--threads", "1", "--out", str(picture), "--json", str(found)]
    monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", *options, *paths])
    script.main()
    assert picture.read_bytes().startswith(b"\x89PNG")
    record = json.loads(found.read_text())
    assert record["script"] == f"{script.__name__}.py"
    assert record["versions"]["torch"] == torch.__version__
    return record["measured"]


def test_paths_goes_the_same_way_from_both_starts_and_sgd_does_not(mnist, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import paths

    options = ["--hidden", "16", "--images", "300", "--epochs", "2", "--search", "1"]
    runs = run(paths, options, tmp_path, monkeypatch)
    assert len(runs) == 12
    curves = {(r["method"], r["dropout"], r["start"]): [row[0] for row in r["curve"]] for r in runs}
    sizes = {(r["method"], r["dropout"], r["start"]): r["step size"] for r in runs}
    for dropout in (0.0, 0.5):
        for method in paths.METHODS:
            balanced, unbalanced = ((method, dropout, start) for start in ("balanced", "unbalanced"))
            assert curves[balanced][0] == pytest.approx(curves[unbalanced][0], abs=2e-5)  # one function
            if method == "Path-SGD":
                assert sizes[balanced] == sizes[unbalanced]
                assert curves[balanced] == pytest.approx(curves[unbalanced], rel=1e-2)
        assert sizes["SGD", dropout, "balanced"] > 10 * sizes["SGD", dropout, "unbalanced"]
    for r in runs:  # the best of the whole runs is the one shown
        assert r["curve"][-1][0] == min(end for end in r["tried"].values() if end is not None)


def test_hidden_units_gives_every_replica_images_of_its_own(mnist, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import hidden_units

    (x, y), test = hidden_units.images(3, 200)
    pixels, labels = mnist[True]
    assert torch.equal(x[1], pixels[200:400].flatten(1) / 255)
    assert torch.equal(y.flatten(), labels)
    assert len(test[0]) == 200
    with pytest.raises(SystemExit, match="MNIST has 600 images in all, use --runs 2"):
        hidden_units.images(3, 250)
    options = ["--powers", "4", "5", "--runs", "2", "--images", "200", "--epochs", "60"]
    rows = run(hidden_units, options, tmp_path, monkeypatch)
    assert [row["H"] for row in rows] == [16, 32]
    for row in rows:
        assert len(row["test"]) == 2
        assert max(row["training"]) <= 0.5  # one of 200
        assert all(10 < best <= end < 60 for best, end in zip(row["best"], row["test"], strict=True))  # 90 is guessing


def test_without_the_clock_sleepers_stay_where_they_were(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import random_subset

    net = random_subset.perceptron(50, None)
    start = {name: param.detach().clone() for name, param in net.named_parameters()}
    opt, forgetful = tether.methods.sgd(net, lr=0.1), random_subset.Forgetful(net)
    forgetful.sleep()
    asleep = {name: param.detach() == 0 for name, param in net.named_parameters()}
    for name, share in random_subset.SHARES.items():
        spread = (share * (1 - share) / asleep[name].numel()) ** 0.5
        assert abs(float(asleep[name].double().mean()) - share) < 4 * spread
    for param in net.parameters():
        param.grad = torch.ones_like(param)
    opt.step()
    forgetful.wake()
    for name, param in net.named_parameters():
        assert torch.equal(param, torch.where(asleep[name], start[name], start[name] - 0.1))


def test_random_subset_looks_when_all_are_awake(mnist, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import random_subset

    seen = []
    errors = random_subset.errors

    def watched(nets, *data):
        seen.append(min(float((param != 0).double().mean()) for param in nets.parameters()))
        return errors(nets, *data)

    monkeypatch.setattr(random_subset, "errors", watched)
    options = ["--runs", "2", "--nodes", "10", "--images", "200", "--epochs", "10", "--k", "3"]
    rows = run(random_subset, options, tmp_path, monkeypatch)
    assert seen
    assert min(seen) == 1
    assert [row["method"] for row in rows] == ["SGD", "dropout 0.2, 0.5", "without the clock", "random subset, k = 3"]
    assert rows[-1]["steps"] == list(range(3, 40, 4))
    assert all(best >= end for row in rows for best, end in zip(row["best"], row["accuracy"], strict=True))
