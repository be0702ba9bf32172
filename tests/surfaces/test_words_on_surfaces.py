"""What words do on a surface, against the surface's own maps."""

import pytest
import torch
from torch import nn

from tether import Circle, Level, Optimizer, Orthogonal, SpectralBall, Sphere, letters

SURFACES = {
    "circle": lambda: Circle(1.0),
    "circles": lambda: Circle(torch.tensor(1.0)),
    "sphere": lambda: Sphere(1.0),
    "sphere without slack": lambda: Sphere(1.0, slack=False),
    "sphere, whole weight": lambda: Sphere(1.0, per="tensor"),
    "sphere, its own norm": lambda: Sphere(None, per="tensor"),
    "orthogonal": Orthogonal,
    "spectral ball": lambda: SpectralBall(1.0),
    "level": lambda: Level(lambda w: w.square().sum() - 1.0),
}


def run(surface, word, shape, steps=5, **fields):
    layer = nn.Linear(shape[1], shape[0], bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(-0.4, 0.5, shape[0] * shape[1], dtype=torch.float64).view(shape))
    opt = Optimizer(layer, lr=0.05, word=word, on=surface, **fields)
    for step in range(steps):
        g = torch.randn(shape, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        layer.weight.grad = g
        opt.step()
    return layer, opt


@pytest.mark.parametrize("name", SURFACES)
def test_without_momentum_it_is_a_drift_against_the_gradient(name):
    """M with γ = ∞ sets p = Πg, and S drifts along −p: the geodesic or RATTLE step of length h."""
    surface = SURFACES[name]()
    layer, _ = run(surface, "MS", (4, 3), steps=0, friction=float("inf"))
    start = layer.weight.detach().clone()
    moved, opt = run(SURFACES[name](), "MS", (4, 3), steps=1, friction=float("inf"))
    body = opt.rows[0].made[0]
    g = torch.randn((4, 3), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    own = body.surface
    q = own.place(start.unsqueeze(0)) if own.slack else own.lift(start.unsqueeze(0))
    p = own.tangent(q, own.lift(g.unsqueeze(0)))
    want = own.lower(own.shift(q, p, 0.05)[0], (4, 3))[0]
    torch.testing.assert_close(moved.weight.detach(), want, rtol=0, atol=1e-9)


def test_momenta_are_turned_after_a_step_of_the_surrounding_space():
    layer, opt = run(Sphere(1.0, slack=False), "X", (4, 3), steps=0)
    opt.param_groups[0]["word"] = "BAX"

    def closure():
        layer.weight.grad = torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3)
        return torch.zeros(())

    for _ in range(3):
        opt.step(closure)
    body = opt.rows[0].made[0]
    q = body.surface.lift(layer.weight.detach().unsqueeze(0))
    assert body.p.abs().max() > 1e-3
    assert (q * body.p).sum(-1).abs().max() < 1e-12


ALONG = [Circle(0.8), Sphere(0.8), Sphere(0.8, per="tensor"), Orthogonal(), SpectralBall(0.8)]


@pytest.mark.parametrize("on", ALONG, ids=repr)
def test_a_step_of_ones_own_along_momenta_is_taken_in_the_surrounding_space(on):
    """A letter that is not linear: for small steps it is the drift, and it never leaves the surface."""

    @letters.letter("θ")
    def G(θ, p, h):
        """Relativistic drift: θ ← θ + h p/√(1 + p²)."""
        return θ + h * p / torch.sqrt(1 + p * p)

    try:
        ends = []
        for word in ("BG", "BA"):
            weight = torch.nn.Parameter(torch.linspace(-0.5, 0.6, 12, dtype=torch.float64).view(4, 3))
            opt = Optimizer([("w", weight)], lr=1e-3, word=word, on=on)
            for _ in range(20):
                weight.grad = torch.linspace(1, -1, 12, dtype=torch.float64).view(4, 3)
                opt.step()
            assert opt.violation() < 1e-9
            ends.append(weight.detach().clone())
        moved = (ends[1] - ends[0]).abs().max()
        assert moved < 1e-7  # of third order in p, which is about 0.02
    finally:
        del letters.LETTERS["G"]
