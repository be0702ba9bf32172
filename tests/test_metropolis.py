"""Proposals: what a step tests, what a rejection leaves behind, and what is refused."""

import copy
from math import inf, nan, tanh

import pytest
import torch
from torch import nn

import tether
from tether import Circle, Level, Metropolis, Optimizer, Orthogonal, Part, Replicas, Sphere, methods
from tether.noise import bits


def weights(n=3, seed=0, dtype=torch.float64):
    """A module with n replicas of a 4 × 2 weight and of a bias."""
    net = nn.Module()
    generator = torch.Generator().manual_seed(seed)
    net.weight = nn.Parameter(torch.randn(n, 4, 2, generator=generator, dtype=dtype) / 2)
    net.bias = nn.Parameter(torch.randn(n, 3, generator=generator, dtype=dtype))
    return net


def energy(net):
    """A smooth energy for each replica."""
    return net.weight.cos().sum((1, 2)) + net.bias.square().sum(1) + net.weight[:, 0].sum(1) * net.bias[:, 0]


def closure_of(net, opt, of=energy):
    def closure():
        opt.zero_grad()
        found = of(net)
        found.sum().backward()
        return found.detach()

    return closure


def state(net, opt):
    found = {name: x.detach().clone() for name, x in net.named_parameters()}
    for name, x in net.named_parameters():
        found |= {f"{key} {name}": y.clone() for key, y in opt.state[x].items()}
    return found


def hmc(net, on=None, **fields):
    """HMC of `weights`, whose replicas are no `Replicas`, with the weight on a surface."""
    parts = [Part("weight", on=on), Part("*")] if on is not None else None
    steps = Metropolis(fields.pop("steps", 3))
    fields = {"lr": 0.05, "temperature": 0.2, **fields}
    return Optimizer(net, parts, word="OBAB", friction=inf, rhythm=steps, batch_dims=1, **fields)


SURFACES = {
    "free": None,
    "circle": Circle(2.0),
    "sphere": Sphere(2.0),
    "sphere without slack": Sphere(2.0, slack=False),
    "orthogonal": Orthogonal(),
    "level": Level(lambda w: w.square().sum() - 1),
    "level with slack": Level(lambda w, ξ: w.square().sum() + ξ.square().sum() - 4, slack=1),
}
everywhere = pytest.mark.parametrize("on", SURFACES.values(), ids=SURFACES)


def verlet(q, p, force, h, steps):
    """Verlet as it is printed."""
    for _ in range(steps):
        p = p - h / 2 * force(q)
        q = q + h * p
        p = p - h / 2 * force(q)
    return q, p


@pytest.mark.parametrize("method", ["hmc", "mala"])
def test_a_proposal_is_verlet_from_redrawn_momenta_and_the_test_is_1_65(method):
    n, τ, h, steps = 40, 0.5, 0.6, 3 if method == "hmc" else 1
    q = nn.Parameter(torch.linspace(-2, 2, n, dtype=torch.float64).unsqueeze(1))
    start = q.detach().clone()
    options = {"lr": h, "steps": steps} if method == "hmc" else {"lr": h * h / 2}
    opt = getattr(methods, method)([("q", q)], temperature=τ, batch_dims=1, seed=5, **options)

    def closure():
        opt.zero_grad()
        found = q.pow(4).sum(1) / 4
        found.sum().backward()
        return found.detach()

    opt.step(closure)
    index, replica = torch.zeros(n, 1, dtype=torch.int64), torch.arange(n).unsqueeze(1)
    p = τ**0.5 * tether.noise.at(index, tether.noise.key(5, "q"), 0, 0, torch.float64, replica)
    moved, turned = verlet(start, p, lambda q: q**3, h, steps)
    change = ((moved**4 / 4 + turned**2 / 2) - (start**4 / 4 + p**2 / 2)).flatten()
    u = (bits(1, 5, 0, "accept/", n, tuple(range(n))).flatten().double() + 0.5) / 2**32
    accepted = u < torch.exp(-change / τ)
    assert 0 < accepted.sum() < n
    torch.testing.assert_close(q.detach(), torch.where(accepted.unsqueeze(1), moved, start), rtol=0, atol=1e-12)
    assert torch.equal(opt.acceptance, accepted.double())
    if method == "mala":  # Verlet's first point is the step of X
        torch.testing.assert_close(moved, start - h * h / 2 * start**3 + h * p, rtol=0, atol=1e-12)


