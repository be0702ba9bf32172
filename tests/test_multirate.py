"""Algorithms 5.1, 5.2 and 5.3 line by line, the clocks, and what the backward pass saves."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

import tether
from tether import methods
from tether.words import parse

K, H, MU = 3, 0.3, 0.9


class Two(nn.Module):
    """One slow and one fast number; the loss is a polynomial, so that gradients can be written down."""

    def __init__(self):
        super().__init__()
        self.slow = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
        self.fast = nn.Parameter(torch.tensor([-0.5], dtype=torch.float64))

    def forward(self):
        return (0.5 * (self.slow - 1.5 * self.fast) ** 2 + 0.05 * self.slow**4).sum()


def gradients(s, f):
    return (s - 1.5 * f) + 0.2 * s**3, -1.5 * (s - 1.5 * f)


def step(model, opt):
    opt.zero_grad()
    model().backward()
    opt.step()


@pytest.mark.parametrize("drift", [True, False])
@pytest.mark.parametrize("decay", [(0.0, 0.0), (0.1, 0.02)])
def test_the_printed_lines_for_three_cycles(drift, decay):
    model = Two()
    opt = methods.multirate_sgd(
        model, fast="fast", k=K, lr=H, momentum=MU, drift=drift, weight_decay=decay[0], slow_weight_decay=decay[1]
    )
    s, f, ps, pf = 1.0, -0.5, 0.0, 0.0
    for _ in range(3):
        ps = MU * ps + gradients(s, f)[0] + decay[1] * s
        if not drift:  # (5.2) prints the slow step first, from the same gradient; the fast ones see θ_S after it
            moved, first = s - H * ps, gradients(s, f)[1]
        for i in range(K):
            if drift:
                pf = MU * pf + gradients(s, f)[1] + decay[0] * f
                f, s = f - H / K * pf, s - H / K * ps
            else:
                g = first if i == 0 else gradients(moved, f)[1]  # one backward pass serves both at the first
                pf = MU * pf + g + decay[0] * f
                f = f - H / K * pf
            step(model, opt)
            assert model.fast.item() == pytest.approx(f, rel=1e-12)
            assert model.slow.item() == pytest.approx(s if drift else moved, rel=1e-12)
        s = s if drift else moved


def test_one_clock_is_torchs_sgd():
    def net():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()

    ours, theirs = net(), net()
    opt = methods.multirate_sgd(ours, fast="2.*", k=1, lr=0.1, momentum=0.9, weight_decay=0.01)
    other = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    x = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for _ in range(50):
        for model, optimizer in ((ours, opt), (theirs, other)):
            optimizer.zero_grad()
            (model(x).squeeze(1) - x.sum(1).sin()).square().mean().backward()
            optimizer.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_three_nested_rates():
    # h_i = h_{i−1}/K_{i−1}: 6, 2 and 1 steps
    model = nn.ParameterDict(
        {name: nn.Parameter(torch.tensor([x])) for name, x in (("a", 1.0), ("b", 2.0), ("c", 3.0))}
    )
    parts = [
        tether.Part("c", lr=0.1),
        tether.Part("b", lr=0.2, every=2, drift=False),
        tether.Part("a", lr=0.6, every=6),
    ]
    opt = tether.Optimizer(model, parts, lr=1.0, word="MS", friction=math.inf)
    for n in range(12):
        asked = [name for name, p in model.items() if p.requires_grad]
        assert asked == [name for name, every in (("a", 6), ("b", 2), ("c", 1)) if n % every == 0]
        opt.zero_grad()
        sum(p.square().sum() / 2 for p in model.values()).backward()
        opt.step()
    # c: ×0.9 twelve times; b: ×0.8 six times; a drifts by 0.1 of its last gradient, six times: ×0.4 twice
    assert model["c"].item() == pytest.approx(3 * 0.9**12)
    assert model["b"].item() == pytest.approx(2 * 0.8**6)
    assert model["a"].item() == pytest.approx(0.4**2)


def test_a_run_resumed_in_mid_cycle_goes_on_exactly():
    model = Two()
    opt = methods.multirate_sgd(model, fast="fast", k=5, lr=0.2)
    for _ in range(7):
        step(model, opt)
    twin = copy.deepcopy(Two())
    twin.load_state_dict(model.state_dict())
    other = methods.multirate_sgd(twin, fast="fast", k=5, lr=0.2)
    other.load_state_dict(opt.state_dict())
    assert [p.requires_grad for p in twin.parameters()] == [False, True]
    for _ in range(9):
        step(model, opt)
        step(twin, other)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_what_a_word_does_on_a_clock():
    def text(word, **clock):
        return " ".join(map(str, parse(word).on_clock(**clock)))

    assert text("MS", every=5, due=True, drift=True) == "M(h) S(0.2 h)"
    assert text("MS", every=5, due=False, drift=True) == "S(0.2 h)"
    assert text("OBA", every=2, due=True, drift=True) == "O(h) B(h) A(½h)"
    assert text("OBA", every=2, due=False, drift=False) == ""
    assert text("BAOAB", every=2, due=True, drift=True) == str(parse("BAOAB")).split(": ")[1].split(";")[0]


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))


def test_on_fast_steps_no_graph_of_the_slow_part_is_kept():
    model = net()
    opt = methods.multirate_sgd(model, fast="4.*", k=3, lr=0.1)
    x = torch.randn(6, 4)
    for n in range(6):
        hidden = model[:4](x)
        assert hidden.requires_grad == (n % 3 == 0)
        opt.zero_grad()
        model(x).square().sum().backward()
        assert (model[0].weight.grad is not None) == (n % 3 == 0)
        opt.step()


def test_frozen_parameters_stay_frozen():
    model = net()
    model[0].weight.requires_grad_(False)
    opt = methods.multirate_sgd(model, fast="4.*", k=2, lr=0.1)
    before = model[0].weight.clone()
    for _ in range(4):
        opt.zero_grad()
        model(torch.randn(6, 4)).square().sum().backward()
        opt.step()
        assert not model[0].weight.requires_grad
    assert torch.equal(model[0].weight, before)


def test_models_and_optimizers_on_clocks_can_be_copied_and_pickled():
    model = net()
    opt = methods.multirate_sgd(model, fast="4.*", k=3, lr=0.1, slow_eval=True)
    model, opt = pickle.loads(pickle.dumps((model, opt)))
    model, opt = copy.deepcopy((model, opt))
    for n in range(4):
        opt.zero_grad()
        model(torch.randn(6, 4)).square().sum().backward()
        assert (model[0].weight.grad is not None) == model[1].training == (n % 3 == 0)
        opt.step()


@pytest.mark.parametrize("batchnorm", ["train", "eval", "frozen"])
def test_the_batch_norm_of_the_slow_part(batchnorm):
    model = net()
    opt = methods.multirate_sgd(model, fast="4.*", k=2, lr=0.1, batchnorm=batchnorm)
    norm = model[1]
    for n in range(4):
        before = norm.running_mean.clone()
        opt.zero_grad()
        model(torch.randn(6, 4)).square().sum().backward()
        opt.step()
        moved = not torch.equal(norm.running_mean, before)
        assert moved == {"train": True, "eval": False, "frozen": n % 2 == 0}[batchnorm]
        assert norm.training == (batchnorm != "eval")


def test_the_slow_part_in_eval_mode_between_its_steps():
    model = net()
    opt = methods.multirate_sgd(model, fast="4.*", k=2, lr=0.1, slow_eval=True)
    modes = []
    for _ in range(4):
        opt.zero_grad()
        model(torch.randn(6, 4)).square().sum().backward()
        modes.append((model[1].training, model[4].training))
        opt.step()
    assert modes == [(True, True), (False, True)] * 2


def test_where_nothing_can_be_saved_it_says_why():
    model = net()
    methods.multirate_sgd(model, fast="0.*|1.*", k=2)
    with pytest.warns(UserWarning, match="'4' is slow but runs after '0', which is fast"):
        model(torch.randn(6, 4))
    model = net()
    methods.multirate_sgd(model, fast="4.*", k=2)
    with pytest.warns(UserWarning, match="an input requires grad"):
        model(torch.randn(6, 4, requires_grad=True))


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"every": 0}, "every=0 must be a whole number of steps, 1 or more"),
        ({"every": 2.5}, r"every=2\.5 must be a whole number"),
        ({"every": 2}, "some part must move at every step"),
        ({"drift": 1}, "drift=1 must be True or False"),
        ({"every": 2, "word": "BABAB"}, "several gradients per step: with Every"),
    ],
)
def test_what_is_refused(fields, match):
    with pytest.raises((ValueError, TypeError), match=match):
        tether.Optimizer(Two(), lr=0.1, **fields)


def test_rates_must_be_nested_and_arguments_in_range():
    parts = [tether.Part("0.*"), tether.Part("1.*", every=2), tether.Part("*", every=3)]
    with pytest.raises(ValueError, match="every=3 must be a multiple of every=2"):
        tether.Optimizer(net(), parts, lr=0.1)
    for fields, match in (
        ({"k": 0}, "k=0 must be"),
        ({"momentum": 1.0}, r"momentum=1\.0 must be"),
        ({"batchnorm": "off"}, "batchnorm='off'"),
    ):
        with pytest.raises(ValueError, match=match):
            methods.multirate_sgd(net(), fast="4.*", **fields)


# any optimizer on a clock


def hybrid(model):
    head, body = (
        torch.optim.AdamW(model[4].parameters(), lr=0.01),
        torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9),
    )
    return tether.Multirate({"head": head, "body": body}, every={"body": 3})


def small():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Identity(), nn.Identity(), nn.Tanh(), nn.Linear(8, 2))


def test_two_optimizers_by_hand():
    model, twin = small(), small()
    opt = hybrid(model)
    head, body = (
        torch.optim.AdamW(twin[4].parameters(), lr=0.01),
        torch.optim.SGD(twin[0].parameters(), lr=0.1, momentum=0.9),
    )
    x = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
    for n in range(10):
        assert model[0].weight.requires_grad == (n % 3 == 0)
        opt.zero_grad()
        model(x).square().sum().backward()
        opt.step()
        twin.zero_grad()
        twin(x).square().sum().backward()
        head.step()
        if n % 3 == 0:
            body.step()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_schedulers_scaler_and_checkpoints_of_a_hybrid():
    model = small()
    opt = hybrid(model)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
    scaler = torch.amp.GradScaler("cpu")
    x = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))

    def train(model, opt, steps):
        for _ in range(steps):
            opt.zero_grad()
            scaler.scale(model(x).square().sum()).backward()
            scaler.step(opt)
            scaler.update()

    train(model, opt, 4)
    schedule.step()
    assert opt.optimizers["body"].param_groups[0]["lr"] == pytest.approx(0.05)
    twin = small()
    twin.load_state_dict(model.state_dict())
    other = hybrid(twin)
    other.load_state_dict(copy.deepcopy(opt.state_dict()))  # torch would share the momenta
    train(model, opt, 5)
    train(twin, other, 5)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_hybrids_that_are_refused():
    model = small()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="every names 'body', but the optimizers are 'all'"):
        tether.Multirate({"all": sgd}, every={"body": 2})
    with pytest.raises(ValueError, match="some optimizer must move at every step"):
        tether.Multirate({"all": sgd}, every={"all": 2})
    with pytest.raises(ValueError, match="belongs to two of the optimizers"):
        tether.Multirate({"all": sgd, "head": torch.optim.SGD(model[4].parameters(), lr=0.1)})


def test_a_slow_part_on_a_surface_is_looked_at_between_its_steps():
    model = small()
    parts = [tether.Part("0.weight", on=tether.Orthogonal(), every=2), tether.Part("*")]
    opt = tether.Optimizer(model, parts, lr=0.1)
    opt.zero_grad()
    model(torch.ones(3, 4)).square().sum().backward()
    opt.step()
    assert not model[0].weight.requires_grad
    assert opt.violation() <= 1e-6
    with torch.no_grad():
        model[0].weight.mul_(1.1)
    assert opt.violation() > 0.1


def test_clocks_and_metrics_do_not_go_with_words_of_several_gradients():
    parts = [tether.Part("0.*", word="BABAB"), tether.Part("1.*|2.*|3.*", every=1), tether.Part("*", every=2)]
    with pytest.raises(ValueError, match="takes several gradients per step cannot go with a part on"):
        tether.Optimizer(net(), parts, lr=0.1)
    with pytest.raises(ValueError, match=r"Path\(2\) changes at every step and cannot go with every=2"):
        tether.Part("*", metric=tether.Path(), every=2).row({**tether.part.DEFAULTS, "lr": 0.1, "where": "*"})


def test_the_speed_up_of_the_thesis():
    """(5.6): k L/(L + (k − 1) ℓ); its limits; and with the forward pass."""
    assert tether.speedup(10, 2, 5) == pytest.approx(50 / 18)
    assert tether.speedup(10, 2, 1) == 1
    assert tether.speedup(10, 10, 7) == 1
    assert tether.speedup(10, 0, 7) == 7
    assert tether.speedup(10, 2, 10**9) == pytest.approx(5)
    assert tether.speedup(2, 0.5, 4, forward=1) == pytest.approx(12 / (4 + 2 + 1.5))
    with pytest.raises(ValueError, match=r"fast=3, forward=0.0 must be costs with 0 ≤ fast ≤ full, e.g. speedup"):
        tether.speedup(2, 3, 5)
    with pytest.raises(ValueError, match="k=0"):
        tether.speedup(2, 1, 0)
