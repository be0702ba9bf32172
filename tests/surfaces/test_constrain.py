"""constrain() for torch's own optimizers, the soft counterparts, and thermostats that count the constraints."""

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn
from walks import faults, normal, stiefel, tall, walk

import tether
from tether.surfaces import Circle, Level, Orthogonal, SpectralBall, Sphere

OPTIMIZERS = {
    "AdamW": lambda named: torch.optim.AdamW(named, lr=0.05),
    "Adam, amsgrad": lambda named: torch.optim.Adam(named, lr=0.05, amsgrad=True),
    "SGD": lambda named: torch.optim.SGD(named, lr=0.1, momentum=0.9),
    "RMSprop": lambda named: torch.optim.RMSprop(named, lr=0.02, momentum=0.5),
}
SURFACES = {
    "circle": lambda: Circle(0.4),
    "sphere": lambda: Sphere(0.7),
    "sphere without slack": lambda: Sphere(0.7, slack=False),
    "sphere, whole weight": lambda: Sphere(0.7, per="tensor"),
    "orthogonal": Orthogonal,
    "spectral ball": lambda: SpectralBall(0.7),
    "level": lambda: Level(lambda w: stiefel(tall(w))),
}
every_optimizer = pytest.mark.parametrize("kind", OPTIMIZERS)
every_surface = pytest.mark.parametrize("name", SURFACES)


def build(kind, name, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    opt = OPTIMIZERS[kind](net.named_parameters())
    returned = tether.constrain(opt, {"*.weight": SURFACES[name]()})
    assert returned is opt
    return net, opt


def step(net, opt, i):
    x = normal(16, 3, seed=i, dtype=torch.float32)
    opt.zero_grad()
    (net(x) - torch.stack((x.sum(1).sin(), x[:, 0]), 1)).square().mean().backward()
    opt.step()


def off(net, opt, name):
    """The largest violation, and the largest normal component of the momentum, over both weights."""
    worst, across = 0.0, 0.0
    for layer in (net[0], net[2]):
        w = layer.weight.detach()
        state = opt.state[layer.weight]
        m = state.get("momentum_buffer", torch.zeros_like(w))  # Adam's moments are not projected
        m = m / m.norm().clamp_min(1.0)
        if name == "circle":
            ξ = 0.4 * torch.cos(state["point"])
            worst = max(worst, float((w**2 + ξ**2 - 0.16).abs().max()))
        elif name == "spectral ball":
            q, v = state["point"], tall(w)
            worst = max(worst, float((q.mT @ q / 0.49 - torch.eye(q.shape[1])).abs().max()))
            worst = max(worst, float((q[: len(v)] - v).abs().max()))
        elif name == "sphere, whole weight":
            worst = max(worst, float((w.square().sum() - 0.49).abs()))
            across = max(across, float((w * m).sum().abs()))
        elif name.startswith("sphere"):
            q = state["point"] if name == "sphere" else w
            worst = max(worst, float((q.square().sum(1) - 0.49).abs().max()))
            worst = max(worst, float((q[:, : w.shape[1]] - w).abs().max()))
            if name != "sphere":
                across = max(across, float((w * m).sum(1).abs().max()))
        else:
            q, v = tall(w), tall(m)
            worst = max(worst, float((q.mT @ q - torch.eye(q.shape[1])).abs().max()))
            across = max(across, float((q.mT @ v + v.mT @ q).abs().max()))
    return worst, across


@every_optimizer
@every_surface
def test_on_the_surface_after_each_step_with_momentum_along_it(kind, name):
    net, opt = build(kind, name)
    for layer in (net[0], net[2]):  # placed at once
        q = tall(layer.weight.detach())
        if name in ("orthogonal", "level"):
            assert (q.mT @ q - torch.eye(q.shape[1])).abs().max() <= 1e-6
    biases = net[0].bias.detach().clone()
    for i in range(10 if name == "level" else 40):
        step(net, opt, i)
        worst, across = off(net, opt, name)
        assert worst <= 1e-6
        assert across <= 5e-6  # RMSprop's momentum can lie almost across
    assert (net[0].bias - biases).abs().max() > 0.01


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", ["circle", "sphere", "sphere without slack", "orthogonal"])
def test_momenta_are_projected_wherever_they_lie(name, count, layout):
    """One weight of a shape is projected in place, several as a stack, others than contiguous ones in a copy."""
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Conv2d(4, 4, 3, padding=1) for _ in range(count)]).to(memory_format=layout)
    opt = torch.optim.SGD(net.named_parameters(), lr=0.05, momentum=0.9)
    tether.constrain(opt, {"*.weight": SURFACES[name]()})
    for i in range(3):
        opt.zero_grad()
        net(normal(2, 4, 5, 5, seed=i, dtype=torch.float32)).square().mean().backward()
        before = [opt.state[layer.weight].get("momentum_buffer", torch.zeros(1)).clone() for layer in net]
        opt.step()
        for layer, m in zip(net, before, strict=True):
            w, grad, after = layer.weight.detach(), layer.weight.grad, opt.state[layer.weight]["momentum_buffer"]
            v = (0.9 * m + grad).double()
            if name == "circle":
                expected = v * (1 - (w.double() / 0.4) ** 2)
            elif name == "orthogonal":
                q, u = tall(w.double()), tall(v)
                flat = u - 0.5 * q @ (u.mT @ q + q.mT @ u)
                expected = (flat if w.flatten(1).shape[0] >= w.flatten(1).shape[1] else flat.mT).reshape(w.shape)
            else:
                rows, u = w.flatten(1).double(), v.flatten(1)
                expected = (u - rows * (rows * u).sum(1, keepdim=True) / 0.49).view_as(w)
            assert (after - expected).abs().max() <= 1e-6 * max(1.0, float(v.abs().max()))


