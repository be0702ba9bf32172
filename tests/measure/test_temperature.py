"""Thermometers against Gaussians, whose temperature is known; tolerances are in standard errors, seeds fixed."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tether
from tether import measure
from tether.measure.series import mean_and_error


class Wells(nn.Module):
    """Harmonic wells of different stiffness: exp(−U/τ) is Gaussian, with variances τ/k."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.a = nn.Parameter(torch.zeros(30, dtype=dtype))
        self.b = nn.Parameter(torch.zeros(4, 5, dtype=dtype))
        self.register_buffer("ka", torch.linspace(0.5, 2, 30, dtype=dtype))
        self.register_buffer("kb", torch.linspace(1, 4, 20, dtype=dtype).view(4, 5))


def energy(m):
    """For a module, and for replicas of it."""
    return (m.ka * m.a.square()).sum(-1) / 2 + (m.kb * m.b.square()).sum((-1, -2)) / 2


def step(opt, model):
    opt.zero_grad()
    energy(model).sum().backward()
    opt.step()


# Kinetic temperature


def test_the_mean_of_blocks_has_the_error_of_a_correlated_series():
    """An autoregressive series of memory ρ has the error σ √((1 + ρ)/(1 − ρ)/T), here 3 times the naive one."""
    generator = torch.Generator().manual_seed(0)
    ρ, chains, draws = 0.8, 50, 10_000
    x, rows = torch.zeros(chains, dtype=torch.float64), []
    for _ in range(draws):
        x = ρ * x + math.sqrt(1 - ρ**2) * torch.randn(chains, generator=generator, dtype=torch.float64)
        rows.append(x)
    mean, error = mean_and_error(torch.stack(rows, dim=1))
    expected = math.sqrt((1 + ρ) / (1 - ρ) / (chains * draws))
    assert error == pytest.approx(expected, rel=0.1)
    assert abs(mean) < 4 * expected
    assert math.isnan(mean_and_error(torch.ones(1, 1))[1])
    assert mean_and_error(torch.tensor([[1.0], [3.0]])) == (2.0, 1.0)  # two chains of one draw


def test_the_kinetic_temperature_is_that_of_the_optimizer_part_by_part():
    model = Wells()
    parts = [tether.Part("a", temperature=1.0), tether.Part("b", word="BAOAB", temperature=0.25)]
    opt = tether.Optimizer(model, parts, lr=0.1, word="BAOAB", friction=1.0)
    for _ in range(20):
        step(opt, model)
    found = measure.kinetic_temperature(opt)
    assert found.parts == pytest.approx(opt.temperature(), rel=1e-12)
    a, b = found.rows
    assert (a.name, a.degrees, a.target, b.name, b.degrees, b.target) == ("a", 30, 1.0, "b", 20, 0.25)
    assert a.mean == pytest.approx(float(opt.state[model.a]["momentum"].square().mean()), rel=1e-12)
    assert (a.error, b.error) == pytest.approx((math.sqrt(2 / 30), 0.25 * math.sqrt(2 / 20)))
    assert found.mean == pytest.approx((30 * a.mean + 20 * b.mean) / 50, rel=1e-12)


def test_constrained_tensors_have_fewer_degrees_of_freedom():
    """Orthogonal 6 × 3: 18 − 6; what is drawn at infinite friction has N τ on average, 4 standard errors."""
    model = nn.Linear(3, 6)
    opt = tether.Optimizer(
        model,
        [tether.Part("weight", on=tether.Orthogonal()), tether.Part("*")],
        lr=0.01,
        word="BAOA",
        friction=math.inf,
        temperature=0.5,
    )
    readings = []
    for _ in range(300):
        model(torch.zeros(1, 3)).sum().backward()
        opt.step()
        readings.append(measure.kinetic_temperature(opt))
    assert [(row.name, row.degrees) for row in readings[0].rows] == [("weight", 12), ("bias", 6)]
    means = np.mean([[row.mean for row in found.rows] for found in readings], axis=0)
    np.testing.assert_allclose(means, 0.5, atol=4 * 0.5 * math.sqrt(2 / 6 / 300))


