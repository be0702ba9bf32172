"""What users and frameworks do to a run, drawn at random: it must end where the plain run of the same seed ends.

Two runs get the same gradients. One of them also suffers events that must not matter: steps that fail, weights swapped
out and in, checkpoints saved and loaded in any order, copies, looks at its state. Events that matter (a scheduler, a
new group, a missing gradient) happen to both. After each step both are equal, bit for bit.

The suite takes twenty seconds for it; by hand, for ten minutes of other examples:
``TETHER_FUZZ=600 pytest -n 0 tests/hostile/test_fuzz.py``.
"""

import copy
import io
import os
import time

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import nn

import tether
from tether import (
    Circle,
    Free,
    Level,
    NonFiniteGradient,
    Optimizer,
    Orthogonal,
    Part,
    Replicas,
    SpectralBall,
    Sphere,
    methods,
)

SURFACES = {
    "free": Free,
    "circle": lambda: Circle(0.8),
    "circles": lambda: Circle(torch.tensor(0.7)),
    "sphere": lambda: Sphere(0.9),
    "sphere without slack": lambda: Sphere(0.9, slack=False),
    "sphere, whole weight": lambda: Sphere(0.9, per="tensor"),
    "sphere, its own norm": lambda: Sphere(None, per="tensor"),
    "orthogonal": Orthogonal,
    "orthogonal at random": lambda: Orthogonal(start="random"),
    "spectral ball": lambda: SpectralBall(0.9),
    "level": lambda: Level(lambda w: w.square().sum() - 1.0),
    "level with slack": lambda: Level(lambda w, s: w.square().sum() + s.square().sum() - 4.0, slack=1),
}
WORDS = ["X", "MS", "BAOAB", "OBA", "BACDEDCAB", "BAFEFAB", "L", "BABAB", "XH"]
CYCLES = ["sgd", "random_subset", "composite_sgd", "multirate_sgd", "adlala", "lol", "dhsgd", "path_sgd"]
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
SHAPES = [(3, 5), (5, 3), (4, 4), (8, 2)]


def network(shape, dtype, conv):
    """Two weights and their biases, a norm layer that is free on every surface, and a conv layer for some."""
    rows, columns = shape
    with torch.random.fork_rng():
        torch.manual_seed(3)
        layers = [nn.Linear(columns, rows), nn.ReLU(), nn.Linear(rows, columns)]
        if conv:
            layers = [nn.Conv2d(2, rows, 2), nn.ReLU(), nn.Conv2d(rows, columns, 2)]
        return nn.Sequential(*layers).to(dtype)


class Run:
    """A model, its optimizer, and how to make both."""

    def __init__(self, choice):
        self.choice, self.grown = choice, False
        self.model = self.fresh_model()
        self.opt = self.fresh_optimizer(self.model)

    def fresh_model(self):
        c = self.choice
        build = lambda: network(c["shape"], c["dtype"], c["conv"])  # noqa: E731
        return Replicas(build, c["replicas"]) if c["replicas"] else build()

    def fresh_optimizer(self, model):
        c = self.choice
        options = {"seed": c["seed"], "on_nonfinite": c["on_nonfinite"]}
        if c["method"] in CYCLES:
            extra = {"multirate_sgd": {"fast": "2.*", "k": 3}, "random_subset": {"k": 3}, "composite_sgd": {"k": 3}}
            lr = 1e-4 if c["method"] == "path_sgd" else 0.05  # random gradients divided by γ lead far away
            return getattr(methods, c["method"])(model, lr=lr, **extra.get(c["method"], {}), **options)
        surface = SURFACES[c["surface"]]()
        parts = [Part("*.weight", on=surface), Part("*")]
        values = {"τ": ("temperature", 0.01), "γ": ("friction", 0.5), "ε": ("coupling", 0.05)}
        fields = dict(values[symbol] for symbol in tether.words.parse(c["word"]).needs if symbol in values)
        return Optimizer(model, parts, lr=0.05, word=c["word"], **fields, **options)

    def grow(self, model, opt):
        """A parameter more, in a group of its own."""
        model.register_parameter("extra", nn.Parameter(torch.full((3,), 0.2, dtype=self.choice["dtype"])))
        opt.add_param_group({"params": [("extra", model.extra)], "lr": 0.1, "word": "X", "where": "extra"})

    def load(self, order, weights, state):
        """A new model and a new optimizer, restored in the order of some framework."""
        model = self.fresh_model()
        early = {name: x for name, x in weights.items() if name != "extra"}
        if order == "model, optimizer, state":
            model.load_state_dict(early)
        opt = self.fresh_optimizer(model)
        if self.grown:
            self.grow(model, opt)
            model.load_state_dict({"extra": weights["extra"]}, strict=False)
        if order == "optimizer, model, state":
            model.load_state_dict(weights)
        if order == "optimizer, state, model":
            opt.load_state_dict(state)
            model.load_state_dict(weights)
        else:
            opt.load_state_dict(state)
        self.model, self.opt = model, opt

    def values(self):
        with self.opt.awake():
            return {name: x.detach().clone() for name, x in self.model.named_parameters()}