@pytest.mark.parametrize("name", ["orthogonal", "sphere", "sphere without slack"])
def test_adam_makes_no_giant_steps_behind_units_that_are_off(name):
    """Their weights have no gradient, so no second moment: a projected first moment would be divided by nearly 0."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 1))
    with torch.no_grad():
        net[0].bias[:3] = -10.0  # off for good
    opt = tether.constrain(
        torch.optim.AdamW(net.named_parameters(), lr=1e-3, weight_decay=0.0), {"2.weight": SURFACES[name]()}
    )
    for i in range(20):
        before = net[2].weight.detach().clone()
        opt.zero_grad()
        net(normal(16, 6, seed=i, dtype=torch.float32)).square().mean().backward()
        opt.step()
        assert (net[2].weight - before).abs().max() < 0.01


def test_it_learns():
    x = normal(64, 3, seed=1, dtype=torch.float32)
    for kind in ("AdamW", "SGD"):
        net, opt = build(kind, "orthogonal")
        target = torch.stack((x.sum(1).sin(), x[:, 0]), 1)
        before = float((net(x) - target).square().mean().detach())
        for i in range(60):
            step(net, opt, i)
        assert float((net(x) - target).square().mean().detach()) < 0.5 * before


@every_optimizer
@every_surface
def test_a_checkpoint_resumes_exactly(kind, name):
    net, opt = build(kind, name)
    steps = 3 if name == "level" else 8
    for i in range(steps):
        step(net, opt, i)
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    twin, other = build(kind, name, seed=5)
    twin.load_state_dict(saved["net"])
    other.load_state_dict(saved["opt"])
    for i in range(steps, 2 * steps):
        step(net, opt, i)
        step(twin, other, i)
    for x, y in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.equal(x, y)
    for x, y in zip(net.parameters(), twin.parameters(), strict=True):
        assert opt.state[x].keys() == other.state[y].keys()
        assert all(torch.equal(opt.state[x][k], other.state[y][k]) for k in opt.state[x] if opt.state[x][k] is not None)


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_schedulers_go_on_working(kind):
    net, opt = build(kind, "orthogonal")
    base = opt.param_groups[0]["lr"]
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 2, gamma=0.1)
    moves = []
    for i in range(6):
        before = net[0].weight.detach().clone()
        step(net, opt, i)
        moves.append(float((net[0].weight - before).norm().detach()))
        scheduler.step()
    assert opt.param_groups[0]["lr"] == pytest.approx(base * 1e-3)
    assert moves[5] < 0.1 * moves[0]
    assert off(net, opt, "orthogonal")[0] <= 1e-6


def test_a_step_of_sgd_is_the_step_and_the_projection():
    # without momentum it is the letter X at τ = 0
    for surface in (Circle(0.5), Sphere(0.9), Orthogonal()):
        start = 0.3 * normal(4, 3)
        w = nn.Parameter(start.clone())
        opt = tether.constrain(torch.optim.SGD([("w", w)], lr=0.1), {"w": surface})
        (q,), own = walk(surface, [start], "X", 0.1)
        for i in range(5):
            w.grad = q.grad = normal(4, 3, seed=i)
            opt.step()
            own.step()
            torch.testing.assert_close(w.detach(), q.detach(), rtol=0, atol=1e-12)


def test_a_parameter_without_gradient_stands_still():
    net, opt = build("AdamW", "orthogonal")
    before = net[0].weight.detach().clone()
    net[2].weight.grad = torch.ones_like(net[2].weight)
    opt.step()
    assert torch.equal(net[0].weight, before)


@every_surface
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_spoils_nothing(name, value):
    net, opt = build("AdamW", name)
    twin, other = build("AdamW", name)
    for _ in range(2):
        both = [(net, opt), (twin, other)]
        for one, mine in both:
            mine.zero_grad()
            one(torch.ones(4, 3)).square().sum().backward()
        good = net[2].weight.grad.clone()
        net[2].weight.grad[0, 1] = value
        with pytest.raises(tether.NonFiniteGradient, match=r"'2\.weight' .* of 10\)\. No parameter was moved"):
            opt.step()
        net[2].weight.grad.copy_(good)
        for _, mine in both:
            mine.step()
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), twin.parameters(), strict=True))
    assert tether.violation(opt) < 1e-5


def test_a_closure_makes_its_own_gradients_and_a_grad_scaler_skips_by_itself():
    net, opt = build("AdamW", "circle")
    net[0].weight.grad = torch.full_like(net[0].weight, math.nan)  # left by a step before

    def closure():
        opt.zero_grad()
        loss = net(torch.ones(4, 3)).square().sum()
        loss.backward()
        return loss

    opt.step(closure)
    assert not any(p.isnan().any() for p in net.parameters())
    fused = nn.Linear(3, 3)
    opt = tether.constrain(torch.optim.AdamW(fused.named_parameters(), lr=0.1, fused=True), {"weight": Circle(0.4)})
    before, scaler = fused.weight.detach().clone(), torch.amp.GradScaler("cpu", init_scale=1e38)
    scaler.scale(1e10 * fused(torch.ones(1, 3)).sum()).backward()
    scaler.step(opt)
    scaler.update()
    torch.testing.assert_close(fused.weight, before)


def test_the_first_glob_that_matches_wins():
    net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    opt = torch.optim.SGD(net.named_parameters(), lr=0.1)
    tether.constrain(opt, {"0.weight": Sphere(0.5, slack=False), "*.weight": Orthogonal()})
    torch.testing.assert_close(net[0].weight.norm(dim=1), torch.full((5,), 0.5))
    torch.testing.assert_close(net[1].weight @ net[1].weight.T, torch.eye(2), rtol=0, atol=1e-6)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda pair: pickle.loads(pickle.dumps(pair))}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("name", ["circle", "sphere", "orthogonal"])
def test_copies_and_pickles_stay_constrained(way, name):
    net, opt = build("AdamW", name)
    for i in range(5):
        step(net, opt, i)
    twin, other = COPIES[way]((net, opt))
    for i in range(5, 10):
        step(net, opt, i)
    assert not torch.equal(twin[0].weight, net[0].weight)
    for i in range(5, 10):
        step(twin, other, i)
    assert all(torch.equal(x, y) for x, y in zip(net.parameters(), twin.parameters(), strict=True))
    again, third = COPIES[way]((twin, other))  # a copy of a copy
    step(again, third, 10)
    assert off(again, third, name)[0] <= 1e-6


def test_a_copy_constrains_what_the_original_does():
    first = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    theirs = torch.optim.SGD(first["a"].named_parameters(prefix="a"), lr=0.1)
    tether.constrain(theirs, {"*.weight": Orthogonal()})
    theirs.add_param_group({"params": list(first["b"].named_parameters(prefix="b"))})
    for net, opt in ((first, theirs), copy.deepcopy((first, theirs))):
        for param in net.parameters():
            param.grad = torch.ones_like(param)
        before = net["b"].weight.detach().clone()
        opt.step()
        assert tether.orthogonal_penalty(net, "a.*").item() < 1e-10
        torch.testing.assert_close(net["b"].weight.detach(), before - 0.1)


def test_nothing_of_the_optimizer_is_replaced():
    net = nn.Linear(3, 3)
    opt = torch.optim.SGD(net.named_parameters(), lr=0.1)
    before = dict(vars(opt))
    tether.constrain(opt, {"weight": Orthogonal()})
    assert type(opt) is torch.optim.SGD
    assert vars(opt).keys() == before.keys()
    assert all(vars(opt)[name] is value for name, value in before.items())


def test_free_optimizers_of_the_same_class_are_copied_as_usual():
    build("SGD", "orthogonal")
    net = nn.Linear(3, 3)
    opt = torch.optim.SGD(net.named_parameters(), lr=0.1)
    for way in COPIES.values():
        twin, other = way((net, opt))
        twin.weight.grad = torch.ones(3, 3)
        other.step()
        torch.testing.assert_close(twin.weight.detach(), net.weight.detach() - 0.1)


# Soft counterparts


def test_the_orthogonal_penalty_by_hand():
    net = nn.Sequential(nn.Linear(2, 3), nn.Conv1d(1, 1, 2))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]))
        net[1].weight.copy_(torch.tensor([[[3.0, 4.0]]]))
    # WᵀW − I = [[1, 1], [1, 4]]: 1 + 1 + 1 + 16; the other is wide: wwᵀ − 1 = 24
    penalty = tether.orthogonal_penalty(net)
    assert penalty.item() == 19 + 24**2
    assert tether.orthogonal_penalty(net, "0.*").item() == 19
    penalty.backward()
    # d/dW ‖WᵀW − I‖² = 4 W (WᵀW − I)
    torch.testing.assert_close(net[0].weight.grad, 4 * net[0].weight @ torch.tensor([[1.0, 1.0], [1.0, 4.0]]))
    assert net[0].bias.grad is None
    with pytest.raises(ValueError, match=r"'3.*' matches no weight matrix"):
        tether.orthogonal_penalty(net, "3.*")


def test_the_orthogonal_penalty_vanishes_on_the_surface():
    net, _ = build("SGD", "orthogonal")
    assert tether.orthogonal_penalty(net).item() < 1e-10


def test_decay_groups_by_hand():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(2, 2))
    net[2].bias.requires_grad_(False)
    groups = tether.decay_groups(net, 0.1)
    assert [[name for name, _ in group["params"]] for group in groups] == [
        ["0.weight", "2.weight"],
        ["0.bias", "1.weight", "1.bias"],
    ]
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    opt = torch.optim.SGD(groups, lr=0.5)
    start = net[2].weight.detach().clone()
    for param in net.parameters():
        param.grad = torch.zeros_like(param)
    norm = net[1].weight.detach().clone()
    opt.step()
    torch.testing.assert_close(net[2].weight.detach(), start * (1 - 0.5 * 0.1))
    assert torch.equal(net[1].weight, norm)


# Degrees of freedom: N minus the constraints

DEGREES = {
    "circle": (Circle(0.5), (40, 10), 400),
    "sphere": (Sphere(0.5), (40, 10), 400),
    "sphere without slack": (Sphere(0.5, slack=False), (100, 4), 300),
    "sphere, whole weight": (Sphere(0.5, per="tensor"), (20, 15), 299),
    "sphere, rows of their own norm": (Sphere(None), (100, 4), 300),
    "stiefel": (Orthogonal(), (20, 15), 300 - 120),
    "stiefel, wide": (Orthogonal(), (15, 20), 300 - 120),
    "scaled": (Orthogonal(scale=2.0), (20, 15), 300 - 120),
    "spectral ball": (SpectralBall(0.5), (20, 15), 300 + 120),
    "spectral ball, wide": (SpectralBall(0.5), (15, 20), 300 + 120),
    "level": (Level(stiefel), (6, 4), 24 - 10),
}


def start_of(shape):
    """Near every one of the surfaces."""
    q = torch.linalg.qr(tall(normal(*shape)))[0]
    return 0.4 * (q if shape[0] >= shape[1] else q.mT)


@pytest.mark.parametrize("name", DEGREES)
def test_the_temperature_is_that_of_the_free_directions(name):
    surface, shape, degrees = DEGREES[name]
    (q,), opt = walk(surface, [start_of(shape)], "OBA", 0.01, friction=1e4, temperature=0.3)
    opt.step()  # momenta are drawn afresh
    p = opt.state[q]["momentum"]
    assert opt.temperature()["*"] == pytest.approx(p.square().sum().item() / degrees, rel=1e-12)
    means = []
    for _ in range(20 if name == "level" else 60):
        opt.step()
        means.append(opt.temperature()["*"])
    # pᵀp/τ is χ² with as many degrees of freedom
    error = 0.3 * math.sqrt(2 / degrees / len(means))
    assert abs(sum(means) / len(means) - 0.3) < 4 * error


@pytest.mark.parametrize("name", ["circle", "sphere", "sphere without slack", "stiefel", "spectral ball"])
def test_the_thermostat_holds_the_temperature(name):
    # gradient noise heats; E cools to pᵀp = Nτ with the N that counts
    surface, shape, degrees = DEGREES[name]
    τ = 0.05
    fields = {"temperature": τ, "noise": 0.1, "coupling": 2.0, "normalised": True, "thermostat": 0.2}
    (q,), opt = walk(surface, [0.3 * normal(*shape, dtype=torch.float32)], "BACDEDCAB", 0.05, **fields)
    found = []
    for step in range(2000):
        q.grad.copy_(0.5 * normal(*shape, seed=step, dtype=torch.float32))
        opt.step()
        if step >= 500:
            found.append(opt.state[q]["momentum"].square().sum().item() / degrees)
    assert sum(found) / len(found) == pytest.approx(τ, rel=0.03)
    assert faults(opt, surface)[0] <= 1e-6


@pytest.mark.parametrize("name", DEGREES)
def test_the_letter_e_by_hand(name):
    surface, shape, degrees = DEGREES[name]
    fields = {"temperature": 0.3, "noise": 0.0, "thermostat": 0.0, "coupling": 0.07}
    _, opt = walk(surface, [start_of(shape)], "BACDEDCAB", 0.1, **fields)
    opt.step()  # at rest, no force, no noise: pᵀp = 0
    assert float(opt.param_groups[0]["thermostat"]) == pytest.approx(-0.1 * 0.07 * degrees * 0.3, rel=1e-6)


def test_deepcopy_of_a_constrained_tether_optimizer_is_independent():
    (q,), opt = walk(Sphere(0.5), [0.1 * normal(3, 2)], "OBA", 0.1)
    opt.step()
    twin = copy.deepcopy(opt)
    q.grad.fill_(1.0)
    opt.step()
    assert not torch.equal(twin.param_groups[0]["params"][0], q)
