"""Mass and friction, one for all or for each entry: the equations, exact averages, engines, replicas, refusals."""

import copy
import io
import math

import numpy as np
import pytest
import torch
from chains import covariance, linear_fit
from torch import nn

import tether
from fitting import used
from tether import letters

MASSES, FRICTIONS = (0.25, 1.0, 4.0), (0.5, 3.0, math.inf)
MIXED = torch.tensor([0.3, 1.0, 2.5, 7.0], dtype=torch.float64)


def test_letters_with_a_mass_by_hand():
    h, m, γ, τ, σ, ξ = 0.2, 3.0, 0.7, 0.4, 0.1, 0.5
    assert letters.A(1.0, 2.0, h, m) == 1.0 + h * 2.0 / m
    assert letters.S(1.0, 2.0, h, m) == 1.0 - h * 2.0 / m
    heat = τ * m * (1 - math.exp(-2 * γ * h))
    assert letters.O(2.0, 0.3, h, γ, τ, m) == pytest.approx(math.exp(-γ * h) * 2 + math.sqrt(heat) * 0.3, rel=1e-14)
    assert letters.D(2.0, 0.3, h, σ, m) == pytest.approx(2.0 + σ * math.sqrt(m * h) * 0.3, rel=1e-14)
    spread = m * (1 - math.exp(-2 * ξ * h)) / (2 * ξ)
    assert letters.F(2.0, 0.3, ξ, h, σ, m) == pytest.approx(
        math.exp(-ξ * h) * 2 + σ * math.sqrt(spread) * 0.3, rel=1e-14
    )
    assert letters.E(ξ, 6.0, 5, h, 0.1, τ, m) == pytest.approx(ξ + h * 0.1 * (6.0 / m - 5 * τ), rel=1e-14)


def steps_of_entries(word, h, temperature):
    """For each of three entries with masses and frictions of their own the 2 × 4 matrix of a real step."""
    m, γ = (torch.tensor(x, dtype=torch.float64).view(3, 1) for x in (MASSES, FRICTIONS))
    q = nn.Parameter(torch.zeros(3, 32, dtype=torch.float64))
    opt = tether.Optimizer([("q", q)], lr=h, word=word, mass=m, friction=γ, temperature=temperature)
    q.grad = torch.zeros_like(q)
    opt.step()
    start, p, g = torch.randn(3, 3, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    R = tether.noise.reference(96, seed=0, step=1, draw=0, name="q", dtype=torch.float64).view(3, 32)
    q.data.copy_(start)
    q.grad.copy_(g)
    opt.state[q]["momentum"].copy_(p)
    opt.step()
    given = torch.stack((start, p, g, R), dim=2).numpy()
    found = torch.stack((q.detach(), opt.state[q]["momentum"]), dim=2).numpy()
    return [linear_fit(x, y) for x, y in zip(given, found, strict=True)]


@pytest.mark.parametrize(("h", "temperature"), [(0.1, 1.0), (0.8, 0.25)])
def test_averages_on_the_harmonic_well_are_exact_for_every_entry(h, temperature):
    for step, m in zip(steps_of_entries("BAOAB", h, temperature), MASSES, strict=True):
        found = covariance(step)
        assert found[0, 0] == pytest.approx(temperature, rel=1e-10)  # of the mass it does not depend
        assert found[1, 1] == pytest.approx(temperature * m, rel=1e-10)
    for step, m in zip(steps_of_entries("OBABO", h, temperature), MASSES, strict=True):
        assert covariance(step)[0, 0] == pytest.approx(temperature / (1 - h**2 / (4 * m)), rel=1e-10)


def network(dtype=torch.float64):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4)).to(dtype)


def trained(net, opt, steps=6):
    x = torch.linspace(-1, 1, 15).view(5, 3).to(next(net.parameters()).dtype)

    def closure():
        opt.zero_grad()
        loss = net(x).square().sum()
        loss.backward()
        return loss

    for _ in range(steps):
        opt.step(closure)
    return torch.cat([p.detach().flatten() for p in net.parameters()])