def test_the_ratio_of_densities_of_1_60_is_the_energy_error():
    # q(x'; x) = N(x − h U'(x), 2τh): its ratio with the target's is e^{−ΔH/τ}
    h, τ = 0.3, 0.7
    x, R = torch.randn(2, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    new, p = verlet(x, τ**0.5 * R, lambda q: q**3, (2 * h) ** 0.5, 1)

    def proposal(to, at):
        return -((to - at + h * at**3) ** 2) / (4 * τ * h)

    ratio = -(new**4 - x**4) / (4 * τ) + proposal(x, new) - proposal(new, x)
    change = (new**4 / 4 + p**2 / 2) - (x**4 / 4 + τ * R**2 / 2)
    torch.testing.assert_close(ratio, -change / τ)


@everywhere
def test_a_rejected_replica_keeps_parameters_slack_and_momenta(on):
    net = weights()
    opt = hmc(net, on)
    opt.step(closure_of(net, opt))
    before = state(net, opt)
    walls = [0]

    def walled(net):
        """After the first call replica 1 stands before a wall."""
        walls[0] += 1
        return energy(net) + torch.tensor([0.0, 1e6 if walls[0] > 1 else 0.0, 0.0], dtype=torch.float64)

    opt.step(closure_of(net, opt, walled))
    after = state(net, opt)
    assert all(torch.equal(before[key][1], after[key][1]) for key in before)
    assert not any(torch.equal(before["weight"][i], after["weight"][i]) for i in (0, 2))
    assert float(opt.violation().max()) < 1e-10


@pytest.mark.parametrize("on", [None, Sphere(2.0), Orthogonal()], ids=str)
@pytest.mark.parametrize("value", [nan, inf])
def test_a_gradient_or_an_energy_that_is_not_finite_on_the_way_is_a_rejection(on, value):
    for what in ("gradient", "energy", "both"):
        net = weights()
        opt = hmc(net, on, steps=2)
        calls, start = [], net.weight.detach().clone()

        def spoiled(net, calls=calls, what=what, opt=opt):
            calls.append(closure_of(net, opt)())
            if len(calls) == (2 if what == "gradient" else 3):
                if what != "energy":
                    net.weight.grad[1, 2, 1] = value
                if what != "gradient":
                    calls[-1][1] = value
            return calls[-1]

        opt.step(lambda spoiled=spoiled, net=net: spoiled(net))
        assert torch.equal(net.weight[1], start[1])
        assert not torch.equal(net.weight[0], start[0])
        assert opt.acceptance.tolist() == [1.0, 0.0, 1.0]
        opt.step(closure_of(net, opt))
        assert all(x.isfinite().all() for x in state(net, opt).values())


def test_without_replicas_a_bad_gradient_on_the_way_rejects_the_step():
    net = nn.Linear(3, 2)
    opt = methods.hmc(net, lr=0.1, steps=4)
    calls, start = [], copy.deepcopy(net.state_dict())

    def closure():
        calls.append(net(torch.ones(1, 3)).square().sum())
        opt.zero_grad()
        calls[-1].backward()
        if len(calls) == 3:
            net.weight.grad[0, 0] = nan
        return calls[-1].detach()

    opt.step(closure)
    assert len(calls) == 3  # no gradient is taken of what is rejected already
    assert all(torch.equal(x, start[name]) for name, x in net.state_dict().items())
    assert opt.acceptance == 0


@pytest.mark.parametrize("bad", [nan, inf])
def test_an_energy_that_is_not_finite_at_the_start_is_an_error_or_a_rest(bad):
    net = weights()
    opt = methods.hmc(net, lr=0.1, batch_dims=1)
    before = state(net, opt)
    spoilt = torch.tensor([0.0, bad, 0.0], dtype=torch.float64)
    with pytest.raises(RuntimeError, match=f"the energy of replica 1 is {bad} at the start of a proposal"):
        opt.step(closure_of(net, opt, lambda net: energy(net) + spoilt))
    assert all(torch.equal(before[key], x) for key, x in state(net, opt).items() if key in before)
    opt.on_nonfinite = "skip"
    opt.step(closure_of(net, opt, lambda net: energy(net).nan_to_num() + spoilt))
    assert torch.equal(net.weight[1], before["weight"][1])
    assert not torch.equal(net.weight[0], before["weight"][0])
    assert opt.acceptance.isnan().tolist() == [False, True, False]
    assert opt.skipped == 1


def test_stopped_replicas_stand_still_and_are_not_counted():
    net = weights()
    opt = methods.hmc(net, lr=0.05, temperature=0.1, batch_dims=1)
    opt.step(closure_of(net, opt))
    opt.stop([2])
    before = state(net, opt)
    opt.step(closure_of(net, opt))
    after = state(net, opt)
    assert all(torch.equal(before[key][2], after[key][2]) for key in before)
    assert opt.param_groups[0]["tested"][0].tolist() == [2, 2, 1]


@everywhere
def test_exact_resume(on):
    def build(net):
        return hmc(net, on, lr=0.3, steps=2)

    net, other = weights(), weights(seed=1)
    opt = build(net)
    for _ in range(3):
        opt.step(closure_of(net, opt))
    twin = build(other)
    other.load_state_dict(copy.deepcopy(net.state_dict()))
    twin.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert torch.equal(opt.acceptance, twin.acceptance)
    for _ in range(3):
        opt.step(closure_of(net, opt))
        twin.step(closure_of(other, twin))
    assert all(torch.equal(x, y) for x, y in zip(net.parameters(), other.parameters(), strict=True))
    assert torch.equal(opt.acceptance, twin.acceptance)


def test_weight_decay_is_part_of_the_energy():
    # U = 0 and ω = 4: N(0, τ/4), at a step where Verlet alone is off by 1/(1 − h²ω/4) = 1.33
    q = nn.Parameter(torch.zeros(4000, 1, dtype=torch.float64))
    opt = methods.hmc([("q", q)], lr=0.5, steps=2, temperature=0.5, weight_decay=4.0, batch_dims=1)

    def closure():
        q.grad = torch.zeros_like(q)
        return torch.zeros(4000)

    for _ in range(20):
        opt.step(closure)
    found = q.detach().square().mean().item()
    assert abs(found - 0.125) < 4 * 0.125 * (2 / 4000) ** 0.5
    assert opt.acceptance.mean() < 0.99


def test_at_temperature_0_the_energy_never_rises():
    net = weights()
    opt = methods.hmc(net, lr=0.2, steps=2, temperature=0.0, batch_dims=1)
    found = [energy(net).detach()]
    for _ in range(30):
        opt.step(closure_of(net, opt))
        found.append(energy(net).detach())
    assert (torch.stack(found).diff(dim=0) <= 1e-12).all()


def test_parts_may_have_step_sizes_of_their_own_and_temperatures_may_not():
    parts = [Part("weight", lr=0.02), Part("bias", lr=0.2)]
    fields = {"word": "OBAB", "friction": inf, "rhythm": Metropolis(3)}
    net = weights()
    opt = Optimizer(net, parts, lr=0.1, temperature=0.5, batch_dims=1, **fields)
    opt.step(closure_of(net, opt))
    opt.param_groups[1]["temperature"] = 0.25
    with pytest.raises(ValueError, match=r"temperature=0\.25 and 0\.5 of another part.* give all parts the same"):
        opt.step(closure_of(net, opt))
    with pytest.raises(ValueError, match="give all parts the same"):
        Optimizer(weights(), [Part("weight", temperature=1.0), Part("*")], lr=0.1, temperature=0.5, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"word": "OBA", "friction": inf}, "needs a reversible word: 'X' .*'OBAB' .* not 'OBA'"),
        ({"word": "BAOAB", "friction": inf}, "not 'BAOAB'"),
        ({"word": "OBAB"}, r"needs friction=inf, not 1\.0"),
        ({"word": "X", "metric": tether.Path()}, "leave out metric="),
        ({"word": "X", "merge": 3}, "do not go together"),
    ],
)
def test_what_cannot_be_tested_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Optimizer(nn.Linear(2, 2), lr=0.1, rhythm=Metropolis(2), **fields)


