"""The local learning coefficient against closed forms: regression, reduced rank, deep linear networks."""

import math
import subprocess
import sys
import time
from fractions import Fraction
from itertools import combinations, pairwise, product

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import tether
from tether.measure import llc
from tether.measure.series import split_rhat


def aoyagi(sizes, rank):
    """λ and its multiplicity for y = W_L … W_1 x of this true rank (Aoyagi, 2024, main theorem)."""
    excess = [size - rank for size in sizes]
    for count in range(2, len(sizes) + 1):
        for chosen in combinations(range(len(sizes)), count):
            inside = [excess[s] for s in chosen]
            outside = [x for s, x in enumerate(excess) if s not in chosen]
            ell, total = count - 1, sum(inside)
            least = min(outside, default=math.inf)
            if max(inside) < least and ell * max(inside) <= total < ell * least:
                a = total - (math.ceil(Fraction(total, ell)) - 1) * ell
                λ = Fraction(-(rank**2) + rank * (sizes[0] + sizes[-1]), 2) + Fraction(a * (ell - a), 4 * ell)
                λ += sum(x * y for x, y in combinations(inside, 2)) / Fraction(2)
                return λ - Fraction(ell - 1, 4 * ell) * total**2, a * (ell - a) + 1
    raise AssertionError((sizes, rank))


def aoyagi_watanabe(M, H, N, r):
    """The same for two layers, M inputs, H hidden units and N outputs (Aoyagi, Watanabe, 2005)."""
    if N + r > M + H:
        return Fraction(H * M - H * r + N * r, 2), 1
    if M + r > N + H:
        return Fraction(H * N - H * r + M * r, 2), 1
    if H + r > M + N:
        return Fraction(M * N, 2), 1
    odd = (M + H + N + r) % 2
    return Fraction(odd - (H + r) ** 2 - M**2 - N**2 + 2 * (H + r) * (M + N) + 2 * M * N, 8), 1 + odd


def test_the_two_theorems_agree_with_each_other_and_with_cases_by_hand():
    for M, H, N in product(range(1, 6), repeat=3):
        for r in range(min(M, H, N) + 1):
            assert aoyagi((M, H, N), r) == aoyagi_watanabe(M, H, N, r), (M, H, N, r)
    assert aoyagi((1, 1, 1), 0) == (Fraction(1, 2), 2)  # ∫∫ e^(−n a²b²): the poles ½ of a and b coincide
    assert aoyagi((1, 1, 1, 1), 0) == (Fraction(1, 2), 3)  # and of a, b and c
    assert aoyagi((1, 1), 0) == (Fraction(1, 2), 1)  # f = ax is regular
    assert aoyagi((5, 2, 3, 6), 2) == (9, 1)  # all 6 × 5 matrices of rank 2: half of 2 (6 + 5 − 2)


def linear(*sizes):
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(a, b, bias=False) for a, b in pairwise(sizes)])
    for x in net.parameters():
        nn.init.orthogonal_(x)
    return net


def white(net):
    """Inputs of mean 0 and covariance I, with the outputs of the network: w* is a minimum of loss 0."""
    x = math.sqrt(net[0].in_features) * torch.eye(net[0].in_features)
    x = torch.cat([x, -x])
    with torch.no_grad():
        return x, net(x)


def scaled(net, inverse):
    """What `mse_loss` has to be multiplied by for nβ times the negative log-likelihood of outputs with σ = 1."""
    return inverse * net[-1].out_features / 2


def regression(points=300, inputs=5):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(points, inputs, generator=g)
    y = x.sum(1, keepdim=True) + torch.randn(points, 1, generator=g)
    net = nn.Linear(inputs, 1)
    best = torch.linalg.lstsq(torch.cat([x, torch.ones(points, 1)], 1), y).solution
    with torch.no_grad():
        net.weight.copy_(best[:-1].T)
        net.bias.copy_(best[-1])
    whole = torch.cat([x, torch.ones(points, 1)], 1).double()
    return net, (x, y), 2 * torch.linalg.eigvalsh(whole.T @ whole / points)  # curvatures of mse_loss


