"""RMS: its equations, torch's RMSprop and Adam, the right density where v is kept, and the bias where it is not."""

import copy
import math

import pytest
import torch
from torch import nn

import tether
from tether import RMS, methods
from tether.metrics.metric import MetricError

CHAINS = 40_000


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pair(dtype=torch.float64):
    """Two networks of equal weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype)
    return net, copy.deepcopy(net)


def push(model, opt, steps=6, first=0, then=lambda: None):
    for step in range(first, first + steps):
        for i, w in enumerate(model.parameters()):
            w.grad = (10.0**i * normal(*w.shape, seed=10 * step + i)).to(w.dtype)
        opt.step()
        then()


def same(left, right, atol=1e-13, rtol=1e-12):
    for x, y in zip(left.parameters(), right.parameters(), strict=True):
        torch.testing.assert_close(x, y, atol=atol, rtol=rtol)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_the_word_x_is_torchs_rmsprop(weight_decay):
    ours, theirs = pair()
    push(ours, tether.Optimizer(ours, lr=0.01, metric=RMS(0.9, eps=1e-3), weight_decay=weight_decay))
    push(theirs, torch.optim.RMSprop(theirs.parameters(), lr=0.01, alpha=0.9, eps=1e-3, weight_decay=weight_decay))
    same(ours, theirs)


def test_the_word_ms_is_adam_without_its_corrections():
    """In which the step is lr m/(√v + ε), m = (1 − β₁)p: torch's, with a schedule and an ε that undo them."""
    lr, first, second, eps = 0.01, 0.9, 0.99, 1e-30
    ours, theirs = pair()
    opt = tether.Optimizer(ours, lr=lr * (1 - first), word="MS", friction=-math.log(first), metric=RMS(second, eps=eps))
    adam = torch.optim.Adam(theirs.parameters(), lr=1.0, betas=(first, second), eps=eps)
    undone = torch.optim.lr_scheduler.LambdaLR(
        adam, lambda step: lr * (1 - first ** (step + 1)) / math.sqrt(1 - second ** (step + 1))
    )
    push(ours, opt)
    push(theirs, adam, then=undone.step)
    same(ours, theirs)
    for x, y in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(opt.state[x]["momentum"] * (1 - first), adam.state[y]["exp_avg"])
        torch.testing.assert_close(opt.state[x]["rms"].square(), adam.state[y]["exp_avg_sq"])


def test_a_schedule_with_adams_corrections_makes_it_adam():
    lr, first, second, eps = 0.01, 0.9, 0.99, 1e-30
    ours, theirs = pair()
    opt = tether.Optimizer(ours, lr=1.0, word="MS", friction=-math.log(first), metric=RMS(second, eps=eps))
    corrected = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda step: lr * (1 - first) * math.sqrt(1 - second ** (step + 1)) / (1 - first ** (step + 1))
    )
    push(ours, opt, then=corrected.step)
    push(theirs, torch.optim.Adam(theirs.parameters(), lr=lr, betas=(first, second), eps=eps))
    same(ours, theirs)


def test_the_noise_of_a_step_is_its_equation():
    ours, plain = pair()
    twin = tether.Optimizer(plain, lr=0.01, temperature=0.3, seed=4)  # has the same normals
    opt = methods.rms_sgld(ours, lr=0.01, temperature=0.3, decay=0.9, eps=1e-3, seed=4)
    starts = [w.detach().clone() for w in ours.parameters()]
    push(ours, opt, steps=1)
    push(plain, twin, steps=1)
    for i, (w, other, start) in enumerate(zip(ours.parameters(), plain.parameters(), starts, strict=True)):
        g = 10.0**i * normal(*w.shape, seed=i)
        R = (other.detach() - start + 0.01 * g) / math.sqrt(2 * 0.3 * 0.01)
        G = 1 / ((0.1 * g**2).sqrt() + 1e-3)
        torch.testing.assert_close(w.detach(), start - 0.01 * G * g + (2 * 0.3 * 0.01 * G).sqrt() * R)