def test_a_table_is_tested_as_a_whole():
    with pytest.raises(ValueError, match="accepted or rejected together"):
        Optimizer(nn.Linear(2, 2), [Part("weight", rhythm=Metropolis()), Part("bias")], lr=0.1)
    parts = [Part("weight", word="OBAB"), Part("bias", word="OBABAB")]
    with pytest.raises(ValueError, match="take gradients at other moments"):
        Optimizer(nn.Linear(2, 2), parts, lr=0.1, friction=inf, rhythm=Metropolis())


@pytest.mark.parametrize("steps", [0, 1.5, True])
def test_the_number_of_steps_is_checked(steps):
    with pytest.raises(ValueError, match="must be a whole number of steps"):
        methods.hmc(nn.Linear(2, 2), lr=0.1, steps=steps)


def test_a_closure_must_return_an_energy_for_each_replica():
    net = weights()
    opt = methods.hmc(net, lr=0.1, batch_dims=1)
    with pytest.raises(ValueError, match=r"returned 1 numbers; .* one energy for each of the 3 replicas"):
        opt.step(lambda: closure_of(net, opt)().sum())
    with pytest.raises(ValueError, match=r"returned 0 numbers"):
        opt.step(lambda: print(closure_of(net, opt)()))
    with pytest.raises(ValueError, match=r"returned complex numbers"):
        opt.step(lambda: closure_of(net, opt)() + 0j)
    with pytest.raises(ValueError, match=r"returned dict; .* return losses"):
        opt.step(lambda: {"loss": closure_of(net, opt)()})