@pytest.mark.parametrize(
    "settings",
    [{"lr": 0.04}, {"lr": 0.4, "word": "BAOAB"}, {"lr": 0.4, "method": tether.methods.langevin, "friction": 2.0}],
    ids=["SGLD", "BAOAB", "a method"],
)
@pytest.mark.parametrize("localisation", [0.01, 40.0])
def test_regression_has_half_the_dimension_less_what_the_localisation_takes(settings, localisation):
    net, data, k = regression()
    inverse = 300 / math.log(300) / 2  # σ = 1: half of mse_loss is the negative log-likelihood
    found = llc(net, data, mse_loss, inverse=inverse, localisation=localisation, draws=250, chains=8, **settings)
    ω = localisation / inverse
    wider = 1 / (1 - settings["lr"] * (k + ω) / 2) if "word" not in settings and "method" not in settings else 1.0
    exact = float((k / (k + ω) * wider).sum() / 2)
    assert abs(found.value - exact) < 2 * found.error
    assert abs(found.temperature - float((wider * torch.ones(6)).mean())) < 3 * found.temperature_error
    assert found.error < 0.14
    assert found.rhat < 1.02
    if localisation < 1:  # d/2
        assert abs(found.value - 3) < 2 * found.error + 0.1 * (settings["lr"] < 0.1)


def test_minibatches_change_little_and_a_loader_is_read_once():
    net, (x, y), _ = regression()
    options = {"inverse": 300 / math.log(300) / 2, "localisation": 0.01, "draws": 250, "chains": 8, "lr": 0.02}
    found = llc(net, (x, y), mse_loss, batch=30, **options)
    assert abs(found.value - 3) < 2 * found.error + 0.1  # their heat
    loader = iter([(x[:100], y[:100]), (x[100:], y[100:])])
    again = llc(net, loader, mse_loss, batch=30, **options | {"draws": 5})
    assert torch.equal(again.draws, llc(net, (x, y), mse_loss, batch=30, **options | {"draws": 5}).draws)


@pytest.mark.filterwarnings("ignore:the parameters have 0.000")
def test_a_minibatch_is_compared_with_itself_at_the_start():
    net, (x, y), _ = regression()
    still = llc(net, (x, y), mse_loss, lr=0.0, batch=10, draws=4)
    assert still.draws.abs().max() < 1e-4  # while the losses of batches differ by 30 %


@pytest.mark.parametrize(
    ("sizes", "rank"),
    [((2, 2, 6), 1), ((5, 2, 3, 6), 2)],
    ids=["two layers", "three layers"],
)
def test_linear_networks_have_the_published_coefficient(sizes, rank):
    net = linear(*sizes)
    if rank < min(sizes):  # of the sets where the product has this rank, the larger one: W1 has it, too
        with torch.no_grad():
            net[0].weight.copy_(torch.tensor([[1.0], [0.5]]) @ torch.tensor([[1.0, -1.0]]))
    λ, multiplicity = aoyagi(sizes, rank)
    assert multiplicity == 1
    found = llc(
        *(net, white(net), mse_loss),
        inverse=scaled(net, 1e5),
        localisation=100.0,
        lr=0.5,
        word="BAOAB",
        friction=0.2,
        chains=16,
        draws=400,
    )
    assert abs(found.value - float(λ)) < 2 * found.error
    assert found.error < 0.02 * float(λ)
    assert found.value < 0.6 * found.parameters / 2  # far below the half of a regular model


def exact_at_zero(κ, hidden, outputs):
    """nβ⟨L⟩ of W₂W₁ at 0: W₂ integrated out, W₁ (H × H) by its singular values; κ = nβ/γ²."""
    s = np.exp(np.linspace(math.log(1e-7), math.log(9), 1200))
    grids = np.meshgrid(*[s] * hidden)
    weight = np.prod([x * np.exp(-(x**2) / 2) * (1 + κ * x**2) ** (-outputs / 2) for x in grids], axis=0)
    weight *= np.prod([abs(x**2 - y**2) for x, y in combinations(grids, 2)], axis=0)
    return (weight * sum(outputs / 2 * κ * x**2 / (1 + κ * x**2) for x in grids)).sum() / weight.sum()


def test_the_values_at_zero_tend_to_the_published_ones():
    assert exact_at_zero(1e9, 2, 2) == pytest.approx(float(aoyagi((2, 2, 2), 0)[0]), rel=3e-3)  # multiplicity 1
    near, far = (0.5 - exact_at_zero(κ, 1, 1) for κ in (1e4, 1e8))
    assert near / far == pytest.approx(2, rel=0.25)  # multiplicity 2: the difference falls as 1/log κ


