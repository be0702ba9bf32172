"""Manifold Muon: the direction and its certificate, the surface, batches, replicas, resuming, and what is refused."""

import copy

import pytest
import torch
from torch import nn

import tether
from tether import Orthogonal, Spectral
from tether.metrics.aligned import SIGNS, aligned
from tether.metrics.metric import MetricError


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def orthogonal(*shape, seed=0):
    return torch.linalg.qr(normal(*shape, seed=seed))[0]


def sign(x):
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    return u @ v


def bound(w, g, dual):
    """‖G + 2WΛ‖_*, which no feasible ⟨G, A⟩ exceeds, from M over |G|."""
    inner = w.mT @ g
    size = torch.linalg.matrix_norm(g, keepdim=True)
    z = g - w @ (inner + inner.mT) / 2 + size * w @ dual
    return torch.linalg.svdvals(z).sum(-1)


def test_for_square_matrices_it_is_the_sign_of_the_skew_part_after_one_sign():
    w, g = orthogonal(3, 6, 6), normal(3, 6, 6, seed=1)
    found, dual, used = aligned(w, g, torch.zeros(3, 6, 6, dtype=torch.float64))
    inner = w.mT @ g
    u, σ, v = torch.linalg.svd((inner - inner.mT) / 2)
    assert used == 1
    assert dual.abs().max() < 1e-12
    smooth = σ / (σ.square() + (0.03 * σ.mean(-1, keepdim=True)).square()).sqrt()
    torch.testing.assert_close(found, w @ (u * smooth.unsqueeze(-2)) @ v, rtol=0, atol=1e-10)
    assert ((g * found).sum((1, 2)) / (g * (w @ u @ v)).sum((1, 2))).min() > 0.99


@pytest.mark.parametrize("shape", [(20, 16), (32, 16), (64, 16), (17, 16), (16, 1)])
def test_ten_signs_after_a_warm_start_are_within_two_percent_of_the_best(shape):
    """A momentum of noisy gradients, as in training; the bound of the dual says how good the best can be."""
    w = orthogonal(4, *shape)
    dual, p, shares = torch.zeros(4, shape[1], shape[1], dtype=torch.float64), 0.0, []
    drift = normal(4, *shape, seed=5)
    for step in range(40):
        p = 0.95 * p + 0.3 * drift + normal(4, *shape, seed=100 + step)
        a, dual, used = aligned(w, p, dual)
        assert used <= SIGNS == 10
        across = w.mT @ a
        assert (across + across.mT).abs().max() <= 1e-12
        assert torch.linalg.matrix_norm(a, 2).max() <= 1.03
        if step >= 20:
            shares.append((p * a).sum((1, 2)) / torch.linalg.matrix_norm(a, 2).clamp_min(1.0) / bound(w, p, dual))
    assert torch.stack(shares).mean() > 0.98


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("size", [1e-20, 1.0, 1e20])
def test_directions_of_every_dtype_and_size_are_tangent(dtype, limit, size):
    """To the rounding of the dtype."""
    w, g = orthogonal(3, 12, 5).to(dtype), (size * normal(3, 12, 5, seed=1)).to(dtype)
    a, _, _ = aligned(w, g, torch.zeros(3, 5, 5, dtype=dtype))
    across = w.double().mT @ a.double()
    assert a.dtype is dtype
    assert (across + across.mT).abs().max() <= limit
    assert torch.linalg.matrix_norm(a.double(), 2).max() == pytest.approx(1, abs=0.03)


def test_it_is_better_aligned_than_the_projected_sign():
    w, g = orthogonal(8, 40, 16), normal(8, 40, 16, seed=1)
    a, *_ = aligned(w, g, torch.zeros(8, 16, 16, dtype=torch.float64))
    plain = Orthogonal().tangent(w, sign(g))
    plain = plain / torch.linalg.matrix_norm(plain, 2, keepdim=True).clamp_min(1.0)
    a = a / torch.linalg.matrix_norm(a, 2, keepdim=True).clamp_min(1.0)
    assert ((g * a).sum((1, 2)) > 1.05 * (g * plain).sum((1, 2))).all()


def weights(*shapes, dtype=torch.float32):
    return nn.ParameterList([nn.Parameter(normal(*shape, seed=i).to(dtype)) for i, shape in enumerate(shapes)])


def push(model, opt, steps, first=0):
    for step in range(first, first + steps):
        for i, w in enumerate(model.parameters()):
            w.grad = normal(*w.shape, seed=100 * step + i + 50).to(w.dtype)
        opt.step()


