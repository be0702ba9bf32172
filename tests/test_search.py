"""The search of examples/search.py: a batch of settings gives what each gives alone, in threads and in processes."""

import re
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("optuna")
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return __import__("search")


def test_a_setting_in_a_batch_has_the_bits_it_has_alone_and_pruning_stops_it(example):
    ends = list(zip(*example.RANGES.values(), strict=True))
    middle = [(a * b) ** 0.5 for a, b in zip(*ends, strict=True)]
    settings = [dict(zip(example.RANGES, values, strict=True)) for values in (ends[0], middle, ends[1])]

    def weights(kept, stopped=()):
        def watch(step, values, opt):
            params = [p.detach().clone() for group in opt.param_groups for p in group["params"]]
            kept[step] = values, params
            if step == 10:
                opt.stop(stopped)

        return watch

    batch = {}
    example.train(settings, 5, range(3), 20, 10, weights(batch, [1]))
    for i, last in ((0, 20), (1, 10), (2, 20)):
        one = {}
        example.train([settings[i]], 5, [i], last, 10, weights(one))
        values, params = one[last]
        assert values == [batch[20][0][i]]
        assert all(torch.equal(a[i], b[0]) for a, b in zip(batch[20][1], params, strict=True)), i
    assert not torch.equal(batch[10][1][0][0], batch[20][1][0][0])  # those that are not pruned go on


@pytest.mark.parametrize("kind", [["--compare"], ["--processes"]], ids=["threads", "processes"])
def test_search_prints_the_best_setting(example, monkeypatch, capsys, kind):
    monkeypatch.setattr(
        sys, "argv", ["search.py", "--batch", "4", "--batches", "2", "--steps", "8", "--searchers", "2", *kind]
    )
    example.main()
    _, *rows = (re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines())
    how, trials, pruned, best, speed, setting = rows[0]
    assert (how, trials) == ("4 at once", "16")
    assert int(pruned) < int(trials)
    assert 30 < float(best) < 100
    assert float(speed) > 0
    assert re.fullmatch(r"friction \S+, temperature \S+, coupling \S+", setting)
    for again in rows[1:]:
        assert [again[0], *again[1:4], again[5]] == ["one at a time", trials, pruned, best, setting]
    assert len(rows) == 1 + ("--compare" in kind)