EVERY = [("BAOAB", {}), ("OBABO", {}), ("BACDEDCAB", {"noise": 0.3}), ("BAFEFAB", {"noise": 0.3})]
EVERY += [("MS", {"lr": 0.01})]  # whose step is h, not h²: a long one enlarges rounding errors


@pytest.mark.parametrize(("word", "more"), EVERY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mass", [MIXED, 2.5], ids=["each", "one"])
def test_the_engines_agree(word, more, dtype, mass):
    fields = used(word, friction=0.5 * MIXED, temperature=0.05) | more | {"mass": mass}
    parts = [tether.Part("0.weight", mass=1.0, **used(word, friction=1.0)), tether.Part("*")]
    found = []
    for foreach in (None, False):
        net = network(dtype)
        opt = tether.Optimizer(net, parts, word=word, foreach=foreach, **{"lr": 0.1} | fields)
        found.append((trained(net, opt), opt.temperature()["*"]))
    (one, hot), (other, warm) = found
    fine = dtype is torch.float64
    torch.testing.assert_close(one, other, rtol=1e-12 if fine else 1e-4, atol=1e-12 if fine else 1e-5)
    assert hot == pytest.approx(warm, rel=1e-3)


def test_a_tensor_of_equal_masses_is_one_mass_and_the_temperature_divides_by_it():
    ends = []
    for mass in (2.0, torch.tensor(2.0), torch.full((4,), 2.0)):
        net = network()
        parts = [tether.Part("0.weight"), tether.Part("*", mass=mass)]
        opt = tether.Optimizer(net, parts, lr=0.1, word="BACDEDCAB", temperature=0.05)
        ends.append(trained(net, opt))
        p = torch.cat([opt.state[x]["momentum"].flatten() for x in opt.param_groups[1]["params"]])
        assert opt.temperature()["*"] == pytest.approx(float(p.square().mean()) / 2, rel=1e-12)
    torch.testing.assert_close(ends[0], ends[1], rtol=0, atol=1e-14)
    torch.testing.assert_close(ends[0], ends[2], rtol=0, atol=1e-14)


# A mass m is a change of units: h' = h/√m, γ' = γ√m, p' = p/√m; ξ' = ξ√m, ε' = mε, σ' = m^¼ σ.

SURFACES = {
    "free": tether.Free(),
    "circle": tether.Circle(2.0),
    "sphere": tether.Sphere(2.0),
    "orthogonal": tether.Orthogonal(),
    "level": tether.Level(lambda w: w.square().sum() - 1),
}


@pytest.mark.parametrize("on", SURFACES.values(), ids=SURFACES)
@pytest.mark.parametrize("word", ["BAOAB", "OBA", "BACDEDCAB"])
@pytest.mark.parametrize("foreach", [None, False])
def test_one_mass_is_a_change_of_units_on_every_surface(on, word, foreach):
    m, ends = 3.0, []
    for mass in (1.0, m):
        k = math.sqrt(m / mass)
        q = nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3))
        fields = {"friction": 0.5 * k, "temperature": 0.2, "coupling": 0.1 * k * k, "noise": 0.3 * math.sqrt(k)}
        fields = used(word, **fields) | ({"thermostat": 0.2 * k} if "C" in word else {})
        opt = tether.Optimizer([("q", q)], lr=0.1 / k, word=word, on=on, mass=mass, foreach=foreach, **fields)
        for step in range(6):
            q.grad = torch.sin(q.detach() + step)
            opt.step()
        ends.append((q.detach(), opt.state[q]["momentum"] * k, opt.temperature()["*"]))
    for one, other in zip(*ends, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_every_weight_on_a_circle_may_have_its_own_mass_and_friction():
    start = torch.linspace(-0.9, 0.9, 4, dtype=torch.float64)

    def end(mass, friction, of):
        q = nn.Parameter(start.clone())
        on = tether.Circle(1.0)
        opt = tether.Optimizer([("q", q)], lr=0.2, word="BAOAB", on=on, mass=mass, friction=friction, temperature=0.1)
        for step in range(5):
            q.grad = torch.cos(q.detach() * (step + 1))
            opt.step()
        return q.detach()[of], opt.state[q]["momentum"][of]

    together = end(MIXED, 0.5 * MIXED, slice(None))
    for i, m in enumerate(MIXED.tolist()):
        for one, other in zip(end(m, 0.5 * m, i), together, strict=True):
            assert float(one) == pytest.approx(float(other[i]), abs=1e-13)


# Replicas


def test_replicas_have_masses_for_each_entry_or_one_each():
    n, x = 3, torch.linspace(-1, 1, 12).view(6, 2)

    def ends(mass, of=None):
        nets = tether.Replicas(lambda: nn.Linear(2, 4), n, seed=1)
        params = nets.named_parameters() if of is None else [(k, v) for k, v in nets.named_parameters() if k == of]
        opt = tether.Optimizer(params, lr=0.1, word="BAOAB", mass=mass, temperature=0.1)
        for _ in range(4):
            opt.zero_grad()
            nets(x).square().sum().backward()
            opt.step()
        return torch.cat([p.detach().reshape(n, -1) for p in nets.parameters()], 1), opt

    each, opt = ends(torch.tensor([1.0, 2.0, 5.0]))  # length n: one for each replica
    for i, m in enumerate((1.0, 2.0, 5.0)):
        alone, other = ends(m)
        torch.testing.assert_close(alone[i], each[i], rtol=0, atol=1e-6)
        assert opt.temperature()["*"][i] == pytest.approx(float(other.temperature()["*"][i]), rel=1e-4)
    entries, _ = ends(torch.full((4,), 2.0), of="bias")
    torch.testing.assert_close(entries, ends(2.0, of="bias")[0], rtol=0, atol=1e-6)


def test_a_shape_that_may_mean_replicas_or_entries_is_refused_with_both_ways_out():
    nets = tether.Replicas(lambda: nn.Linear(2, 4), 4)
    biases = [("bias", dict(nets.named_parameters())["bias"])]
    mass = torch.ones(4)
    with pytest.raises(
        ValueError, match=r"mass=x\.view\(4, 1\) for one number for each replica, or mass=x\.view\(1, 4"
    ):
        tether.Optimizer(biases, lr=0.1, word="BAOAB", mass=mass)
    tether.Optimizer(biases, lr=0.1, word="BAOAB", mass=mass.view(4, 1))
    tether.Optimizer(biases, lr=0.1, word="BAOAB", mass=mass.view(1, 4))
    tether.Optimizer(nets, lr=0.1, word="BAOAB", friction=torch.ones(4))  # weights have two entries along that axis


# What is refused, kept and shown


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"mass": 0.0}, "mass=0.0 is out of range; mass must be finite and > 0"),
        ({"mass": torch.tensor([[1.0, -1.0]])}, "an entry of mass=-1.0 is out of range"),
        ({"mass": torch.tensor([1.0, math.nan])}, "an entry of mass"),
        ({"mass": torch.ones(7)}, r"mass has shape \(7,\) and a parameter \(4, 3\): .* broadcast"),
        ({"friction": torch.ones(2, 2)}, r"friction has shape \(2, 2\)"),
        ({"mass": torch.ones(2, 2, dtype=torch.int64)}, "must hold real numbers"),
        ({"mass": torch.ones(4, 3), "on": tether.Orthogonal()}, "entries do not move by themselves"),
        ({"mass": torch.ones(3), "metric": tether.Path()}, "so does the metric"),
        ({"lr": torch.ones(4, 3)}, "is not a number; lr must be finite"),
    ],
)
def test_what_is_refused(fields, match):
    net = nn.Linear(3, 4)
    parts = [tether.Part("weight", **fields), tether.Part("*")]
    with pytest.raises((TypeError, ValueError), match=match):
        tether.Optimizer(net, parts, lr=0.1, word="BAOAB")


