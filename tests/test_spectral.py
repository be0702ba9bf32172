"""Spectral and Muon: the equations, torch.optim.Muon, shapes, replicas, and what is refused."""

import copy
import math

import pytest
import torch
from torch import nn

import tether
from tether import Spectral, methods
from tether.metrics.metric import MetricError
from tether.metrics.spectral import COEFFICIENTS, orthogonalised

SHAPES = [(12, 20), (20, 12), (16, 16), (12, 20)]
CHOICES = [
    {},
    {"nesterov": False},
    {"momentum": 0.0},
    {"adjust_lr": "match_rms_adamw"},
    {"weight_decay": 0.0, "momentum": 0.5},
]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Matrices(nn.Module):
    def __init__(self, dtype, shapes=SHAPES):
        super().__init__()
        self.w = nn.ParameterList([nn.Parameter(0.3 * normal(*s, seed=i).to(dtype)) for i, s in enumerate(shapes)])


def push(model, opt, steps=4):
    for step in range(steps):
        for i, w in enumerate(model.parameters()):
            w.grad = normal(*w.shape, seed=100 + 10 * step + i).to(w.dtype)
        opt.step()


def literally(w, grads, lr, momentum=0.95, nesterov=True, weight_decay=0.1, adjust_lr="original"):
    """The algorithm as torch's documentation prints it, for one matrix."""
    a, b, c = COEFFICIENTS
    buffer = 0 * w
    for g in grads:
        buffer = momentum * buffer + g
        x = g + momentum * buffer if nesterov else buffer
        tall = x.shape[0] > x.shape[1]
        x = (x.T if tall else x) / x.norm()
        for _ in range(5):
            x = a * x + (b * x @ x.T + c * x @ x.T @ x @ x.T) @ x
        x = x.T if tall else x
        rows, columns = w.shape
        scale = math.sqrt(max(1, rows / columns)) if adjust_lr == "original" else 0.2 * math.sqrt(max(rows, columns))
        w = w - lr * weight_decay * w - lr * scale * x
    return w


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_muon_is_its_equations(choice):
    model = Matrices(torch.float64)
    starts = [w.detach().clone() for w in model.parameters()]
    push(model, methods.muon(model, lr=0.02, **choice))
    for i, (w, start) in enumerate(zip(model.parameters(), starts, strict=True)):
        grads = [normal(*w.shape, seed=100 + 10 * step + i) for step in range(4)]
        torch.testing.assert_close(w.detach(), literally(start, grads, 0.02, **choice), rtol=0, atol=1e-13)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_muon_is_torchs_to_the_rounding_of_bfloat16(choice):
    """In which torch computes UVᵀ: 2⁻⁹ a number, some percent of it after five products of three."""
    ours, theirs = Matrices(torch.float32), Matrices(torch.float32)
    starts = [w.detach().clone() for w in ours.parameters()]
    choice = dict(choice)
    push(ours, methods.muon(ours, lr=0.02, **choice))
    push(theirs, torch.optim.Muon(theirs.parameters(), lr=0.02, adjust_lr_fn=choice.pop("adjust_lr", None), **choice))
    for x, y, start in zip(ours.parameters(), theirs.parameters(), starts, strict=True):
        assert (x - y).norm() < 0.03 * (y - start).norm()


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_muon_is_torchs_to_rounding_where_torch_is_made_to_compute_in_float64(choice, monkeypatch):
    # in which torch would compute UVᵀ, of a copy
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda x: x.to(torch.float64, copy=True))
    ours, theirs = Matrices(torch.float64), Matrices(torch.float64)
    choice = dict(choice)
    push(ours, methods.muon(ours, lr=0.02, **choice))
    push(theirs, torch.optim.Muon(theirs.parameters(), lr=0.02, adjust_lr_fn=choice.pop("adjust_lr", None), **choice))
    for x, y in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-13)


def test_the_word_mv_is_torchs_sgd_with_nesterovs_momentum():
    ours, theirs = Matrices(torch.float64), Matrices(torch.float64)
    push(ours, tether.Optimizer(ours, lr=0.1, word="MV", friction=-math.log(0.9), weight_decay=0.01))
    push(theirs, torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01))
    for x, y in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-14, atol=1e-14)