def test_an_energy_that_is_a_python_number_keeps_its_digits():
    ends = []
    for number in (float, torch.Tensor.detach):
        x = nn.Parameter(torch.ones(4, dtype=torch.float64))
        opt = methods.hmc([("x", x)], lr=1.4, steps=2)

        def closure(x=x, opt=opt, number=number):
            opt.zero_grad()
            energy = 1e9 + x.square().sum() / 2
            energy.backward()
            return number(energy.detach())

        for _ in range(12):
            opt.step(closure)
        ends.append((x.detach(), opt.acceptance))
    assert torch.equal(ends[0][0], ends[1][0])
    assert 0 < ends[0][1] < 1


@pytest.mark.parametrize(("on", "many"), [(Orthogonal(), 200), (Level(lambda w: w.square().sum() - 1), 8)])
def test_in_bfloat16_the_start_is_off_the_surface_and_proposals_are_accepted_all_the_same(on, many):
    """von Mises–Fisher with κ = 2 on the sphere, as matrices of one column: ⟨x⟩ = coth 2 − 1/2, within 4 s.e."""
    x = nn.Parameter(torch.randn(many, 3, 1, generator=torch.Generator().manual_seed(0)).bfloat16())
    fields = {"word": "OBAB", "friction": inf, "temperature": 1.0, "rhythm": Metropolis(8), "batch_dims": 1}
    opt = Optimizer([("x", x)], on=on, lr=0.15, **fields)

    def closure():
        opt.zero_grad()
        energies = -2 * x[:, 0, 0].float()
        energies.sum().backward()
        return energies.detach()

    for _ in range(5 if many > 100 else 1):
        opt.step(closure)
    assert opt.acceptance.mean() > 0.9
    assert opt.violation().max() < 0.02
    found = x.detach()[:, 0, 0].double()
    assert abs(found.mean() - (1 / tanh(2) - 0.5)) < 4 * found.std() / many**0.5


