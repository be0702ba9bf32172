"""An exception at any moment of a step: parameters and state are those before it or those after it.

Every method makes 500 steps beside a plain run. At some of them an exception is raised at a random line of tether's
own, as Ctrl-C or a signal's handler would; whoever catches it repeats the step if it has not been made.
"""

import ast
import random
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from rows import ROWS, every_method, network

import tether
from fitting import used
from tether import Circle, Level, Optimizer, Orthogonal, Part, Replicas, SpectralBall, Sphere

HOME = str(Path(tether.__file__).parent)
LONG = (500, 40)  # steps of a run, and how many of them are interrupted
SHORT = (50, 12)  # for replicas, and for what is no method of the table


class Interrupt(BaseException):
    """As Ctrl-C or a signal's handler would raise it."""


def on(surface, text="OBA"):
    parts = [Part("*.weight", on=surface), Part("*")]
    return lambda model: Optimizer(model, parts, lr=0.05, word=text, **used(text, temperature=1e-3))


OTHERS = {
    "BABAB": lambda model: Optimizer(model, lr=0.05, word="BABAB"),
    "tensor by tensor": lambda model: Optimizer(model, lr=0.05, word="BAOAB", temperature=1e-3, foreach=False),
    "Path with noise": lambda model: Optimizer(model, lr=1e-3, word="OBA", temperature=1e-6, metric=tether.Path()),
    "circle": on(Circle(1.0), "BACDEDCAB"),
    "circles": on(Circle(torch.tensor(1.0)), "BAOAB"),
    "sphere without slack": on(Sphere(1.0, slack=False)),
    "orthogonal": on(Orthogonal(), "MS"),
    "spectral ball": on(SpectralBall(0.5), "BAOAB"),
    "Spectral on orthogonal weights": lambda model: Optimizer(
        model,
        [Part("*.weight", on=Orthogonal(), metric=tether.Spectral()), Part("*")],
        lr=0.05,
        word="MV",
    ),
    "level": on(Level(lambda w: w.square().sum() - 1)),
}


def everything(model, opt):
    values = {f"θ {name}": x.detach().clone() for name, x in model.named_parameters()}
    values |= {f"wants {name}": torch.tensor(x.requires_grad) for name, x in model.named_parameters()}
    for name, param in model.named_parameters():
        for key, x in opt.state.get(param, {}).items():
            if not (key in ("momentum", "rms", "dual") and not x.any()):  # made at rest: no change
                values[f"{key} {name}"] = x.clone()
    for i, group in enumerate(opt.param_groups):
        keys = [key for key in ("step", "previous_lr", "thermostat", "tested", "pace") if key in group]
        values |= {f"{key} {i}": torch.as_tensor(group[key]) for key in keys}
    values["clock"] = torch.tensor(opt.clock.step)
    return values


def unmoved(now, before):
    """Is all as it was? Points may have been made by now, of parameters that have not moved."""
    made = {key.split()[0] for key in now.keys() - before.keys()}
    return made <= {"point"} and all(torch.equal(now[key], before[key]) for key in before)


class Run:
    """A model and its optimizer under forces that are the same for every run: noise, and a pull towards 0."""

    def __init__(self, model, opt):
        self.model, self.opt = model, opt
        generator = torch.Generator().manual_seed(0)
        self.params = list(model.parameters())
        # beside a metric, which divides by what may be small, a weaker one
        size = 0.01 if any(group["metric"] for group in opt.param_groups) else 1.0
        self.noise = [[size * torch.randn(x.shape, generator=generator) for x in self.params] for _ in range(20)]

    def step(self, number):
        def closure():
            pull = torch._foreach_mul([x.detach() for x in self.params], 0.01)
            torch._foreach_add_(pull, self.noise[number % len(self.noise)])
            for x, g in zip(self.params, pull, strict=True):
                x.grad = g if x.requires_grad else None
            return torch.zeros(self.opt.lanes.rows)

        self.opt.step(closure)

    def everything(self):
        return everything(self.model, self.opt)


@cache
def safe(file):
    """Lines at which Python looks for no signal: it does so after a call, and so never right after `finally`."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    return {node.finalbody[0].lineno for node in ast.walk(tree) if isinstance(node, ast.Try) and node.finalbody}


def traced(run, moment=0):
    """Run with an exception at the given line of tether's own, if any; returns how many lines there were, and if."""
    lines = 0

    def watch(frame, event, _):
        nonlocal lines
        if not frame.f_code.co_filename.startswith(HOME):
            return watch if frame.f_code.co_filename == __file__ else None
        if event == "line" and frame.f_lineno not in safe(frame.f_code.co_filename):
            lines += 1
            if lines == moment:
                raise Interrupt
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        run()
    except Interrupt:
        return lines, True
    finally:
        sys.settrace(before)
    return lines, False


def disturbed(plain, tried, step, moments):
    """One step of both runs, of the second with exceptions; returns how many there were."""
    lines, _ = traced(lambda: plain.step(step))
    before, hits = tried.everything(), 0
    for _ in range(3):
        _, hit = traced(lambda: tried.step(step), moments.randint(1, lines))
        hits += hit
        if not hit or not unmoved(tried.everything(), before):
            break
    else:
        tried.step(step)
    return hits


def different(plain, tried):
    a, b = tried.everything(), plain.everything()
    return sorted(a.keys() ^ b.keys()) + [key for key in a.keys() & b.keys() if not torch.equal(a[key], b[key])]


def disturb(build, make, steps, disturbances):
    """Two runs of so many steps, one of them disturbed; they must be one run, and the exceptions must have come."""
    plain, tried = (Run(model, build(model)) for model in (make(), make()))
    moments, hits = random.Random(0), 0
    chosen = {0, 1, 2, *moments.sample(range(3, steps), disturbances)}
    for step in range(steps):
        if step in chosen:
            hits += disturbed(plain, tried, step, moments)
            gradients, _ = torch.is_grad_enabled(), torch.set_grad_enabled(True)
            assert gradients, "gradients were left switched off"
            assert different(plain, tried) == [], step
        else:
            plain.step(step)
            tried.step(step)
    assert different(plain, tried) == []
    assert all(x.isfinite().all() for x in plain.params)
    assert hits > disturbances


@every_method
def test_500_steps_with_exceptions_end_where_the_plain_run_ends(name):
    disturb(ROWS[name].build, lambda: network(name), *LONG)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if not row.measured])
def test_replicas_with_exceptions_end_where_the_plain_run_ends(name):
    disturb(ROWS[name].build, lambda: Replicas(lambda: network(name), 2), *SHORT)


@pytest.mark.parametrize("name", OTHERS)
def test_other_words_with_exceptions_end_where_the_plain_run_ends(name):
    disturb(OTHERS[name], lambda: network("path_sgd"), *SHORT)
