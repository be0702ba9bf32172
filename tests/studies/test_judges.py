"""Judges: Student's t by hand, against scipy, and how often they find a difference where there is none."""

import math

import numpy as np
import pytest
from scipy.stats import t as student

from tether_studies.judges import (
    HELD,
    NOT_HELD,
    UNDECIDED,
    Judgement,
    chosen,
    every,
    falls,
    judging,
    less,
    mean_error,
    more,
    near,
    no_worse,
    undecided,
    yes,
)
from tether_studies.student import quantile, tail


def test_students_t_is_that_of_tables_and_of_scipy():
    # one degree of freedom is Cauchy's tan(π/2 · 0.95), two have t = p √(2 / (1 − p²)) with p = 0.95
    assert quantile(0.05, 1) == pytest.approx(math.tan(math.pi / 2 * 0.95), rel=1e-9)
    assert quantile(0.05, 2) == pytest.approx(0.95 * math.sqrt(2 / (1 - 0.95**2)), rel=1e-9)
    for freedom in (1, 1.3, 3, 4.7, 19, 99, 1e5):
        assert quantile(0.1, freedom) == pytest.approx(student.ppf(0.95, freedom), rel=1e-8)
        for t in (0.0, 0.01, 1.0, 3.0, 50.0):
            assert tail(t, freedom) == pytest.approx(2 * student.sf(t, freedom), rel=1e-8)


def test_pairs_by_hand():
    # differences 1, 2, 3: mean 2, deviation 1, error 1/√3, t = 3.46 < 4.30; a fourth run of 2: error √(2/3)/2, t = 4.9
    a, b = np.array([5.0, 8.0, 4.0, 3.0]), np.array([4.0, 6.0, 1.0, 1.0])
    three = more(a[:3], b[:3])
    assert (three.verdict, three.runs, three.provisional) == (UNDECIDED, 3, True)
    assert three.evidence == "difference 2 ± 0.58 over 3 pairs of runs, t = 3.5 (4.3 needed)"
    four = more(a, b)
    assert (four.verdict, four.provisional) == (HELD, False)
    assert four.evidence == "difference 2 ± 0.41 over 4 pairs of runs, t = 4.9 (3.18 needed)"
    assert four.p == pytest.approx(2 * student.sf(2 / (math.sqrt(2 / 3) / 2), 3))
    assert more(b, a).verdict == NOT_HELD
    assert less(b, a).verdict == HELD
    assert more(a, b, by=1.0).verdict == UNDECIDED  # t = 2.45
    assert more(a - b, 0.0).verdict == HELD  # one side against a number
    assert mean_error([1.0, 2.0, 3.0]) == (2.0, pytest.approx(1 / math.sqrt(3)))


def test_runs_that_are_no_pairs_need_a_reason():
    with pytest.raises(ValueError, match=r"3 runs against 2: runs are pairs; if they are none, say why: apart="):
        more([1.0, 2.0, 3.0], [1.0, 2.0])
    # errors 1/√3 and ½, freedoms (1/3 + 1/4)² / ((1/3)²/2 + (1/4)²/1) = 2.88, t = 5.5 / √(7/12) = 7.2
    found = more([6.0, 7.0, 8.0], [1.0, 2.0], apart="other data")
    assert found.evidence == "difference 5.5 ± 0.76 over 3 and 2 runs (other data), t = 7.2 (3.26 needed)"
    assert (found.verdict, found.runs) == (HELD, 2)


def test_as_good_as_is_two_one_sided_tests():
    # error 0.1, three freedoms: held within 2.353 errors, beyond by 3.182
    x = np.array([0.0, 0.2, -0.2, 0.0]) * math.sqrt(3 / 2)
    assert near(x, 0.0, within=0.24).verdict == HELD
    assert near(x, 0.0, within=0.23).verdict == UNDECIDED
    assert near(x + 1, np.zeros(4), within=0.69).verdict == UNDECIDED
    assert near(x + 1, np.zeros(4), within=0.68).verdict == NOT_HELD
    assert near(x + 1, np.zeros(4), within=0.68).evidence == (
        "difference 1 ± 0.1 over 4 pairs of runs, margin 0.68: t = -3.2 (2.35 needed)"
    )
    assert no_worse(x + 1, 0.0, within=0.1).verdict == HELD  # better is no worse
    assert no_worse(x - 0.1, 0.0, within=0.34).verdict == HELD
    assert no_worse(x - 0.1, 0.0, within=0.33).verdict == UNDECIDED
    assert no_worse(x - 1, 0.0, within=0.1).verdict == NOT_HELD


