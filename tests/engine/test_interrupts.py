"""An interrupt at any moment of a step: parameters and state are those before it or those after it."""

import random
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import tether
from tether import Circle, Level, Optimizer, Orthogonal, Part, Replicas, Sphere, methods

HOME = str(Path(tether.__file__).parent)


class Interrupt(BaseException):
    """As Ctrl-C or a signal's handler would raise it."""


def net():
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))


def word(text, **fields):
    return lambda m: Optimizer(m, lr=0.05, word=text, **fields)


def on(surface, text="OBA"):
    return lambda m: Optimizer(m, [Part("*.weight", on=surface), Part("*")], lr=0.05, word=text, temperature=1e-3)


CASES = {
    "sgd": methods.sgd,
    "langevin": methods.langevin,
    "lol": methods.lol,
    "dhsgd": methods.dhsgd,
    "adlala": methods.adlala,
    "adaptive_langevin": methods.adaptive_langevin,
    "L": word("L", temperature=1e-3),
    "heun": lambda m: methods.dhsgd_contractive(m, scheme="heun"),
    "BABAB": word("BABAB"),
    "multirate_sgd": lambda m: methods.multirate_sgd(m, fast="4.*", k=3),
    "random_subset": lambda m: methods.random_subset(m, k=3, momentum=0.9),
    "composite_sgd": lambda m: methods.composite_sgd(m, k=3),
    "path_sgd": lambda m: methods.path_sgd(m, lr=1e-4),
    "path with momenta": lambda m: Optimizer(m, lr=1e-3, word="OBA", metric=tether.Path()),
    "circle": on(Circle(1.0)),
    "circles": on(Circle(torch.tensor(1.0)), "BAOAB"),
    "sphere": on(Sphere(1.0)),
    "orthogonal": on(Orthogonal()),
    "orthogonal X": on(Orthogonal(), "X"),
    "level": on(Level(lambda w: w.square().sum() - 1)),
    "thermostat on a circle": on(Circle(1.0), "BACDEDCAB"),
    "reference": word("BAOAB", temperature=1e-3, foreach=False),
}


def everything(model, opt):
    values = {f"θ {name}": x.detach().clone() for name, x in model.named_parameters()}
    values |= {f"wants {name}": torch.tensor(x.requires_grad) for name, x in model.named_parameters()}
    for name, param in model.named_parameters():
        for key, x in opt.state.get(param, {}).items():
            if not (key == "momentum" and not x.any()):  # made at rest: no change
                values[f"{key} {name}"] = x.clone()
    for i, group in enumerate(opt.param_groups):
        values |= {f"{key} {i}": torch.as_tensor(group[key]) for key in ("step", "previous_lr", "thermostat")}
    values["clock"] = torch.tensor(opt.clock.step)
    return values


def unmoved(now, before):
    """Is all as it was? Points may have been made by now, of parameters that have not moved."""
    made = {key.split()[0] for key in now.keys() - before.keys()}
    return made <= {"point"} and all(torch.equal(now[key], before[key]) for key in before)


def push(model, opt, step):
    def closure():
        for i, param in enumerate(model.parameters()):
            noise = torch.randn(param.shape, generator=torch.Generator().manual_seed(100 * step + i))
            param.grad = 0.3 * param.detach() + noise if param.requires_grad else None
        return torch.zeros(())

    opt.step(closure)


def interrupted(run, moment):
    """Run with an interrupt at the given line of tether's own; was there one?"""
    left = moment

    def watch(frame, event, _):
        nonlocal left
        if not frame.f_code.co_filename.startswith(HOME):
            return watch if frame.f_code.co_filename == __file__ else None
        if event == "line":
            left -= 1
            if left == 0:
                raise Interrupt
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        run()
    except Interrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("replicas", [0, 2], ids=["one", "replicas"])
@pytest.mark.parametrize("name", CASES)
def test_a_run_with_interrupts_ends_where_the_plain_one_ends(name, replicas):
    if replicas and (name in ("level", "circles") or "path" in name):
        return
    runs = []
    for _ in range(2):
        model = Replicas(net, replicas) if replicas else net()
        runs.append((model, CASES[name](model)))
    (plain, opt), (tried, other) = runs
    moments, hits = random.Random(0), 0
    for step in range(12):
        push(plain, opt, step)
        before = everything(tried, other)
        for _ in range(40):
            hit = interrupted(lambda step=step: push(tried, other, step), moments.randint(1, 300))
            hits += hit
            now = everything(tried, other)
            if not hit or not unmoved(now, before):
                break
        else:
            push(tried, other, step)
        a, b = everything(tried, other), everything(plain, opt)
        assert a.keys() == b.keys()
        assert [key for key in a if not torch.equal(a[key], b[key])] == [], (step, hit)
    assert hits > 12
    assert torch.is_grad_enabled()
