"""Words: durations, rotation, merging, what is refused and why, and words that take several gradients."""

import math
import re

import numpy as np
import pytest
import torch
from torch import nn

import tether
from tether.words import Beat, WordError, parse


def beats(*rows):
    return tuple(Beat(letter, before, now) for letter, before, now in rows)


# What a word becomes


@pytest.mark.parametrize(
    ("word", "program"),
    [
        ("X", beats(("X", 0, 1))),
        ("L", beats(("L", 0, 1))),
        ("BA", beats(("B", 0, 1), ("A", 0, 1))),
        ("AB", beats(("B", 0, 1), ("A", 0, 1))),
        ("OBA", beats(("B", 0, 1), ("A", 0, 1), ("O", 0, 1))),
        ("ABO", beats(("B", 0, 1), ("O", 0, 1), ("A", 0, 1))),
        ("BAB", beats(("B", 0.5, 0.5), ("A", 0, 1))),
        ("ABA", beats(("B", 0, 1), ("A", 0, 1))),
        ("BAOA", beats(("B", 0, 1), ("A", 0, 0.5), ("O", 0, 1), ("A", 0, 0.5))),
        ("BAOAB", beats(("B", 0.5, 0.5), ("A", 0, 0.5), ("O", 0, 1), ("A", 0, 0.5))),
        ("ABOBA", beats(("B", 0, 0.5), ("O", 0, 1), ("B", 0, 0.5), ("A", 0, 1))),
        ("OBABO", beats(("B", 0.5, 0), ("O", 0.5, 0.5), ("B", 0, 0.5), ("A", 0, 1))),
        ("UBU", beats(("B", 0, 1), ("U", 0, 1))),
        ("OABAO", beats(("B", 0, 1), ("A", 0, 0.5), ("O", 0, 1), ("A", 0, 0.5))),
        (
            "BACDEDCAB",
            beats(
                ("B", 0.5, 0.5),
                ("A", 0, 0.5),
                ("C", 0, 0.5),
                ("D", 0, 0.5),
                ("E", 0, 1),
                ("D", 0, 0.5),
                ("C", 0, 0.5),
                ("A", 0, 0.5),
            ),
        ),
        (
            "BAFEFAB",
            beats(("B", 0.5, 0.5), ("A", 0, 0.5), ("F", 0, 0.5), ("E", 0, 1), ("F", 0, 0.5), ("A", 0, 0.5)),
        ),
    ],
)
def test_a_word_with_one_gradient_is_rotated_to_its_kick(word, program):
    parsed = parse(word)
    assert parsed.program == program
    assert not parsed.needs_closure


@pytest.mark.parametrize("words", [("OBA", "BAO", "AOB"), ("ABO", "BOA", "OAB")])
def test_cyclic_rotations_are_one_program(words):
    assert len({parse(word).program for word in words}) == 1


@pytest.mark.parametrize("word", ["X", "L", "OBA", "BAOAB", "OBABO", "BACDEDCAB", "BABAB", "UBUBU", "XX", "ABABA"])
def test_every_letter_runs_for_the_whole_step_in_all(word):
    parsed = parse(word)
    program = parsed.program or [beat for stage in parsed.stages for beat in stage]
    total = dict.fromkeys(word, 0.0)
    for beat in program:
        total[beat.letter] += beat.before + beat.now
    assert total == pytest.approx(dict.fromkeys(word, 1.0), abs=1e-15)


def test_neighbours_are_merged_unless_they_are_no_flow():
    assert parse("BAAB").program == beats(("B", 0.5, 0.5), ("A", 0, 1))
    assert parse("BOOA").program == beats(("B", 0, 1), ("O", 0, 1), ("A", 0, 1))
    assert [len(stage) for stage in parse("XX").stages] == [0, 1, 1]


@pytest.mark.parametrize(
    ("word", "stages"),
    [
        ("BABAB", [(), ("B", "A"), ("B", "A"), ("B",)]),
        ("XX", [(), ("X",), ("X",)]),
        ("XH", [(), ("X",), ("H",)]),
        ("ABABA", [("A",), ("B", "A"), ("B", "A")]),
    ],
)
def test_a_word_with_several_gradients_is_cut_into_stages(word, stages):
    parsed = parse(word)
    assert parsed.needs_closure
    assert [tuple(beat.letter for beat in stage) for stage in parsed.stages] == stages
    assert f"{len(stages) - 1} gradients per step, needs step(closure)" in str(parsed)