def test_replicas_are_read_one_by_one():
    ens = tether.Replicas(Wells, n=3)
    opt = tether.methods.langevin(ens, lr=0.1, friction=1.0, temperature=torch.tensor([1.0, 2.0, 3.0]))
    for _ in range(5):
        step(opt, ens)
    found = measure.kinetic_temperature(opt)
    assert [one.rows[0].target for one in found] == [1.0, 2.0, 3.0]
    assert [one.parts["*"] for one in found] == pytest.approx(opt.temperature()["*"].tolist(), rel=1e-12)


@pytest.mark.parametrize("dampening", [0.0, 0.5])
def test_momentum_of_torch_is_langevin_without_noise(dampening):
    """The same trajectory by OBA with h² = lr (1 − dampening), e^{−γh} = momentum: the same momenta."""
    torch.manual_seed(0)
    one, two = Wells(), Wells()
    with torch.no_grad():
        one.a.normal_(), one.b.normal_()
    two.load_state_dict(one.state_dict())
    lr, μ = 0.01, 0.9
    h = math.sqrt(lr * (1 - dampening))
    theirs = torch.optim.SGD(one.named_parameters(), lr=lr, momentum=μ, dampening=dampening)
    ours = tether.Optimizer(two, lr=h, word="OBA", friction=-math.log(μ) / h, temperature=0.0)
    if dampening:  # torch's first step takes the whole gradient
        for x in one.parameters():
            theirs.state[x]["momentum_buffer"] = torch.zeros_like(x)
    for _ in range(30):
        step(theirs, one)
        step(ours, two)
    assert_close(one.a, two.a)
    # OBA is rotated to BAO: ours are read after O, μ p.
    means = [[row.mean for row in measure.kinetic_temperature(opt).rows] for opt in (theirs, ours)]
    assert [μ**2 * x for x in means[0]] == pytest.approx(means[1], rel=1e-9)
    assert math.isnan(measure.kinetic_temperature(theirs).rows[0].target)