def test_convolutions_are_flattened_and_all_others_are_a_second_row():
    conv = nn.Sequential(nn.Embedding(5, 3), nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4)).double()
    twin, plain = Matrices(torch.float64, [(4, 12)]), copy.deepcopy(conv)
    twin.w[0].data.copy_(conv[1].weight.data.flatten(1))
    opt = methods.muon(conv, lr=0.02, other_lr=0.1)
    other = methods.muon(twin, lr=0.02)
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.95, nesterov=True)
    push(plain, sgd)
    for step in range(4):
        for i, w in enumerate(conv.parameters()):
            w.grad = normal(*w.shape, seed=100 + 10 * step + i)
        twin.w[0].grad = conv[1].weight.grad.flatten(1)
        opt.step()
        other.step()
    assert torch.equal(conv[1].weight.flatten(1), twin.w[0])
    for (name, x), y in zip(conv.named_parameters(), plain.parameters(), strict=True):
        if name != "1.weight":
            torch.testing.assert_close(x, y, rtol=1e-14, atol=1e-14)
    assert [len(group["params"]) for group in opt.param_groups] == [1, 4]


def test_replicas_move_as_they_would_alone_each_with_its_step_size():
    ens = tether.Replicas(lambda: nn.Linear(4, 6), n=3)
    alone = [copy.deepcopy(ens[i]) for i in range(3)]
    lr = torch.tensor([0.01, 0.0, 0.05])
    opt = methods.muon(ens, lr=lr)
    single = [methods.muon(net, lr=h) for net, h in zip(alone, lr.tolist(), strict=True)]
    for step in range(3):
        for j, w in enumerate(ens.parameters()):
            w.grad = normal(*w.shape, seed=10 * step + j).float()
        for i, net in enumerate(alone):
            for w, many in zip(net.parameters(), ens.parameters(), strict=True):
                w.grad = many.grad[i]
            single[i].step()
        opt.step()
    for i, net in enumerate(alone):
        for w, many in zip(net.parameters(), ens.parameters(), strict=True):
            torch.testing.assert_close(many[i], w, rtol=0, atol=2e-6)


def test_five_steps_bring_singular_values_near_1_and_newton_and_schulz_to_1():
    matrices = normal(3, 10, 30)
    values = torch.linalg.svdvals(orthogonalised(matrices))
    assert 0.65 < values.min() < values.max() < 1.25
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    exact = orthogonalised(matrices, 40, (1.5, -0.5, 0.0))
    torch.testing.assert_close(exact, u @ v, rtol=0, atol=1e-12)
    torch.testing.assert_close(orthogonalised(matrices.mT, 40, (1.5, -0.5, 0.0)), exact.mT, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_directions_do_not_depend_on_the_size(size):
    matrices = normal(2, 3, 5).float()
    torch.testing.assert_close(orthogonalised(size * matrices), orthogonalised(matrices), rtol=0, atol=1e-5)
    assert not orthogonalised(0 * matrices).any()
    assert orthogonalised(torch.empty(2, 0, 5)).shape == (2, 0, 5)
    short = orthogonalised(size * matrices, least=1e3 * size * matrices.norm(dim=(1, 2)))
    assert (torch.linalg.matrix_norm(short) < 1e-3 * 3.4445**5 * 1.001).all()  # small ones are enlarged by a⁵


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"word": "BAOAB", "temperature": 1e-3}, "would turn the noise of 'BAOAB' into a part of the direction"),
        ({"word": "XH"}, "needs a word with one gradient per step, not 'XH'"),
        ({"on": tether.Sphere(slack=False)}, "choose one of metric= and on="),
    ],
)
def test_rows_that_spectral_does_not_take(fields, match):
    with pytest.raises(MetricError, match=match):
        tether.Optimizer(Matrices(torch.float32), lr=0.1, metric=Spectral(), **fields)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"steps": 0}, "steps=0 must be a whole number, 1 or more"),
        ({"scale": "moonshot"}, "scale='moonshot' must be one of 'original', 'match_rms_adamw', 'none'"),
        ({"decay": -0.1}, r"decay=-0\.1 must be finite and ≥ 0"),
        ({"decay": None}, "decay=None must be finite and ≥ 0, e.g. decay=0.1"),
    ],
)
def test_settings_that_do_not_exist(settings, match):
    with pytest.raises(MetricError, match=match):
        Spectral(**settings)


def test_a_vector_is_refused_before_anything_moves():
    net = nn.Linear(3, 2)
    opt = tether.Optimizer(net, lr=0.1, metric=Spectral())
    before = net.weight.detach().clone()
    net(torch.ones(1, 3)).sum().backward()
    with pytest.raises(MetricError, match="'bias' is none: give it a part of its own"):
        opt.step()
    assert torch.equal(net.weight, before)
