"""Many networks on a grid at once, against each of them alone, point by point."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from tether.window import networks
from tether.window.networks import IN_PLACE, Grid
from tether.window.problems import problem_of
from tether.window.runner import Runner
from tether.window.setting import read_setting


@pytest.mark.parametrize("hidden", [(), (7,), (5, 3)])
@pytest.mark.parametrize("outputs", [1, 3])
def test_a_grid_says_what_each_network_says_at_each_point(monkeypatch, hidden, outputs):
    monkeypatch.setattr(networks, "CACHE", 100)  # a few points at a time, and not a divisor of all
    across, upwards = torch.linspace(-2, 1, 5), torch.linspace(0, 3, 7)
    grid = Grid(across, upwards)
    widths = [2, *hidden, outputs]
    for count in (4, 1, 6):  # the same memory, for more and for fewer
        nets = [[nn.Linear(a, b) for a, b in pairwise(widths)] for _ in range(count)]
        each = [nn.Sequential(*layers).parameters() for layers in nets]
        stacked = [torch.stack(same).detach() for same in zip(*each, strict=True)]
        found = grid.answers(stacked, IN_PLACE["tanh"])
        assert found.shape == (count, outputs, 35)
        for i, layers in enumerate(nets):
            for row, y in enumerate(upwards):
                for column, x in enumerate(across):
                    out = layers[0](torch.stack((x, y)))
                    for layer in layers[1:]:
                        out = layer(out.tanh())
                    assert torch.allclose(found[i, :, row * 5 + column], out, atol=1e-5)


def test_a_snapshot_follows_parameters_that_move_to_other_memory():
    setting = read_setting({"replicas": 2, "hidden": [3]})
    runner = Runner(setting, problem_of(setting), {"method": "sgd"})
    before = runner.snapshot().weights
    runner.parameters[0].data = runner.parameters[0].data + 1
    after = runner.snapshot().weights
    assert abs(after[:, :6] - before[:, :6] - 1).max() < 1e-6
    assert (after[:, 6:] == before[:, 6:]).all()
    runner.advance()
    assert (after[:, :6] == before[:, :6] + 1).all()  # a snapshot is a copy