def test_an_unused_mass_warns_and_the_default_does_not():
    with pytest.warns(UserWarning, match="mass=2.0 has no effect: the word 'X' has no letter that uses m"):
        tether.Optimizer(nn.Linear(2, 2), lr=0.1, mass=2.0)
    tether.Optimizer(nn.Linear(2, 2), lr=0.1, mass=1.0)


def test_checkpoints_copies_schedules_and_the_table():
    net = network()
    parts = [tether.Part("0.weight"), tether.Part("*", mass=MIXED.clone(), friction=MIXED.clone())]
    opt = tether.Optimizer(net, parts, lr=0.1, word="BAOAB", temperature=0.1)
    assert "0.3 … 7" in opt.describe().splitlines()[3]
    trained(net, opt)
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, file)
    saved = copy.deepcopy(net), copy.deepcopy(opt.state_dict())
    end = trained(net, opt)
    twin = saved[0]
    again = tether.Optimizer(twin, parts, lr=0.1, word="BAOAB", temperature=0.1)
    file.seek(0)
    again.load_state_dict(torch.load(file, weights_only=True)["opt"])
    torch.testing.assert_close(trained(twin, again), end, rtol=0, atol=0)

    anneal = tether.Schedule(opt, "mass", lambda t: 2.0**t, where="*")
    anneal.step()
    torch.testing.assert_close(opt.param_groups[1]["mass"], 2 * MIXED)
    opt.param_groups[1]["mass"] = -MIXED
    with pytest.raises(ValueError, match="an entry of mass"):
        trained(net, opt)