def test_the_same_parameters_must_have_gradients_all_along():
    net = weights()
    opt = methods.hmc(net, lr=0.1, batch_dims=1)
    start, calls = net.weight.detach().clone(), []

    def closure():
        calls.append(closure_of(net, opt)())
        if len(calls) == 3:
            net.bias.grad = None
        return calls[-1]

    with pytest.raises(RuntimeError, match="gradients of other parameters than at the start"):
        opt.step(closure)
    assert torch.equal(net.weight, start)


def test_surfaces_are_for_modules():
    with pytest.raises(TypeError, match="must be a surface"):
        methods.hmc(nn.Linear(2, 2), lr=0.1, on="orthogonal")
    with pytest.raises(TypeError, match="pass the model itself"):
        methods.mala(list(nn.Linear(2, 2).named_parameters()), lr=0.1, on=Orthogonal())


def test_acceptance_is_nan_where_nothing_was_proposed():
    assert methods.sgd(nn.Linear(2, 2)).acceptance != methods.sgd(nn.Linear(2, 2)).acceptance
    assert methods.hmc(Replicas(lambda: nn.Linear(2, 2), 3), lr=0.1).acceptance.isnan().tolist() == [True] * 3


class Bent(Orthogonal):
    """Drifts whose momenta, not whose points, come back otherwise."""

    def drift(self, q, p, h):
        moved, turned = super().drift(q, p, h)
        return moved, turned * torch.tensor([1.0, 1.001, 1.0], dtype=q.dtype).view(3, 1, 1)


def test_a_drift_that_returns_to_the_point_with_other_momenta_is_rejected():
    net = weights()
    opt = hmc(net, Bent(), lr=0.02, steps=1)
    for _ in range(4):
        opt.step(closure_of(net, opt))
    assert opt.acceptance[1] == 0
    assert opt.acceptance[0] > 0
    assert opt.acceptance[2] > 0


class Short(Sphere):
    """A sphere that refuses steps of replica 2."""

    reversible = False

    def drift(self, q, p, h):
        if p[2].abs().sum() > 0:
            raise tether.surfaces.SurfaceError("too long", torch.tensor([False, False, True]))
        return super().drift(q, p, h)


def test_a_step_that_a_surface_refuses_is_rejected_and_the_others_go_on():
    net = weights()
    opt = hmc(net, Short(2.0), lr=0.02, steps=2)
    before = net.weight.detach().clone()
    for _ in range(3):
        opt.step(closure_of(net, opt))
    assert torch.equal(net.weight[2], before[2])
    assert opt.acceptance[2] == 0
    assert (opt.acceptance[:2] > 0.5).all()


def test_the_loop_samples_with_the_whole_loss():
    ens = Replicas(lambda: nn.Linear(1, 1, bias=False), n=300)
    x = torch.ones(10, 1)
    opt = methods.hmc(ens, lr=0.5, steps=2, temperature=0.5)
    draws = tether.sample(ens, opt, (x, 2 * x), nn.functional.mse_loss, draws=5, thin=1, burn_in=10)
    # (w − 2)²/0.5 is a normal of variance 1/4 around 2
    found = draws["weight"].flatten()
    assert abs(found.mean().item() - 2) < 4 * 0.5 / 300**0.5
    assert abs(found.var().item() - 0.25) < 4 * 0.25 * (2 / 300) ** 0.5
    with pytest.raises(ValueError, match=r"batch=5: Metropolis\(2\) accepts by the whole loss"):
        tether.sample(ens, opt, (x, 2 * x), nn.functional.mse_loss, batch=5)
