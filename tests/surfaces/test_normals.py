"""Normals of `Level`: where constraints share no coordinate they equal the whole Jacobian; sharing is noticed."""

import pickle

import pytest
import torch

import tether
from tether.surfaces.level import Level
from tether.surfaces.normals import Apart, Dense, linearised, owner_of


def rows(w):
    return w.square().sum(-1) - 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("points", [1, 3])
def test_apart_is_the_whole_jacobian(points, dtype):
    g = torch.Generator().manual_seed(0)
    q, v, λ = (torch.randn(points, n, generator=g, dtype=dtype) for n in (20, 20, 4))
    value = lambda x: rows(x.view(4, 5))  # noqa: E731
    values, whole = linearised(value, q, None)
    again, apart = linearised(value, q, owner_of(whole.whole()))
    assert isinstance(whole, Dense)
    assert isinstance(apart, Apart)
    by_hand = torch.zeros(points, 4, 20, dtype=dtype)
    for i in range(4):
        by_hand[:, i, 5 * i : 5 * i + 5] = 2 * q[:, 5 * i : 5 * i + 5]
    for one in (whole, apart):
        torch.testing.assert_close(one.whole(), by_hand)
        torch.testing.assert_close(one.across(v), (by_hand @ v.unsqueeze(-1)).squeeze(-1))
        torch.testing.assert_close(one.back(λ), (by_hand.mT @ λ.unsqueeze(-1)).squeeze(-1))
        torch.testing.assert_close(one.solver()(λ), λ / by_hand.square().sum(-1))
        torch.testing.assert_close(one.sizes(), by_hand.norm(dim=-1))
    assert torch.equal(values, again)


def test_constraints_that_begin_to_share_a_coordinate_are_noticed():
    """Where x₂ > 2 the second constraint depends on x₀, too, which no look at the start could tell."""

    def value(x):
        return torch.stack((x[0] ** 2 + x[1] - 1, x[2] + torch.relu(x[2] - 2) * x[0]))

    start, later = torch.tensor([[1.0, 0.0, 1.0]]), torch.tensor([[1.0, 0.0, 3.0]])
    owner = owner_of(linearised(value, start, None)[1].whole())
    assert owner.tolist() == [0, 0, 1]
    assert isinstance(linearised(value, start, owner)[1], Apart)
    assert isinstance(linearised(value, later, owner)[1], Dense)
    surface = Level(value).bind([(3,)])
    surface.owner[surface.shapes] = owner
    assert isinstance(surface.normals_at(start), Apart)
    assert isinstance(surface.normals_at(later), Dense)
    assert isinstance(surface.normals_at(start), Dense)  # from then on


@pytest.mark.parametrize("word", ["X", "BAOAB"])
def test_many_rows_are_as_each_alone(word):
    """One g for all rows, and one for each: the same path."""
    start = torch.nn.functional.normalize(
        torch.randn(6, 4, generator=torch.Generator().manual_seed(1)).double(), dim=-1
    )

    def path(surface):
        w = torch.nn.Parameter(start.clone())
        opt = tether.Optimizer([("w", w)], lr=0.05, word=word, temperature=0.1, on=surface)
        for _ in range(20):
            opt.zero_grad()
            w.sum().backward()
            opt.step()
        assert opt.violation() < 1e-12
        return w.detach()

    tangled = Level(lambda w: rows(w) @ (torch.eye(6) + 0.1 * torch.ones(6, 6)).to(w))  # the same Σ, shared coordinates
    torch.testing.assert_close(path(Level(rows)), path(tangled), rtol=0, atol=1e-11)


def test_what_is_kept_of_a_point_is_neither_stale_nor_saved():
    surface = Level(rows).bind([(2, 2)])
    q = torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    first = surface.normals_at(q)
    assert surface.normals_at(q) is first
    q.mul_(2)
    torch.testing.assert_close(surface.normals_at(q).whole(), 2 * first.whole())
    assert len(pickle.dumps(surface)) < 1000