SHAPES = [(6, 4), (4, 6), (5, 5), (4, 3, 2), (6, 4), (1, 4)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("word", ["X", "MS", "MV"])
def test_weights_stay_orthogonal_and_steps_have_their_length(word, dtype):
    model = weights(*SHAPES, dtype=dtype)
    opt = tether.Optimizer(model, lr=0.05, word=word, metric=Spectral(scale="none"), on=Orthogonal())
    for step in range(20):
        before = [w.detach().clone() for w in model.parameters()]
        push(model, opt, 1, step)
        assert opt.violation() <= {torch.float32: 1e-6, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]
    if dtype is not torch.bfloat16:
        for w, start in zip(model.parameters(), before, strict=True):
            top = torch.linalg.matrix_norm((w.detach() - start).flatten(1), 2).item()
            assert top == pytest.approx(0.05, rel=0.04)


def test_a_step_is_its_equations():
    model = weights((6, 4), dtype=torch.float64)
    opt = tether.Optimizer(model, lr=0.05, word="MV", friction=0.1, metric=Spectral(), on=Orthogonal())
    p, dual = 0.0, torch.zeros(1, 4, 4, dtype=torch.float64)
    for step in range(4):
        w = model[0].detach().clone()
        push(model, opt, 1, step)
        g = normal(6, 4, seed=100 * step + 50)
        p = torch.exp(torch.tensor(-0.1)).double() * p + g
        direction = -(g + torch.exp(torch.tensor(-0.1)).double() * p)
        a, dual, _ = aligned(w[None], direction[None], dual)
        moved = Orthogonal().project(w[None] + 0.05 * 1.5**0.5 * a, w[None])[0]
        torch.testing.assert_close(model[0].detach(), moved, rtol=0, atol=1e-6)


def test_weights_of_one_shape_and_replicas_move_as_they_would_alone():
    ens = tether.Replicas(lambda: nn.Linear(4, 6, bias=False), n=3)
    alone = [copy.deepcopy(ens[i]) for i in range(3)]
    lr = torch.tensor([0.01, 0.0, 0.05])
    options = {"word": "MV", "metric": Spectral(), "on": Orthogonal()}
    opt = tether.Optimizer(ens, lr=lr, **options)
    single = [tether.Optimizer(net, lr=h, **options) for net, h in zip(alone, lr.tolist(), strict=True)]
    for step in range(5):
        for w in ens.parameters():
            w.grad = normal(*w.shape, seed=step).float()
        for i, net in enumerate(alone):
            net.weight.grad = next(ens.parameters()).grad[i].clone()
            single[i].step()
        opt.step()
    for i, net in enumerate(alone):
        torch.testing.assert_close(next(ens.parameters())[i], net.weight, rtol=0, atol=1e-5)


def test_a_resumed_run_has_the_same_bits():
    def made(model):
        return tether.Optimizer(model, lr=0.05, word="MS", metric=Spectral(), on=Orthogonal())

    model, other = weights(*SHAPES), weights(*SHAPES)
    opt = made(model)
    push(model, opt, 4)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    again = made(other)
    again.load_state_dict(copy.deepcopy(opt.state_dict()))
    for each, its in ((model, opt), (other, again)):
        push(each, its, 4, first=4)
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"on": tether.Circle()}, r"choose one of metric= and on=, or on=tether\.Orthogonal\(\)"),
        ({"on": tether.SpectralBall()}, r"choose one of metric= and on=, or on=tether\.Orthogonal\(\)"),
        ({"on": Orthogonal(), "metric": Spectral(decay=0.1)}, r"would shrink weights.*use Spectral\(decay=0\)"),
        ({"on": Orthogonal(), "word": "OBA", "temperature": 0.1}, "would turn the noise of 'OBA' into a part"),
        ({"on": Orthogonal(), "word": "BABAB"}, "needs a word with one gradient per step"),
    ],
)
def test_what_is_refused(fields, match):
    with pytest.raises(MetricError, match=match):
        tether.Optimizer(weights((4, 4)), lr=0.1, **{"metric": Spectral(), **fields})


@pytest.mark.parametrize("on", [tether.Free(), Orthogonal()], ids=repr)
@pytest.mark.parametrize("value", [0.1, torch.tensor(0.1)])
def test_a_temperature_that_comes_later_is_refused_before_anything_moves(on, value):
    model = weights((4, 4))
    opt = tether.Optimizer(model, lr=0.1, metric=Spectral(), on=on)
    push(model, opt, 1)
    before = model[0].detach().clone()
    opt.param_groups[0]["temperature"] = value
    for _ in range(2):
        with pytest.raises(MetricError, match="would turn the noise of 'X' into a part of the direction"):
            push(model, opt, 1)
    assert torch.equal(model[0], before)
    opt.param_groups[0]["temperature"] = 0.0
    push(model, opt, 1)
    assert not torch.equal(model[0], before)
