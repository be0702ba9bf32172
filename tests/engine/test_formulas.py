"""Formulas in ξ and pᵀp: composed once, worked out by the kernel and by Python to the same numbers."""

import math
from array import array

import pytest
import torch

import tether
from tether import letters, native
from tether.engine.formulas import P2, XI, Formula
from tether.engine.interpreter import compose
from tether.engine.programs import Program
from tether.words import parse

needs_kernel = pytest.mark.skipif(native.library() is None, reason="no compiler")


def test_arithmetic_is_that_of_numbers():
    ξ, p2 = 0.7, 3.0
    cases = {
        (1 + 2 * XI): 1 + 2 * ξ,
        (2 - XI / 4): 2 - ξ / 4,
        (3 / (XI - P2)): 3 / (ξ - p2),
        (-XI).exp(): math.exp(-ξ),
        (XI * P2).expm1(): math.expm1(ξ * p2),
        (XI + 0.1 * (P2 - 5)).sqrt(): math.sqrt(ξ + 0.1 * (p2 - 5)) if ξ + 0.1 * (p2 - 5) > 0 else None,
        (2 * XI).shrink(): (1 - math.exp(-2 * ξ)) / (2 * ξ),
    }
    for formula, value in cases.items():
        assert formula.at(ξ, p2) == pytest.approx(value, rel=1e-15)
    assert (0 * XI).shrink().at(ξ) == 1.0
    each = torch.tensor([0.5, -0.5])
    torch.testing.assert_close((each * XI).exp().at(ξ), (each * ξ).exp())


@pytest.mark.parametrize("word", ["BACDEDCA", "BAFEFA", "BAECEDECEA"])
def test_a_word_with_a_thermostat_is_one_program(word):
    scalars = {"γ": 1.0, "τ": 1e-3, "ε": 0.1, "σ": 0.01, "N": 7, "ξ": 0.0, "m": 1.0}
    composed = compose(parse(word).program, (0.1, 0.1), scalars, 0, constrained=False, reference=False)
    assert composed.whole is not None
    assert composed.thermostat
    assert sum(symbol == "ξ" for symbol, *_ in composed.whole.updates) == word.count("E")


def test_a_letter_that_formulas_do_not_know_still_runs():
    @letters.letter("p")
    def Z(p, ξ, h):
        """A friction by a function that only numbers have: p ← e^{−hξ} p."""
        return math.exp(-h * ξ) * p

    try:
        results = []
        for word in ("BAZEZA", "BACECA"):
            model = torch.nn.Linear(3, 2)
            with torch.no_grad():
                for param in model.parameters():
                    param.copy_(torch.linspace(-1, 1, param.numel()).view(param.shape))
            opt = tether.Optimizer(model, lr=0.1, word=word, temperature=1e-2, coupling=0.1, thermostat=0.5)
            for _ in range(5):
                opt.zero_grad()
                model(torch.ones(1, 3)).square().sum().backward()
                opt.step()
            results.append((model.weight.detach().clone(), opt.param_groups[0]["thermostat"].clone()))
        torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-5, atol=1e-8)
    finally:
        del letters.LETTERS["Z"]


@needs_kernel
@pytest.mark.parametrize("shapes", [[(300, 700)], [(70_001,), (3, 5), (0, 4), (140_000,)]])
def test_any_number_of_threads_gives_the_same_bits(shapes):
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            generator = torch.Generator().manual_seed(1)
            params = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
            named = [(f"w{i}", x) for i, x in enumerate(params)]
            opt = tether.Optimizer(named, lr=0.01, word="BACDEDCA", temperature=1e-3, coupling=1e-4, noise=0.01)
            for _ in range(4):
                for x in params:
                    x.grad = 0.1 * x.detach()
                opt.step()
            found.append([*(x.detach().clone() for x in params), opt.param_groups[0]["thermostat"]])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@needs_kernel
@pytest.mark.parametrize("bad", [("op", 9), ("field", 4), ("under", None), ("over", None), ("left", None)])
def test_the_kernel_refuses_formulas_that_make_no_sense(bad):
    what, value = bad
    steps = {"under": ("+",), "over": ("ξ",) * 20, "left": ("ξ", "ξ")}.get(what, ("ξ",))
    formulas = native.pack_formulas([(value if what == "op" else 0, value if what == "field" else 0, steps)])
    θ, p = torch.ones(4), torch.ones(4)
    layout = native.Layout([4])
    at = [native.addresses([x], torch.float32, [4]) for x in (θ, p)]
    ξ = torch.zeros(1, dtype=torch.float64)
    with pytest.raises(native.KernelError):
        native.run(
            torch.float32,
            layout,
            native.pack([(0, -1, 0.0, 0.0, 0.0, 0.0)]),
            θ=at[0],
            p=at[1],
            formulas=formulas,
            ξ=ξ,
        )
    assert (θ == 1).all()
    assert (p == 1).all()


@needs_kernel
def test_the_kernel_works_out_a_formula():
    program = Program(
        [("p", {"p": (-2 * XI).exp()}, 0), ("ξ", XI + P2, 0), ("θ", {"θ": 1.0, "p": Formula(*XI.steps)}, 0)]
    )
    θ, p = torch.ones(3, dtype=torch.float64), torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    ξ = torch.tensor([0.25], dtype=torch.float64)
    at = [array("q", [x.data_ptr()]) for x in (θ, p)]
    native.run(torch.float64, native.Layout([3]), program.ops, θ=at[0], p=at[1], formulas=program.formulas, ξ=ξ)
    shrunk = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64) * math.exp(-0.5)
    want = 0.25 + float(shrunk.square().sum())
    torch.testing.assert_close(p, shrunk)
    torch.testing.assert_close(float(ξ), want)
    torch.testing.assert_close(θ, 1 + want * shrunk)