def test_parameters_without_a_gradient_stand_still_and_others_keep_their_own_masses():
    ends = []
    for frozen in (False, True):
        a, b, c = (nn.Parameter(torch.ones(4, dtype=torch.float64)) for _ in range(3))
        named = [("a", a), ("b", b), ("c", c)]
        opt = tether.Optimizer(named, lr=0.1, word="BAOAB", mass=MIXED, temperature=0.1)
        for step in range(4):
            for _, x in named:
                x.grad = torch.sin(x.detach() + step)
            if frozen:
                b.grad = None
            opt.step()
        ends.append((a.detach(), c.detach()))
    for one, other in zip(*ends, strict=True):
        assert torch.equal(one, other)


def test_asleep_and_slow_parts_have_masses():
    for more in ({"asleep": 0.5, "nap": 2}, {"every": 2}):
        ends = []
        for mass in (2.0, torch.full((4,), 2.0)):
            net = network()
            parts = [tether.Part("0.weight"), tether.Part("*", mass=mass, **more)]
            opt = tether.Optimizer(net, parts, lr=0.1, word="OBA", temperature=0.1)
            for _ in range(6):
                opt.zero_grad()
                net(torch.ones(2, 3, dtype=torch.float64)).square().sum().backward()
                opt.step()
            opt.release()
            ends.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
        torch.testing.assert_close(*ends, rtol=0, atol=1e-13)


@pytest.mark.parametrize("mass", [100.0, torch.tensor([1.0, 10.0, 100.0, 1000.0])], ids=["one", "each"])
def test_a_metropolis_test_knows_the_masses(mass):
    x = nn.Parameter(torch.ones(4, dtype=torch.float64))
    rhythm = tether.Metropolis(5)
    opt = tether.Optimizer(
        [("x", x)], lr=0.1, word="OBAB", friction=math.inf, temperature=1.0, mass=mass, rhythm=rhythm
    )

    def closure():
        opt.zero_grad()
        loss = x.square().sum() / 2
        loss.backward()
        return loss

    for _ in range(40):
        opt.step(closure)
    assert opt.acceptance > 0.95  # ΔH is of the order of h²


# Nosé–Hoover: the word BACECAB


