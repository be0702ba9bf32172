"""The soft constraint of fig-4.4 in closed form."""

import torch

import tether
from tether_studies.orthogonality import SPIRAL, Method, learn, network, penalise, sgd


def test_the_penalty_in_closed_form_is_autograds():
    nets = tether.Replicas(lambda: network(3), 2)
    inner = [nets.get_parameter(f"{2 * i}.weight") for i in (1, 2)]
    x = torch.randn(2, 5, 2, generator=torch.Generator().manual_seed(0))
    (nets(x, each=True).square().sum() + 0.3 * tether.orthogonal_penalty(nets, "2.weight|4.weight").sum()).backward()
    expected = [p.detach() - 0.1 * p.grad for p in nets.parameters()]
    opt = tether.methods.sgd(nets, lr=0.1)
    penalise(opt, inner, 0.3)

    def closure():
        opt.zero_grad()
        with torch.enable_grad():
            loss = nets(x, each=True).square().sum()
            loss.backward()
        return loss

    opt.step(closure)
    for p, q in zip(nets.parameters(), expected, strict=True):
        torch.testing.assert_close(p.detach(), q)


def test_a_constraint_too_stiff_for_its_step_does_not_hold():
    """h < 1/(4λ): stretching a column of Q by 1 + ε costs λ (2ε)², a curvature of 8λ."""
    sets = SPIRAL.sets(2, 0)
    gaps = {s: learn(Method(sgd(strength=s), orthogonal_start=True), 3, sets, 60, 0)[0]["gap"] for s in (2.0, 4.0)}
    assert gaps[2.0] < 0.1
    assert gaps[4.0] > 0.3