def test_optimizers_without_momenta_are_refused():
    model = Wells()
    with pytest.raises(TypeError, match="Adam has no momenta with a kinetic energy"):
        measure.kinetic_temperature(torch.optim.Adam(model.parameters()))
    for options in ({}, {"momentum": 0.9, "nesterov": True}):
        opt = torch.optim.SGD(model.parameters(), lr=0.1, **options)
        step(opt, model)
        with pytest.raises(ValueError, match="only plain momentum"):
            measure.kinetic_temperature(opt)
    bound = nn.Linear(2, 2)
    opt = torch.optim.SGD(bound.named_parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(TypeError, match=r"under tether\.constrain"):
        measure.kinetic_temperature(tether.constrain(opt, {"weight": tether.Orthogonal()}))
    opt = tether.methods.sgld(model, lr=0.1)
    step(opt, model)
    with pytest.raises(ValueError, match="no part has momenta"):
        measure.kinetic_temperature(opt)
    with pytest.raises(ValueError, match="take a step first"):
        measure.kinetic_temperature(tether.methods.langevin(model))


# Equipartition over a run


def test_equipartition_over_a_run_of_replicas():
    """BAOAB read after O is exact at any step size: 4 standard errors, which are below 1 % of τ."""
    ens = tether.Replicas(Wells, n=20)
    parts = [tether.Part("a", temperature=0.02), tether.Part("b", temperature=0.5)]
    opt = tether.Optimizer(ens, parts, lr=0.4, word="BAOAB", friction=1.0)
    record = tether.train(ens, opt, None, energy, steps=1200, log_every=2, callbacks=[measure.thermometer])
    found = measure.equipartition(record, opt, burn_in=200)
    assert [(row.name, row.target, row.degrees) for row in found.rows] == [("a", 0.02, 30), ("b", 0.5, 20)]
    assert found.times == 20 * 500
    for row in found.rows:
        assert row.error < 0.01 * row.target
        assert abs(row.mean - row.target) < 4 * row.error
    assert found.largest < 4
    assert found.table.splitlines()[1].split()[:2] == ["a", "30"]
    with pytest.raises(ValueError, match="no reading after step 5000"):
        measure.equipartition(record, opt, burn_in=5000)


def test_a_wrong_temperature_shows():
    ens = tether.Replicas(Wells, n=20)
    opt = tether.Optimizer(ens, lr=0.4, word="BAOAB", friction=1.0, temperature=0.5)
    record = tether.train(ens, opt, None, energy, steps=400, log_every=2, callbacks=[measure.thermometer])
    opt.param_groups[0]["temperature"] = 0.45
    assert measure.equipartition(record, opt, burn_in=100).largest > 5


# Configurational temperature


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_point_in_closed_form(dtype):
    """U = Σ k θ²/2: |∇U|² = Σ k²θ², ΔU = Σ k, θ·∇U = Σ kθ²; weight decay adds to k."""
    model = Wells(dtype)
    torch.manual_seed(1)
    with torch.no_grad():
        model.a.normal_(), model.b.normal_()
    θ = torch.cat([model.a, model.b.flatten()]).detach().double()
    for decay in (0.0, 0.3):
        k = torch.cat([model.ka, model.kb.flatten()]).double() + decay
        for probes in (None, 3):  # of a diagonal Hessian every probe tells the trace exactly
            found = measure.configurational_temperature(model, loss=energy, weight_decay=decay, probes=probes)
            expected = float((k * θ).square().sum() / k.sum())
            assert found.mean == pytest.approx(expected, rel=1e-6)
            assert found.virial == pytest.approx(float((k * θ.square()).mean()), rel=1e-6)
            assert found.degrees == 50
            assert found.probes == (probes or 0)
            assert math.isnan(found.error)


def test_the_error_is_that_of_the_ratio():
    """U = −log(3 − q) has U'² = U'' everywhere: whatever is drawn, the ratio is 1 without an error."""
    draws = [{"weight": torch.tensor([[q]]).double()} for q in (-2.0, -1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5)]
    model = nn.Linear(1, 1, bias=False).double()
    found = measure.configurational_temperature(model, loss=lambda m: -(3 - m.weight).log(), draws=draws)
    assert found.laplacians[0, :2].tolist() == pytest.approx([1 / 25, 1 / 16])
    assert found.mean == pytest.approx(1, rel=1e-12)
    assert found.error == pytest.approx(0, abs=1e-12)
    assert found.virial_error > 0.1


def test_the_laplacian_is_the_trace_of_the_hessian_in_batches_too():
    """Against torch.autograd.functional.hessian of the whole loss; more parameters than rows at a time."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 2)).double()
    net[0].bias.requires_grad_(False)
    x, y = torch.randn(30, 3).double(), torch.arange(30) % 2
    names = [name for name, p in net.named_parameters() if p.requires_grad]
    shapes = [net.get_parameter(name).shape for name in names]
    θ = torch.cat([net.get_parameter(name).detach().flatten() for name in names])
    assert len(θ) > 64

    def loss(flat):
        parts = dict(zip(names, flat.split([math.prod(shape) for shape in shapes]), strict=True))
        state = {name: parts[name].view(shape) for name, shape in zip(names, shapes, strict=True)}
        return nn.functional.cross_entropy(torch.func.functional_call(net, state, x), y)

    hessian = torch.autograd.functional.hessian(loss, θ)
    gradient = torch.func.grad(loss)(θ)
    whole = measure.configurational_temperature(net, (x, y))
    split = measure.configurational_temperature(net, [(x[:7], y[:7]), (x[7:], y[7:])])
    for found in (whole, split):
        assert found.degrees == len(θ)
        assert float(found.laplacians) == pytest.approx(float(hessian.trace()), rel=1e-9)
        assert float(found.gradient_squares) == pytest.approx(float(gradient.square().sum()), rel=1e-9)
        assert float(found.virials) == pytest.approx(float(θ @ gradient), rel=1e-9)
    estimates = [measure.configurational_temperature(net, (x, y), probes=200, seed=s).laplacians for s in range(2)]
    off = hessian - hessian.diag().diag()
    error = math.sqrt(2 * float(off.square().sum()) / 200)  # of Hutchinson's estimate with random signs
    for estimate in estimates:
        assert 0 < abs(float(estimate) - float(hessian.trace())) < 4 * error
    assert not torch.equal(*estimates)


def test_samplers_have_the_temperature_they_were_given():
    """BAOAB is exact on harmonic wells; Euler–Maruyama is too hot by 1/(1 − hk/2) in each. 4 standard errors."""
    τ, h = 0.3, 0.4
    ens = tether.Replicas(Wells, n=10)
    opt = tether.methods.langevin(ens, lr=h, friction=1.0, temperature=τ, word="BAOAB")
    draws = tether.sample(ens, opt, None, energy, draws=150, thin=3, burn_in=60)
    found = measure.configurational_temperature(ens[0], loss=energy, draws=draws)
    assert found.laplacians.shape == (10, 150)
    assert found.error < 0.02 * τ
    assert abs(found.mean - τ) < 4 * found.error
    assert abs(found.virial - τ) < 4 * found.virial_error
    ens = tether.Replicas(Wells, n=10)
    opt = tether.methods.sgld(ens, lr=h, temperature=τ)
    draws = tether.sample(ens, opt, None, energy, draws=150, thin=3, burn_in=60)
    found = measure.configurational_temperature(ens[0], loss=energy, draws=draws)
    model = Wells()
    k = torch.cat([model.ka, model.kb.flatten()])
    assert abs(found.mean - float(τ * (k / (1 - h * k / 2)).sum() / k.sum())) < 4 * found.error
    assert abs(found.virial - float(τ * (1 / (1 - h * k / 2)).mean())) < 4 * found.virial_error
    assert found.mean > τ + 10 * found.error


def test_draws_may_be_state_dicts_and_replicas_give_a_list():
    ens = tether.Replicas(Wells, n=3)
    with torch.no_grad():
        for x in ens.parameters():
            x.normal_(generator=torch.Generator().manual_seed(0))
    found = measure.configurational_temperature(ens, loss=energy)
    pooled = measure.configurational_temperature(Wells(), loss=energy, draws=[ens[i].state_dict() for i in range(3)])
    assert pooled.gradient_squares.flatten().tolist() == [float(one.gradient_squares) for one in found]
    assert pooled.mean == pytest.approx(np.mean([one.mean for one in found]))


def test_bad_input_is_named():
    model = Wells()
    with pytest.raises(ValueError, match="give data, or the energy itself"):
        measure.configurational_temperature(model)
    with pytest.raises(ValueError, match="a draw lacks 'b'"):
        measure.configurational_temperature(model, loss=energy, draws=[{"a": model.a}])
    with pytest.raises(ValueError, match="draws is empty"):
        measure.configurational_temperature(model, loss=energy, draws=[])
    with pytest.raises(ValueError, match="probes=-1 must be 0"):
        measure.configurational_temperature(model, loss=energy, probes=-1)
    with pytest.raises(ValueError, match="no parameter requires a gradient"):
        measure.configurational_temperature(Wells().requires_grad_(False), loss=energy)
    hill = measure.configurational_temperature(model, loss=lambda m: -energy(m))
    assert math.isnan(hill.mean)
    assert "none, as ⟨ΔU⟩ ≤ 0" in str(hill)


class Hugging(nn.Module):
    """Takes and gives dictionaries, as Hugging Face's models do, with a loss of its own."""

    def __init__(self):
        super().__init__()
        self.k = nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, inputs, labels=None):
        logits = inputs @ self.k
        return {"logits": logits, "loss": (logits - labels).square().mean() / 2}