@pytest.mark.parametrize("size", [1, 2])
def test_where_the_hessian_vanishes(size):
    net = linear(size, size, size)
    for x in net.parameters():
        x.data.zero_()
    found = llc(
        *(net, white(net) if size > 1 else (torch.tensor([[1.0], [-1.0]] * 2), torch.zeros(4, 1)), mse_loss),
        inverse=scaled(net, 300.0),
        lr=0.3,
        word="BAOAB",
        friction=0.2,
        chains=16,
        draws=400,
    )
    assert abs(found.value - exact_at_zero(300.0, size, size)) < 2 * found.error
    assert found.error < 0.03 * size


def test_a_larger_step_is_seen_and_one_that_diverges_is_an_error():
    net, data, k = regression()
    with pytest.warns(UserWarning, match=r"of the temperature τ = 0\.0.*lower lr"):
        llc(net, data, mse_loss, lr=1.2 / float(k.max()))
    with pytest.warns(UserWarning, match="diverge|not finite"), pytest.raises(RuntimeError, match="lower lr=5"):
        llc(net, data, mse_loss, lr=5.0)


def test_a_point_that_is_no_minimum_is_seen():
    net, data, _ = regression()
    with torch.no_grad():
        net.weight.add_(1.0)
    with pytest.warns(UserWarning, match="is negative: the chains found lower losses"):
        assert llc(net, data, mse_loss, lr=0.1).value < 0


def test_chains_that_do_not_agree_are_seen():
    apart = torch.randn(4, 100, generator=torch.Generator().manual_seed(0))
    assert split_rhat(apart) < 1.02
    assert split_rhat(apart + torch.arange(4).unsqueeze(1)) > 1.5
    assert split_rhat(apart + torch.linspace(0, 4, 100)) > 1.4  # a trend
    assert math.isnan(split_rhat(apart[:, :3]))


@pytest.mark.filterwarnings("ignore:the parameters have 0.000")
def test_dropout_is_off_and_frozen_parameters_stay():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    net[0].requires_grad_(False)
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    found = llc(net, (x, y), lr=0.0, draws=3)
    assert found.draws.abs().max() == 0  # with dropout they would differ
    assert found.parameters == 4 + 4 + 8 + 2
    assert net.training


def test_metrics_and_surfaces_go_with_it():
    net = linear(3, 3, 3)
    with torch.no_grad():
        net[1].weight.copy_(torch.linalg.qr(net[1].weight)[0])
    x, y = white(net)
    parts = [tether.Part("1.weight", on=tether.Orthogonal()), tether.Part("*", word="BAOAB")]
    assert math.isfinite(llc(net, (x, y), mse_loss, lr=0.1, parts=parts, draws=100, inverse=50.0).value)
    with torch.no_grad():
        net[1].weight.mul_(2)
    with pytest.raises(ValueError, match=r"does not hold w\*"):
        llc(net, (x, y), mse_loss, lr=0.1, parts=parts, draws=20)


def test_several_models_and_several_tested_proposals():
    ens = tether.Replicas(lambda: linear(2, 1), n=2)
    x, y = white(linear(2, 1))
    options = {"lr": 0.3, "draws": 200, "inverse": 100.0, "method": tether.methods.hmc, "localisation": 25.0, "thin": 1}
    found = llc(ens, (x, y), mse_loss, **options)
    assert len(found) == 2
    ω = 25.0 / 100  # k = 2 of mse_loss; hmc has no error of the step, and its energies hold the penalty
    assert all(abs(one.value - 2 / (2 + ω)) < 3 * one.error for one in found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draws": 1}, "draws=1 must be 2 or more"),
        ({"chains": 0}, "chains=0 must be 1 or more"),
        ({"localisation": -1.0}, "localisation=-1.0 must be a finite number, 0 or more"),
        ({"inverse": 0.0}, "inverse=0.0 must be a finite number above 0"),
        ({"lr": -1.0}, "lr=-1.0 is out of range"),
        ({"word": "Y"}, "Y"),
        (
            {"parts": [tether.Part("weight", temperature=1.0), tether.Part("*")]},
            r"a part of temperature 1\.0, not 0\.0",
        ),
        ({"batch": 1000}, "batch=1000 must be between 1 and"),
        ({"method": tether.methods.sgd, "momentum": 0.9}, "temperature"),
    ],
)
def test_bad_arguments_change_nothing(change, message, tmp_path):
    net, data, _ = regression()
    before = {name: x.clone() for name, x in net.state_dict().items()}
    with pytest.raises((ValueError, TypeError), match=message):
        llc(net, data, mse_loss, **{"lr": 0.1, "checkpoint": tmp_path / "run.pt"} | change)
    assert all(torch.equal(before[name], x) for name, x in net.state_dict().items())
    assert not list(tmp_path.iterdir())