def wells(matrix, word="X", *, lr, τ, steps, squares, burn, **fields):
    """Covariances ⟨θθᵀ⟩ of chains in the well θᵀAθ/2, with v set by the first step and kept; and the optimizer."""
    θ = nn.Parameter(torch.zeros(CHAINS, len(matrix), dtype=torch.float64))
    options = {"lr": lr, "temperature": τ, "word": word, **fields}
    opt = tether.Optimizer([("θ", θ)], metric=RMS(0.0, eps=1e-3, until=1), **options)
    θ.grad = squares.sqrt().expand_as(θ).clone()
    opt.step()
    total = torch.zeros_like(matrix)
    for step in range(steps):
        θ.grad = θ.detach() @ matrix
        opt.step()
        if step >= burn:
            total += θ.detach().T @ θ.detach() / CHAINS / (steps - burn)
    return total, opt


A = torch.tensor([[2.0, 0.5], [0.5, 0.25]], dtype=torch.float64)
SQUARES = torch.tensor([4.0, 0.01], dtype=torch.float64)


def test_kept_squares_sample_what_the_lyapunov_equation_says():
    """Σ = (1 − hGA) Σ (1 − hGA)ᵀ + 2τhG, exactly, at a step that is not small."""
    lr, τ = 0.1, 0.7
    found, _ = wells(A, lr=lr, τ=τ, steps=300, squares=SQUARES, burn=120)
    G = torch.diag(1 / (SQUARES.sqrt() + 1e-3))
    step = torch.eye(2, dtype=torch.float64) - lr * G @ A
    noise = 2 * τ * lr * G
    expected = torch.linalg.solve(torch.eye(4, dtype=torch.float64) - torch.kron(step, step), noise.flatten())
    expected = expected.view(2, 2)
    assert (expected - τ * torch.linalg.inv(A)).abs().max() > 0.05  # the discrete chain is another one
    error = expected.diagonal().outer(expected.diagonal()).sqrt() * math.sqrt(2 / CHAINS)  # of one moment
    assert ((found - expected).abs() < 4 * error).all()


def test_momenta_have_masses_and_the_temperature_counts_them():
    """BAOAB is exact for the positions in a quadratic well, with any masses; ⟨p²⟩ = τ/G."""
    τ = 0.7
    found, opt = wells(A, "BAOAB", lr=0.2, τ=τ, steps=300, squares=SQUARES, burn=150, friction=2.0)
    expected = τ * torch.linalg.inv(A)
    error = expected.diagonal().outer(expected.diagonal()).sqrt() * math.sqrt(2 / CHAINS)
    assert ((found - expected).abs() < 4 * error).all()
    error = τ * math.sqrt(2 / (2 * CHAINS))
    assert abs(opt.temperature()["*"] - τ) < 4 * error
    p = opt.state[opt.param_groups[0]["params"][0]]["momentum"]
    masses = SQUARES.sqrt() + 1e-3
    assert ((p.square().mean(0) / masses - τ).abs() < 4 * τ * math.sqrt(2 / CHAINS)).all()


@pytest.mark.parametrize(
    ("decay", "steps", "expected"), [(0.0, 800, None), (0.9, 800, 1.52), (0.99, 1500, 1.26), (0.999, 6000, 1.05)]
)
def test_bias_of_running_squares(decay, steps, expected):
    """The variance in the well θ²/2 at τ = 1, for which (|θ| + ε) e^{−θ²/2} is the density at α = 0 and h → 0.

    Its standard error is 0.01: √2 · 1.6/10² of one step, over the root of the number of steps that are independent.
    """
    θ = nn.Parameter(torch.ones(10_000, dtype=torch.float64))
    opt = methods.rms_sgld(nn.ParameterList([θ]), lr=0.01, temperature=1.0, decay=decay, eps=0.5)
    found = []
    for step in range(2 * steps):
        θ.grad = θ.detach().clone()
        opt.step()
        if step >= steps:
            found.append(θ.detach().square().mean())
    root = math.sqrt(math.pi / 2)
    expected = (2 + 0.5 * root) / (1 + 0.5 * root) if expected is None else expected
    assert torch.stack(found).mean().item() == pytest.approx(expected, abs=0.03)