def test_dictionaries_with_the_model_s_own_loss():
    """Linear regression: ∇U = ⟨(x·k − y) x⟩ and ΔU = ⟨|x|²⟩, over all 3 rows of both batches."""
    x, y = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]), torch.tensor([0.0, 0.0, 0.0])
    data = [{"inputs": x[:2], "labels": y[:2]}, {"inputs": x[2:], "labels": y[2:]}]
    found = measure.configurational_temperature(Hugging(), data)
    # residuals 1, 4, 3: ∇U = (1 + 3, 8 + 3)/3, ΔU = (1 + 4 + 2)/3
    assert float(found.gradient_squares) == pytest.approx((16 + 121) / 9)
    assert float(found.laplacians) == pytest.approx(7 / 3)
    assert found.virial == pytest.approx((1 * 4 + 2 * 11) / 3 / 2)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 8))

    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x * self.w, x, x * self.w).sum((1, 2, 3))


def test_attention_has_second_derivatives():
    """Central differences of U in double precision, to 1e-5."""
    x, y = torch.randn(3, 1, 5, 8, generator=torch.Generator().manual_seed(0)).double(), torch.zeros(3).double()
    model, h = Attention().double(), 1e-3
    found = measure.configurational_temperature(model, (x, y), nn.functional.mse_loss)
    w = model.w.detach().clone()

    @torch.no_grad()
    def energy_at(v):
        model.w.copy_(v)
        return float(nn.functional.mse_loss(model(x), y))

    steps = h * torch.eye(8).double()
    expected = sum(energy_at(w + e) + energy_at(w - e) - 2 * energy_at(w) for e in steps) / h**2
    assert float(found.laplacians) == pytest.approx(expected, rel=1e-5)