def test_a_difference_too_small_for_the_claim_is_none():
    # error 0.1, three freedoms: within 2.353 errors of 0.24 either way, and t = 1 < 3.182
    x = np.array([0.0, 0.2, -0.2, 0.0]) * math.sqrt(3 / 2)
    assert more(x, 0.0).verdict == UNDECIDED
    assert more(x, 0.0, least=0.23).verdict == UNDECIDED
    assert more(x, 0.0, least=0.24).verdict == NOT_HELD
    assert more(x, 0.0, least=0.24).p == pytest.approx(student.sf(2.4, 3))
    assert less(x + 0.1, np.zeros(4), least=0.33).verdict == UNDECIDED
    assert less(x + 0.1, np.zeros(4), least=0.34).verdict == NOT_HELD
    assert more(x + 1, 0.0, least=2.0).verdict == HELD  # a difference that is seen is one, however small
    assert more(x + 1, 0.0, by=1.0, least=0.24).verdict == NOT_HELD
    assert more([1.0] * 4, [1.0] * 4, least=0.1).verdict == NOT_HELD
    assert more([1.0], [1.0], least=0.1).verdict == UNDECIDED


@pytest.mark.parametrize("n", [3, 5, 10])
def test_a_difference_as_large_as_the_least_is_called_none_in_one_case_of_twenty(n):
    draws = np.random.default_rng(n).normal(size=(10_000, n))
    found = [more(x, 0.0, least=1e-9 + 1.0) for x in draws + 1.0]
    none = sum(one.verdict == NOT_HELD and "either way" in one.evidence for one in found)
    assert none / 10_000 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 10_000)


@pytest.mark.parametrize("none", [[], [1.0], [math.nan, 1.0]])
def test_too_few_runs_decide_nothing(none):
    for found in (more(none, none), near(none, none, 1.0), no_worse(none, none, 1.0), less(none, 0.0)):
        assert found.verdict == UNDECIDED
        assert found.provisional


def test_equal_runs_decide_without_an_error():
    assert more([2.0] * 4, [1.0] * 4).verdict == HELD
    assert more([1.0] * 4, [1.0] * 4).verdict == UNDECIDED
    assert more([2.0, 2.0], [1.0, 1.0], apart="other data").verdict == HELD


def decided(judge, n, cases=10_000, **options):
    """In how many of so many cases without any difference there is a verdict."""
    draws = np.random.default_rng(n).normal(size=(cases, 2, n))
    return sum(judge(a, b, **options).verdict != UNDECIDED for a, b in draws) / cases


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_without_a_difference_one_case_in_twenty_is_decided(n):
    assert 0.04 < decided(more, n) < 0.06
    assert decided(more, n, cases=500, apart="no pairs") < 0.08  # Welch's is careful with few runs; three errors


def test_the_winner_is_judged_by_runs_that_did_not_choose_it():
    """Of six equal settings the best is ahead of a seventh by luck: in its own runs, not in the others'."""
    generator, own, other = np.random.default_rng(0), 0, 0
    for _ in range(2000):
        ours, cells = generator.normal(size=8), dict(enumerate(generator.normal(size=(6, 8))))
        best = chosen(cells)
        other += more(judging(cells[best]), judging(ours)).verdict == HELD
        own += more(cells[max(cells, key=lambda name: cells[name].mean())], ours).verdict == HELD
    assert other / 2000 < 0.035  # a half of 5 %, and two standard errors
    assert own / 2000 > 0.08


def test_a_claim_is_judged_part_by_part():
    held, open_ = Judgement(HELD, "2 ± 1", 5, 0.01), Judgement(UNDECIDED, "1 ± 1", 3, 0.3)
    clear, slight = Judgement(NOT_HELD, "-9 ± 1", 5, 0.001), Judgement(NOT_HELD, "-2 ± 1", 5, 0.04)
    both = every({"a": held, "b": open_})
    assert (both.verdict, both.evidence, both.runs) == (UNDECIDED, "a: 2 ± 1 (held); b: 1 ± 1 (not decided)", 3)
    assert every({"a": held, "b": clear}).verdict == NOT_HELD
    assert every({"a": held, "b": slight}).verdict == UNDECIDED  # one of two fails by chance more often than in 5 %
    assert every({"b": slight}).verdict == NOT_HELD
    assert every({"a": held, "b": yes(True, "seen")}).verdict == HELD
    assert every({"a": yes(True, ""), "b": yes(False, "")}).verdict == NOT_HELD
    assert every({"a": held, "b": undecided("too short")}).verdict == UNDECIDED
    assert every({"a": yes(True, "")}).runs is None


def test_a_correlation_by_hand():
    # r = −1/2 of n = 5: t = −½ √3 / √¾ = −1; r = −0.9: t = −0.9 √3 / √0.19 = −3.58 > 3.18
    x = [-2.0, -1.0, 0.0, 1.0, 2.0]
    assert falls(x, [2.0, -1.0, 0.0, 1.0, -2.0]).evidence == "correlation -0.60 over 5 runs, t = -1.3 (3.18 needed)"
    assert falls(x, [2.0, 1.0, -1.0, 0.0, -2.0]).verdict == HELD
    assert falls(x, [-2.0, -1.0, 1.0, 0.0, 2.0]).verdict == NOT_HELD
    assert falls(x, [1.0] * 5).verdict == UNDECIDED