def test_replicas_move_as_they_would_alone_each_at_its_temperature():
    ens = tether.Replicas(lambda: nn.Linear(4, 6), n=3)
    τ = torch.tensor([0.0, 0.1, 2.0])
    for word in ("X", "BAOAB"):
        for which in range(3):
            net, many = copy.deepcopy(ens[which]), copy.deepcopy(ens)
            opt = tether.Optimizer(many, lr=0.01, temperature=τ, metric=RMS(0.9), word=word)
            alone = tether.Optimizer(net, lr=0.01, temperature=τ[which].item(), metric=RMS(0.9), word=word)
            alone.lanes = alone.lanes._replace(numbers=(which,))
            for row in alone.rows:
                row.lanes = alone.lanes
            for step in range(3):
                for j, (w, x) in enumerate(zip(many.parameters(), net.parameters(), strict=True)):
                    w.grad = normal(*w.shape, seed=10 * step + j).float()
                    x.grad = w.grad[which].clone()
                opt.step()
                alone.step()
            for w, x in zip(many.parameters(), net.parameters(), strict=True):
                torch.testing.assert_close(w[which], x, rtol=0, atol=2e-6)


def test_squares_are_kept_from_the_step_that_until_says():
    model, _ = pair()
    opt = tether.Optimizer(model, lr=0.01, metric=RMS(0.9, until=3))
    weight = next(model.parameters())
    push(model, opt, steps=2)
    before = opt.state[weight]["rms"].clone()
    push(model, opt, steps=1, first=2)
    last = opt.state[weight]["rms"].clone()
    push(model, opt, steps=2, first=3)
    assert torch.equal(opt.state[weight]["rms"], last)
    assert not torch.equal(before, last)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_squares_in_half_precision_have_the_digits_of_float32_and_so_have_checkpoints(dtype):
    """0.1 g² below the least number of float16 would be 0, and the step h/ε times g."""
    model, other = pair(dtype)
    weight = next(model.parameters())
    opt, again = (tether.Optimizer(net, lr=0.01, metric=RMS(0.9), word="MS") for net in (model, other))
    start = weight.detach().float()
    for w in model.parameters():
        w.grad = torch.full_like(w, 1e-4)
    opt.step()
    assert opt.state[weight]["rms"].dtype is torch.float32
    torch.testing.assert_close(
        start - weight.detach().float(), torch.full_like(start, 0.01 / math.sqrt(0.1)), rtol=0, atol=3e-3
    )
    again.load_state_dict(opt.state_dict())
    assert torch.equal(again.state[next(other.parameters())]["rms"], opt.state[weight]["rms"])


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"decay": 1.0}, r"decay=1\.0 must be at least 0 and below 1"),
        ({"decay": "0.9"}, r"decay='0\.9' must be at least 0 and below 1, e\.g\. decay=0\.99"),
        ({"decay": math.nan}, "decay=nan must be at least 0 and below 1"),
        ({"eps": 0.0}, r"eps=0\.0 must be finite and above 0"),
        ({"eps": None}, "eps=None must be finite and above 0, e.g. eps=1e-08"),
        ({"until": 0}, "until=0 must be a whole number of steps"),
    ],
)
def test_settings_that_do_not_exist(settings, match):
    with pytest.raises(ValueError, match=match):
        RMS(**settings)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"word": "XH"}, "needs a word with one gradient per step, not 'XH'"),
        ({"on": tether.Sphere(slack=False)}, "choose one of metric= and on="),
    ],
)
def test_rows_that_rms_does_not_take(fields, match):
    with pytest.raises(MetricError, match=match):
        tether.Optimizer(pair()[0], lr=0.1, metric=RMS(), **fields)
