"""Every letter on every surface: weights stay on Σ, momenta in the cotangent space there, and everything is finite."""

import pytest
import torch
from torch import nn

from fitting import used
from tether import Circle, Free, Level, Optimizer, Orthogonal, SpectralBall, Sphere
from tether.letters import LETTERS

# a word for each letter, alone where it can be, and a few in which it comes twice or last
WORDS = ("BAB", "OBA", "BAOAB", "ABOBA", "OBABO", "BACDEDCAB", "BAFEFAB", "X", "L", "MS", "MV", "XH")
SURFACES = {
    "free": Free,
    "circle": lambda: Circle(1.0),
    "circles": lambda: Circle(torch.tensor(1.0)),
    "sphere": lambda: Sphere(1.0),
    "spheres": lambda: Sphere(torch.tensor(1.0)),
    "sphere without slack": lambda: Sphere(1.0, slack=False),
    "sphere, whole weight": lambda: Sphere(1.0, per="tensor"),
    "sphere, its own norm": lambda: Sphere(None, per="tensor"),
    "orthogonal": Orthogonal,
    "orthogonal, random start": lambda: Orthogonal(start="random"),
    "spectral ball": lambda: SpectralBall(1.0),
    "level": lambda: Level(lambda w: w.square().sum() - 1.0),
    "level with slack": lambda: Level(lambda w, ξ: w.square().sum() + ξ.square().sum() - 2.0, slack=1),
    "two levels": lambda: Level(lambda w: torch.stack((w.square().sum() - 1.0, w.sum()))),
}
SHAPES = ((4, 3), (3, 4), (2, 2))


def test_no_letter_is_left_out():
    assert set("".join(WORDS)) == {name for name, letter in LETTERS.items() if letter.curved}


def run(surface, word, shape, foreach=True, steps=3):
    layer = nn.Linear(shape[1], shape[0], bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(-0.4, 0.5, layer.weight.numel()).view(shape).sin())
    fields = {"temperature": 1e-2, "friction": 1.0, "noise": 0.1, "coupling": 1.0}
    opt = Optimizer(layer, lr=0.05, word=word, on=surface, foreach=foreach, **used(word, **fields))
    start = layer.weight.detach().clone()
    for step in range(steps):

        def closure(step=step):
            g = torch.randn(shape, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
            layer.weight.grad = g + layer.weight.detach()
            return torch.zeros(())

        opt.step(closure)
    return layer.weight, opt, start


@pytest.mark.parametrize("name", SURFACES)
@pytest.mark.parametrize("word", WORDS)
def test_a_letter_stays_on_the_surface(word, name):
    for shape in SHAPES[:1] if "level" in name else SHAPES:  # derivatives of a level take their time
        surface = SURFACES[name]()
        weight, opt, start = run(surface, word, shape)
        assert opt.violation() < 1e-11
        assert (weight - start).abs().max() > 1e-4
        state = opt.state[weight]
        assert all(x.isfinite().all() for x in (weight, *state.values()))
        if "momentum" in state and name != "free" and not surface.intrinsic:
            assert_along(surface.bind([shape]), weight.detach(), state)
        slow, _, _ = run(SURFACES[name](), word, shape, foreach=False)
        torch.testing.assert_close(weight, slow, rtol=0, atol=1e-12)


def assert_along(surface, weight, state):
    """The momenta lie in the cotangent space at the point: Πp = p."""
    q = state["point"].unsqueeze(0) if surface.slack else surface.lift(weight.unsqueeze(0))
    p = state["momentum"].unsqueeze(0)
    if surface.dimension(weight.shape) > 1:  # with one degree of freedom p may well be 0
        assert p.abs().max() > 1e-3
    torch.testing.assert_close(surface.tangent(q, p), p, rtol=0, atol=1e-11)