@pytest.mark.parametrize(
    ("word", "kinetic"), [("BAOAB", True), ("OBA", True), ("BACDEDCAB", True), ("X", False), ("L", False)]
)
def test_kinetic_words_are_those_that_kick_momenta(word, kinetic):
    assert parse(word).kinetic is kinetic


def test_a_word_prints_as_its_program():
    assert str(parse("OBABO")) == "OBABO: B(½h′) O(½h′ + ½h) B(½h) A(h); one gradient per step"


# What is refused


@pytest.mark.parametrize(
    ("word", "at", "problem"),
    [
        ("BAQAB", 2, "unknown letter 'Q' in the word 'BAQAB': letters are ABCDEFHLMOSUVX"),
        ("BAoAB", 2, "unknown letter 'o' in the word 'BAoAB': did you mean 'O'?"),
        ("x", 0, "unknown letter 'x' in the word 'x': did you mean 'X'?"),
        ("B A", 1, "unknown letter ' ' in the word 'B A'"),
        ("", 0, "an empty word moves nothing"),
        ("AOA", 3, "the word 'AOA' has no kick, so it never sees the loss: add B"),
        ("BO", 2, "the word 'BO' has no drift, so it never moves the parameters: add A"),
        ("H", 0, "H compares two gradients, but this word takes one"),
    ],
)
def test_a_fault_is_named_with_a_caret_exactly_under_it(word, at, problem):
    with pytest.raises(WordError) as caught:
        parse(word)
    lines = str(caught.value).split("\n")
    assert len(lines) == 3
    assert lines[0].startswith(problem)
    assert lines[1] == f"    '{word}'"
    assert lines[2].strip() == "^"
    under = lines[1][lines[2].index("^")]
    assert under == (word[at] if at < len(word) else "'")  # what is missing is missing at the closing quote
    assert lines[2].index("^") == 4 + 1 + at
    assert (caught.value.word, caught.value.at) == (word, at)


def test_a_word_is_a_string():
    with pytest.raises(TypeError, match=re.escape("a word is a string of letters such as 'BAOAB', got ['B', 'A']")):
        parse(["B", "A"])


def test_an_optimizer_refuses_a_bad_word_at_once():
    with pytest.raises(WordError, match="unknown letter 'Q'"):
        tether.Optimizer([nn.Parameter(torch.zeros(2))], lr=0.1, word="BAQ")


# Words in motion, on U = q⁴/4 in three chains

START = np.array([0.5, -1.0, 2.0])


def force(q):
    return q**3


def chain(word, lr=0.1, **fields):
    q = nn.Parameter(torch.tensor(START))
    opt = tether.Optimizer([("q", q)], lr=lr, word=word, **fields)

    def closure():
        opt.zero_grad()
        loss = (q**4).sum() / 4
        loss.backward()
        return loss

    return q, opt, closure


def same(found, expected):
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-13)


@pytest.mark.parametrize(("word", "gradients"), [("BABAB", 3), ("XX", 2), ("XH", 2)])
def test_words_with_several_gradients_say_so_without_a_closure(word, gradients):
    q, opt, closure = chain(word)
    closure()
    with pytest.raises(RuntimeError, match=rf"the word '{word}' takes {gradients} gradients per step: call opt.step"):
        opt.step()
    same(q, START)


def test_babab_runs_as_written():
    h = 0.1
    q, opt, closure = chain("BABAB", h)
    x, p = START, 0 * START
    for _ in range(3):
        p = p - h / 3 * force(x)
        x = x + h / 2 * p
        p = p - h / 3 * force(x)
        x = x + h / 2 * p
        p = p - h / 3 * force(x)
        opt.step(closure)
        same(q, x)
        same(opt.state[q]["momentum"], p)


def test_xx_is_two_half_steps_with_a_draw_each():
    h, τ = 0.1, 0.3
    q, opt, closure = chain("XX", h, temperature=τ)
    x = START
    for n in range(3):
        for draw in range(2):
            R = tether.noise.reference(3, seed=0, step=n, draw=draw, name="q", dtype=torch.float64).numpy()
            x = x - h / 2 * force(x) + math.sqrt(τ * h) * R
        opt.step(closure)
        same(q, x)


def test_xh_is_heuns_method():
    h = 0.1
    q, opt, closure = chain("XH", h)
    x = START
    for _ in range(3):
        predicted = x - h * force(x)
        x = x - h / 2 * (force(x) + force(predicted))
        opt.step(closure)
        same(q, x)