def test_data_and_models_that_cannot_be_measured_are_refused():
    net, (x, y), _ = regression()
    with pytest.raises(ValueError, match="2 points are too few"):
        llc(net, (x[:2], y[:2]), mse_loss, lr=0.1)
    with pytest.raises(TypeError, match="pairs"):
        llc(net, [{"input": x, "labels": y}], mse_loss, lr=0.1)
    with pytest.raises(ValueError, match="the loss at the parameters of the model is nan"):
        llc(net, (x, torch.full_like(y, math.nan)), mse_loss, lr=0.1)
    with pytest.raises(ValueError, match="no parameter requires a gradient"):
        llc(net.requires_grad_(False), (x, y), mse_loss, lr=0.1)


PROGRAM = """
import sys, torch
from torch import nn
from tether.measure import llc
torch.manual_seed(0)
x, y = torch.randn(60, 3), torch.arange(60) % 2
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
import tether.loop.train as loop
keep = loop.train
import tether.measure.llc
module = sys.modules["tether.measure.llc"]
module.train = lambda *a, **k: keep(*a, **k, checkpoint_seconds=0.1)
found = llc(net, (x, y), lr=0.1, word="BAOAB", draws=60, batch=20, checkpoint=sys.argv[1] or None)
torch.save(found.draws, sys.argv[2])
"""


def test_a_killed_run_ends_with_the_same_bits(tmp_path):
    path, results = tmp_path / "run.pt", [tmp_path / "whole.pt", tmp_path / "resumed.pt"]
    program = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    subprocess.run([*program, "", str(results[0])], check=True)
    with subprocess.Popen([*program, str(path), str(results[1])]) as first:
        while not path.exists():
            assert first.poll() is None
            time.sleep(0.01)
        time.sleep(0.3)
        first.kill()
    assert not results[1].exists()
    subprocess.run([*program, str(path), str(results[1])], check=True)
    whole, resumed = (torch.load(path) for path in results)
    assert torch.equal(whole, resumed)


def test_a_checkpoint_of_another_point_is_refused(tmp_path):
    net, data, _ = regression()
    options = {"lr": 0.1, "draws": 5, "checkpoint": tmp_path / "run.pt"}
    first = llc(net, data, mse_loss, **options)
    assert torch.equal(llc(net, data, mse_loss, **options).draws, first.draws)
    with torch.no_grad():
        net.weight[0, 0] += 0.01
    with pytest.raises(ValueError, match="checkpoint of another run"):
        llc(net, data, mse_loss, **options)


def test_each_replica_has_a_checkpoint_of_its_own(tmp_path):
    ens = tether.Replicas(lambda: nn.Linear(3, 1), 4).subset([1, 3])
    data, options = (torch.randn(20, 3), torch.zeros(20, 1)), {"lr": 0.1, "draws": 5}
    with torch.no_grad():
        for x in ens.parameters():  # the minimum
            x.zero_()
    for _ in range(2):
        found = llc(ens, data, mse_loss, checkpoint=tmp_path / "run.pt", **options)
        assert {path.name for path in tmp_path.iterdir()} == {"run-1.pt", "run-3.pt"}
        for one, alone in zip(found, ens, strict=True):
            assert torch.equal(one.draws, llc(alone, data, mse_loss, **options).draws)


def test_the_line_and_the_picture():
    import matplotlib as mpl

    mpl.use("Agg")
    net, data, _ = regression()
    found = llc(net, data, mse_loss, lr=0.1, draws=20)
    assert str(found).startswith(f"λ̂ = {found.value:.4g} ± ")
    ax = found.plot()
    assert ax.lines[0].get_ydata()[-1] == pytest.approx(float(found.draws[0].mean()))
    assert len(ax.lines) == 5


@pytest.mark.filterwarnings("ignore:the parameters have 0.000")
def test_the_default_loss_is_cross_entropy():
    torch.manual_seed(0)
    net, x = nn.Linear(2, 3), torch.randn(9, 2)
    found = llc(net, (x, torch.arange(9) % 3), lr=0.0, draws=2)
    assert found.start == pytest.approx(cross_entropy(net(x), torch.arange(9) % 3).item(), rel=1e-6)