# Histograms over time


def test_histograms_count_every_value_once():
    net = nn.Linear(4, 2)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[-1.5, -1.0, -0.5, 0.0], [0.49, 0.5, 1.0, 7.0]]))
        net.bias.copy_(torch.tensor([0.2, float("nan")]))
    opt = torch.optim.SGD(net.parameters(), lr=0.0)
    record = tether.train(
        net, opt, None, lambda m: m.weight.sum(), steps=2, log_every=1, callbacks=[measure.histograms((-1, 1), 4)]
    )
    found = measure.distributions(record)
    assert found.steps == [1, 2]
    assert found.edges.tolist() == [-1, -0.5, 0, 0.5, 1]
    assert found.counts["weight"].tolist() == [[1, 1, 2, 2]] * 2  # bins hold their lower edge, the last both
    assert found.outside["weight"].tolist() == [2, 2]
    assert found.counts["bias"].tolist() == [[0, 0, 1, 0]] * 2
    assert found.outside["bias"].tolist() == [1, 1]
    assert found.near_zero("weight", 0.5).tolist() == [3 / 8] * 2


def test_histograms_of_replicas_are_one_and_survive_a_checkpoint(tmp_path):
    def run(steps, checkpoint=None):
        ens = tether.Replicas(lambda: nn.Linear(5, 3), n=4)
        opt = tether.methods.sgld(ens, lr=0.1, temperature=1.0)
        quadratic = lambda m: m.weight.square().sum((1, 2)) / 2  # noqa: E731
        callbacks = [measure.histograms(where="weight")]
        return ens, tether.train(
            ens, opt, None, quadratic, steps=steps, log_every=10, callbacks=callbacks, checkpoint=checkpoint
        )

    ens, record = run(40)
    found = measure.distributions(record)
    assert list(found.counts) == ["weight"]
    expected, _ = np.histogram(ens.weight.detach().double().numpy(), 60, (-3, 3))
    assert found.counts["weight"][-1].tolist() == expected.tolist()
    run(20, tmp_path / "run.pt")
    resumed = measure.distributions(run(40, tmp_path / "run.pt")[1])
    np.testing.assert_array_equal(resumed.counts["weight"], found.counts["weight"])
    with pytest.raises(ValueError, match=r"limits=\(1, -1\)"):
        measure.histograms((1, -1))
    with pytest.raises(ValueError, match="where='x' matches no parameter"):
        measure.histograms(where="x")(1, ens, None)
    with pytest.raises(ValueError, match="holds no histograms"):
        measure.distributions(tether.train.__globals__["Record"]())


def test_results_print_as_one_line_and_draw_themselves():
    plt = pytest.importorskip("matplotlib.pyplot")
    ens = tether.Replicas(Wells, n=2)
    opt = tether.methods.langevin(ens, lr=0.3, friction=1.0, temperature=0.5)
    callbacks = [measure.thermometer, measure.histograms()]
    record = tether.train(ens, opt, None, energy, steps=60, log_every=5, callbacks=callbacks)
    draws = tether.sample(ens, opt, None, energy, draws=5, thin=2)
    for found in (
        measure.equipartition(record, opt),
        measure.configurational_temperature(ens[0], loss=energy, draws=draws),
        measure.distributions(record),
    ):
        assert "\n" not in str(found)
        ax = plt.subplots()[1]
        assert found.plot(ax) is ax
        assert ax.get_xlabel()
        assert ax.get_ylabel()
        assert found.plot() is not ax
    with pytest.raises(ValueError, match="step 7 was not recorded"):
        measure.distributions(record).plot(steps=[7])
    plt.close("all")