@pytest.mark.parametrize("cleared", [False, True])
def test_letters_before_the_first_kick_run_whether_or_not_a_gradient_is_there(cleared):
    """ABABA starts with a drift; an earlier zero_grad() must not cost it."""
    h = 0.1
    q, opt, closure = chain("ABABA", h)
    x, p = START, 0 * START
    for _ in range(3):
        x = x + h / 3 * p
        for _ in range(2):
            p = p - h / 2 * force(x)
            x = x + h / 3 * p
        opt.step(closure)
        if cleared:
            opt.zero_grad()
        same(q, x)


@pytest.mark.parametrize("word", ["BABAB", "XX", "ABABA"])
def test_the_closure_is_called_once_per_gradient_and_its_first_loss_is_returned(word):
    _, opt, closure = chain(word)
    calls = []

    def counted():
        calls.append(closure().detach())
        return calls[-1]

    loss = opt.step(counted)
    assert len(calls) == len(parse(word).stages) - 1
    assert loss is calls[0]
    assert float(loss) == pytest.approx((START**4).sum() / 4)


def test_a_step_refused_halfway_is_undone_momenta_included():
    q, opt, closure = chain("BABAB", on_nonfinite="skip")
    calls = []

    def breaks_down():
        loss = closure()
        calls.append(loss)
        if len(calls) == 2:
            q.grad.fill_(math.inf)
        return loss

    opt.step(breaks_down)
    same(q, START)
    assert not opt.state[q].get("momentum", torch.zeros(3)).any()
    x, p = START, 0 * START
    h = 0.1
    for _ in range(2):
        p = p - h / 3 * force(x)
        x = x + h / 2 * p
    opt.step(breaks_down)
    same(q, x)


@pytest.mark.parametrize("word", ["ABABA", "BABAB"])
def test_a_skipped_step_does_not_block_the_next(word):
    """The infinite gradient that made a step be skipped is stale by the next one."""
    q, opt, closure = chain(word, on_nonfinite="skip")
    calls = []

    def breaks_down():
        loss = closure()
        calls.append(loss)
        if len(calls) == 1:
            q.grad.fill_(math.inf)
        return loss

    opt.step(breaks_down)
    same(q, START)
    opt.step(breaks_down)
    assert not np.array_equal(q.detach().numpy(), START)


# A changing step size


@pytest.mark.parametrize("word", ["BAOAB", "BAB", "BACDEDCAB"])
def test_the_kick_joins_half_of_the_step_before_to_half_of_this_one(word):
    """(h′ + h)/2, with h′ = 0 at the first step; seen in p as O, C and D are switched off."""
    q, opt, _ = chain(word, friction=0.0, noise=0.0, coupling=0.0, thermostat=0.0)
    before, p = 0.0, 0.0
    for lr in (0.1, 0.4, 0.4, 0.05):
        opt.param_groups[0]["lr"] = lr
        q.grad = torch.ones_like(q)
        opt.step()
        p -= (before + lr) / 2
        before = lr
        same(opt.state[q]["momentum"], p)


def test_baoab_with_a_changing_step_size_is_baoab():
    γ, τ = 0.5, 0.2
    q, opt, closure = chain("BAOAB", friction=γ, temperature=τ)
    x, p = START, 0 * START
    for n, h in enumerate((0.1, 0.05, 0.2, 0.2)):
        R = tether.noise.reference(3, seed=0, step=n, draw=0, name="q", dtype=torch.float64).numpy()
        p = p - h / 2 * force(x)
        x = x + h / 2 * p
        p = math.exp(-γ * h) * p + math.sqrt(τ * (1 - math.exp(-2 * γ * h))) * R
        x = x + h / 2 * p
        opt.param_groups[0]["lr"] = h
        opt.step(closure)
        same(q, x)
        p = p - h / 2 * force(x)


def test_a_step_of_size_zero_moves_nothing_and_is_forgotten():
    """Afterwards the first kick is still a half kick, and the noise still that of step 0."""
    runs = []
    for zeros in (0, 2):
        q, opt, closure = chain("BAOAB", temperature=1.0)
        for _ in range(zeros):
            opt.param_groups[0]["lr"] = 0.0
            opt.step(closure)
            same(q, START)
        opt.param_groups[0]["lr"] = 0.1
        opt.step(closure)
        runs.append(q.detach().clone())
    assert torch.equal(*runs)