def nose_hoover(h, steps, coupling, q=1.6, mass=1.0):
    """(q, p at the same time, ξ, the integral of ξ) after every step on the harmonic well at τ = 1."""
    x = nn.Parameter(torch.tensor([q], dtype=torch.float64))
    fields = {"coupling": coupling, "temperature": 1.0, "thermostat": 0.0, "mass": mass}
    opt = tether.Optimizer([("x", x)], lr=h, word="BACECAB", **fields)
    rows, integral = [], 0.0
    for _ in range(steps):
        x.grad = x.detach().clone()
        before = float(opt.param_groups[0]["thermostat"])
        opt.step()
        after = float(opt.param_groups[0]["thermostat"])
        integral += h * (before + after) / 2
        momentum = float(opt.state[x]["momentum"]) - h / 2 * float(x)  # the second half of the kick
        rows.append((float(x), momentum, after, integral))
    return np.array(rows)


@pytest.mark.parametrize("mass", [1.0, 2.0])
def test_nose_hoover_conserves_its_energy_to_second_order(mass):
    # pᵀp/2m + U + ξ²/2ε + Nτ∫ξ dt
    errors = []
    for h in (0.1, 0.05):
        q, p, ξ, integral = nose_hoover(h, round(60 / h), 0.5, mass=mass).T
        energy = p**2 / (2 * mass) + q**2 / 2 + ξ**2 / (2 * 0.5) + integral
        errors.append(np.abs(energy - 1.6**2 / 2).max())
        half = len(energy) // 2
        assert abs(energy[half:].mean() - energy[:half].mean()) < 0.2 * errors[-1]  # no drift
    assert errors[0] < 0.02
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.05)


def test_nose_hoover_alone_does_not_sample_the_harmonic_well_and_noise_mends_it():
    # Gibbs: q² + p² < 0.3 with probability 1 − e^{−0.15} = 0.139
    q, p, _, _ = nose_hoover(0.1, 5000, 0.1).T
    assert (p**2).mean() == pytest.approx(1, rel=0.05)  # the kinetic temperature is right
    assert (q**2 + p**2).min() > 0.3  # and yet the orbit stays on a torus around the origin
    x = nn.Parameter(torch.full((400,), 1.6, dtype=torch.float64))
    opt = tether.Optimizer([("x", x)], lr=0.1, word="BACDEDCAB", coupling=0.1 / 400, temperature=1.0, noise=1.0)
    inside = []
    for step in range(900):
        x.grad = x.detach().clone()
        opt.step()
        if step >= 300 and step % 10 == 0:
            momenta = opt.state[x]["momentum"] - 0.05 * x.detach()
            inside.append(float((x.detach() ** 2 + momenta**2 < 0.3).double().mean()))
    assert np.mean(inside) == pytest.approx(1 - math.exp(-0.15), abs=0.02)


@pytest.mark.parametrize(
    ("on", "value", "match"),
    [
        (tether.Orthogonal(), torch.rand(6, 6) + 0.5, "entries do not move by themselves"),
        (tether.Sphere(1.0), torch.rand(6, 6) + 0.5, "entries do not move by themselves"),
        (tether.Free(), torch.ones(5), "has shape .5,. and a parameter .6, 6."),
    ],
    ids=["orthogonal", "sphere", "shape"],
)
@pytest.mark.parametrize("field", ["mass", "friction"])
def test_numbers_for_entries_that_are_set_between_steps_are_checked_too(field, on, value, match):
    net = torch.nn.Linear(6, 6)
    opt = tether.Optimizer(net, [tether.Part("weight", on=on), tether.Part("*")], lr=0.1, word="OBA", temperature=1e-3)

    def step():
        opt.zero_grad()
        net(torch.ones(4, 6)).square().mean().backward()
        opt.step()

    step()
    before = net.weight.detach().clone()
    opt.param_groups[0][field] = value
    with pytest.raises(ValueError, match=match):
        step()
    assert torch.equal(net.weight, before)
