"""Surfaces, metrics and rhythms of one's own: known by their settings. CONTRIBUTING.md has them whole."""

import pytest
import torch

import tether
from tether.metrics.metric import Metric
from tether.rhythms import Rhythm
from tether.surfaces import Surface


class Summed(Surface):
    """Σⱼ wᵢⱼ = c for every row i."""

    def __init__(self, c):
        self.c, self._cache = c, {}

    def check(self, name, shape):
        pass

    def dimension(self, shape):
        return shape[0] * (shape[1] - 1)

    def place(self, θ, normals=None):
        return self.project(θ, θ)

    def lower(self, q, shape):
        return q

    def embed(self, q, θ=None):
        return q if θ is None else θ

    def lift(self, v):
        return v

    def project(self, point, start):
        return self.tangent(start, point) + self.c / point.shape[-1]

    def tangent(self, q, v):
        return v - v.mean(-1, keepdim=True)

    def drift(self, q, p, h):
        return q + h * p, p

    def violation(self, point):
        return (point.sum(-1) - self.c).abs().amax()


class Scaled(Metric):
    def __init__(self, by, power=1):
        self.by, self.power = by, power

    def check(self, part, row):
        pass

    def measure(self, model):
        return {}

    def enter(self, block, measured, whole):
        block.g = [g / self.by**self.power for g in block.g]


class Rest(Rhythm):
    def __init__(self, k):
        self.k = k


def test_pieces_show_their_settings_and_nothing_private():
    assert repr(Summed(2.0)) == "Summed(c=2.0)"
    assert repr(Scaled(3)) == "Scaled(by=3, power=1)"
    assert repr(Rest(3)) == "Rest(k=3)"
    assert Rest(3) == Rest(3) != Rest(4)


@pytest.mark.parametrize("fields", [{"on": Summed(2.0)}, {"metric": Scaled(3)}], ids=["surface", "metric"])
def test_a_checkpoint_of_other_settings_is_refused(fields):
    net = torch.nn.Linear(3, 2, bias=False)
    saved = tether.Optimizer(net, lr=0.1, **fields).state_dict()
    again = {"on": Summed(2.0), "metric": Scaled(3)}
    tether.Optimizer(net, lr=0.1, **{key: again[key] for key in fields}).load_state_dict(saved)
    others = {"on": Summed(1.0), "metric": Scaled(4)}
    opt = tether.Optimizer(net, lr=0.1, **{key: others[key] for key in fields})
    with pytest.raises(ValueError, match=r"Summed\(c=1.0\)|Scaled\(by=4, power=1\)"):
        opt.load_state_dict(saved)


@pytest.mark.parametrize("word", ["X", "L", "OBA", "BAOAB", "BACDEDCAB", "MS"])
def test_every_word_keeps_to_a_surface_of_ones_own(word):
    net = torch.nn.Linear(3, 2, bias=False)
    hot = {} if word == "MS" else {"temperature": 0.1}
    opt = tether.Optimizer(net, lr=0.1, word=word, on=Summed(2.0), **hot)
    for i in range(20):
        net.weight.grad = torch.linspace(-1, i, 6).view(2, 3)
        opt.step()
    assert opt.violation() < 1e-5
    torch.testing.assert_close(net.weight.sum(1).detach(), torch.full((2,), 2.0), rtol=0, atol=1e-5)