def gradient(param, step, i, dtype):
    noise = torch.randn(param.shape, generator=torch.Generator().manual_seed(1000 * step + i), dtype=torch.float64)
    return (0.3 * param.detach().double() + noise).to(dtype)


class Hostile(RuleBasedStateMachine):
    @initialize(
        method=st.sampled_from(["word", "word", *CYCLES]),
        word=st.sampled_from(WORDS),
        surface=st.sampled_from(list(SURFACES)),
        dtype=st.sampled_from(DTYPES),
        shape=st.sampled_from(SHAPES),
        conv=st.booleans(),
        replicas=st.sampled_from([0, 0, 1, 3]),
        seed=st.integers(0, 2**40),
        on_nonfinite=st.sampled_from(["raise", "skip"]),
    )
    def begin(self, **choice):
        if choice["method"] == "path_sgd":
            choice["conv"] = False
        if choice["method"] != "word":
            choice["dtype"] = torch.float32 if choice["dtype"] is torch.bfloat16 else choice["dtype"]
        if choice["surface"].startswith("level"):
            choice["replicas"] = 0
        self.choice, self.steps, self.stopped, self.missing = choice, 0, set(), None
        self.plain, self.tried = Run(choice), Run(choice)

    def push(self, run, step):
        def closure():
            for i, (name, param) in enumerate(run.model.named_parameters()):
                wanted = param.requires_grad and name != self.missing
                param.grad = gradient(param, step, i, param.dtype) if wanted else None
            return torch.zeros(())

        run.opt.step(closure)

    @rule(count=st.integers(1, 3))
    def step(self, count):
        for _ in range(count):
            for run in (self.plain, self.tried):
                self.push(run, self.steps)
            self.steps += 1

    @rule(bad=st.sampled_from([float("nan"), float("inf")]))
    def a_gradient_that_is_not_finite(self, bad):
        run = self.tried

        def closure():
            for param in run.model.parameters():
                param.grad = torch.full_like(param, bad) if param.requires_grad else None
            return torch.zeros(())

        live = self.choice["replicas"] == 0 or len(self.stopped) < self.choice["replicas"]
        if self.choice["on_nonfinite"] == "raise" and live:
            with pytest.raises(NonFiniteGradient):
                run.opt.step(closure)
        elif self.choice["replicas"] == 0:
            run.opt.step(closure)
        run.opt.zero_grad()

    @rule()
    def a_closure_that_raises(self):
        def closure():
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.tried.opt.step(closure)

    @rule(through=st.sampled_from(["copy_", "data", "vector"]), value=st.floats(-0.5, 0.5))
    def weights_swapped_out_and_in(self, through, value):
        params = list(self.tried.model.parameters())
        held = [p.detach().clone() for p in params]
        for new in ([torch.full_like(p, value) for p in held], held):
            if through == "vector":
                nn.utils.vector_to_parameters(torch.cat([x.flatten() for x in new]), params)
                continue
            for p, x in zip(params, new, strict=True):
                if through == "data":
                    p.data.copy_(x)
                else:
                    with torch.no_grad():
                        p.copy_(x)

    @rule(
        order=st.sampled_from(["model, optimizer, state", "optimizer, model, state", "optimizer, state, model"]),
        awake=st.booleans(),
    )
    def saved_and_loaded(self, order, awake):
        run, buffer = self.tried, io.BytesIO()
        if order == "optimizer, state, model":
            awake = False  # who sleeps is said by the state: weights that come after it must be as they were
        state = run.opt.state_dict()
        if awake:
            with run.opt.awake():
                torch.save((copy.deepcopy(run.model.state_dict()), state), buffer)
        else:
            torch.save((run.model.state_dict(), state), buffer)
        buffer.seek(0)
        run.load(order, *torch.load(buffer, weights_only=True))

    @rule()
    def copied(self):
        run = self.tried
        run.model, run.opt = copy.deepcopy((run.model, run.opt))

    @rule()
    def looked_at(self):
        opt = self.tried.opt
        assert isinstance(opt.describe(), str)
        opt.temperature()
        opt.state_dict()
        with opt.awake():
            pass

    @rule()
    def released(self):
        if self.choice["method"] != "random_subset":  # whose next gradient is then that of the whole network
            self.tried.opt.release()

    @rule()
    def a_step_of_no_length(self):
        run = self.tried
        rates = [group["lr"] for group in run.opt.param_groups]
        for group in run.opt.param_groups:
            group["lr"] = 0.0
        self.push(run, self.steps)
        for group, lr in zip(run.opt.param_groups, rates, strict=True):
            group["lr"] = lr

    @rule(factor=st.floats(0.5, 1.5))
    def scheduler(self, factor):
        for run in (self.plain, self.tried):
            schedule = torch.optim.lr_scheduler.LambdaLR(run.opt, lambda epoch: factor)
            schedule.step()
            for group in run.opt.param_groups:
                group.pop("initial_lr", None)

    @precondition(lambda self: not self.plain.grown and not self.choice["replicas"] and self.choice["word"] != "XH")
    @rule()
    def new_group(self):
        if self.choice["method"] in ("path_sgd", "multirate_sgd") or self.choice["word"] == "BABAB":
            return
        for run in (self.plain, self.tried):
            run.grow(run.model, run.opt)
            run.grown = True

    @rule(which=st.sampled_from([None, "0.weight", "2.bias"]))
    def no_gradient_for(self, which):
        self.missing = which

    @precondition(lambda self: self.choice["replicas"] == 3)
    @rule(which=st.integers(0, 2))
    def stopped_replica(self, which):
        self.stopped.add(which)
        self.tried.opt.stop([which])

    @invariant()
    def equal(self):
        if not hasattr(self, "plain"):
            return
        rows = [i for i in range(self.choice["replicas"]) if i not in self.stopped]
        want, got = self.plain.values(), self.tried.values()
        for name in want:
            a, b = want[name], got[name]
            if self.choice["replicas"]:
                a, b = a[rows], b[rows]
            assert torch.equal(a, b), (name, float((a.double() - b.double()).abs().max()))

    @invariant()
    def on_the_surface(self):
        if hasattr(self, "tried") and self.choice["method"] == "word":
            eps = 1e-6 if self.choice["dtype"] is not torch.bfloat16 else 0.1
            assert bool((torch.as_tensor(self.tried.opt.violation()) <= eps).all())


SECONDS = float(os.environ.get("TETHER_FUZZ", "0"))


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_whatever_happens_to_a_run_it_ends_where_the_plain_one_ends():
    common = {"deadline": None, "stateful_step_count": 15, "suppress_health_check": list(HealthCheck)}
    if not SECONDS:
        run_state_machine_as_test(
            Hostile, settings=settings(max_examples=180, derandomize=True, database=None, **common)
        )
        return
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        run_state_machine_as_test(Hostile, settings=settings(max_examples=100, database=None, **common))


def test_the_machine_notices_what_it_is_for(monkeypatch):
    """Break what it guards, and it must fail."""
    monkeypatch.setattr(tether.surfaces.Circle, "holds", lambda self, θ, q, eps: torch.zeros_like(θ, dtype=torch.bool))
    choice = {"method": "word", "word": "BAOAB", "surface": "circle", "dtype": torch.float32, "shape": (3, 5)}
    machine = Hostile()
    machine.begin(**choice, conv=False, replicas=0, seed=1, on_nonfinite="raise")
    machine.step(count=3)
    machine.saved_and_loaded("model, optimizer, state", awake=False)
    with pytest.raises(AssertionError):
        machine.equal()
