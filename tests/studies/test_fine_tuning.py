"""What the studies of fine-tuning stand on: methods that do not disturb each other, their speeds, and MobileNetV2."""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

from tether_studies import fine_tuning, mobilenet
from tether_studies.experiment import recipe
from tether_studies.fine_tuning import FineTuning, Trainee, sgd
from tether_studies.judges import HELD, NOT_HELD, UNDECIDED
from tether_studies.lab import side_by_side


def small(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))


def batches(seed, held_out):
    generator = torch.Generator().manual_seed(seed)
    return list(torch.randn(25, 4, 3, generator=generator)), [torch.ones(2, 3), torch.full((1, 3), -float(held_out))]


@dataclass(frozen=True)
class Small(FineTuning):
    known, thesis = {"full": sgd(), "ours": sgd(["2"])}, {"ours": "89.70"}
    runs: int = 2
    methods: tuple[str, ...] = ("full", "ours")
    timed: int = 20
    tests: int = 819
    tempered: bool = True
    last: int = 1

    def model(self, seed):
        return small(seed)

    def sets(self, seed, held_out):
        return batches(seed, held_out)

    def loss(self, net, x):
        return net(x).square().mean()

    def right(self, net, x):
        return x[:, 0] > 0


TASK = Small()


def test_trainees_by_turns_end_as_if_alone():
    model, steps = small(0), batches(3, False)[0]
    together = [Trainee(model, method(0.1), 25, seed=3) for method in (sgd(), sgd(["2"]))]
    for start in range(0, 25, 10):
        for trainee in together:
            trainee.walk(steps[start : start + 10], TASK.loss)
    alone = Trainee(model, sgd(["2"])(0.1), 25, seed=3)
    alone.walk(steps, TASK.loss)
    start, full, head, again = (list(net.parameters()) for net in (model, *(t.net for t in together), alone.net))
    assert [torch.equal(a, b) for a, b in zip(start, full, strict=True)] == [False] * 4
    assert [torch.equal(a, b) for a, b in zip(start, head, strict=True)] == [True, True, False, False]
    assert all(torch.equal(a, b) for a, b in zip(head, again, strict=True))


def test_steps_are_clipped_and_fall_to_nothing():
    net = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    walker = Trainee(net, recipe("SGD", lr=1.0), 4, seed=0)
    walker.walk([torch.ones(1, 1)] * 4, lambda net, x: -50 * net(x).sum())
    assert walker.net.weight.item() == pytest.approx(1 + 0.75 + 0.5 + 0.25)


def test_accuracy_is_that_of_the_test_batches():
    assert TASK.train(sgd()(0.1), 3)["accuracy"] == pytest.approx(200 / 3)
    assert len(TASK.train(sgd()(0.1), 3, held_out=True)["losses"]) == 25


def test_the_mean_of_the_last_tests_counts_and_tests_change_nothing(monkeypatch):
    seen = iter((True, False, False))
    monkeypatch.setattr(Small, "right", lambda self, net, x: torch.tensor([next(seen)]))
    monkeypatch.setattr(Small, "sets", lambda self, seed, held_out: (batches(seed, held_out)[0], [0]))
    thrice = replace(TASK, last=3).train(sgd()(0.1), 3)
    assert thrice["accuracies"] == [100, 0, 0]
    assert thrice["accuracy"] == pytest.approx(100 / 3)
    seen = iter((True,))
    assert thrice["losses"] == TASK.train(sgd()(0.1), 3)["losses"]


def test_speeds_are_of_the_steps_after_the_first(monkeypatch):
    now = itertools.count()
    monkeypatch.setattr(fine_tuning.time, "process_time", lambda: float(next(now)))  # every turn takes a second
    found = TASK.by_turns(seed=0)
    assert found["seconds"] == pytest.approx([2 / 20, 2 / 20])


def results(full, ours, seconds):
    found = {("speed", f"run {i}"): {"seconds": np.array(pair)} for i, pair in enumerate(seconds)}
    for name, accuracies in (("full", full), ("ours", ours)):
        found |= {
            (name, f"run {i}"): {"accuracy": np.array(x), "losses": np.ones(40)} for i, x in enumerate(accuracies)
        }
    return side_by_side(found)


@pytest.mark.parametrize(
    ("ours", "seconds", "verdicts"),
    [
        ((90.0, 91.0, 92.1), ((0.2, 0.1), (0.3, 0.15), (0.2, 0.1)), [HELD, HELD]),
        ((87.0, 88.0, 89.1), ((0.2, 0.18), (0.3, 0.27), (0.2, 0.18)), [NOT_HELD, NOT_HELD]),
        ((89.0, 93.0, 90.0), ((0.2, 0.1), (0.2, 0.19), (0.2, 0.1)), [UNDECIDED, UNDECIDED]),
    ],
)
def test_speed_without_loss_needs_both(ours, seconds, verdicts):
    found = results((90.0, 91.0, 92.0), ours, seconds)
    # √(91 · 9 / 819) = 1 point
    judged = list(TASK.claims(found))
    assert [judgement.verdict for _, judgement in judged] == verdicts
    assert "lower by 1.0 points" in judged[1][0]


def test_the_table_by_hand():
    # accuracies 80, 84: mean 82, deviation √8, error 2; speeds 2 and 4, mean 3, error 1
    found = results((90.0, 90.0), (80.0, 84.0), ((0.01, 0.005), (0.02, 0.005)))
    found["tried, ours, slow, h=0.1"] = {"accuracy": np.array(70.0)}
    shown, tried = TASK.tables(found)
    assert shown.rows == [
        ["full", "90.00 ± 0.00", "15", "1.00 ± 0.00", ""],
        ["ours", "82.00 ± 2.00", "5", "3.00 ± 1.00", "89.70"],
    ]
    assert tried.rows == [["ours, slow", "h=0.1", "70.00"]]


def test_mobilenet_has_the_published_size_and_names():
    net = mobilenet.MobileNetV2()
    names = dict(net.named_parameters())
    assert sum(param.numel() for param in names.values()) == 3_504_872
    assert names["features.17.conv.1.0.weight"].shape == (960, 1, 3, 3)
    assert net.features(torch.zeros(1, 3, 64, 64)).shape == (1, 1280, 2, 2)
    pytest.importorskip(mobilenet.WEIGHTS)
    loaded = mobilenet.model(seed=0)  # strict: all the names must be there, and no other
    assert loaded.classifier[1].weight.shape == (10, 1280)
    assert not torch.equal(loaded.features[0][0].weight, net.features[0][0].weight)
