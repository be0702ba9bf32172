"""The autocorrelation time (1.67) against that of AR(1), (1 + a)/(1 − a)."""

import pytest
import torch

from tether import measure


def ar1(a, chains, draws, seed=0):
    """x' = a x + √(1 − a²) R, from its invariant density."""
    R = torch.randn(draws, chains, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = [R[0]]
    for noise in R[1:]:
        x.append(a * x[-1] + (1 - a * a) ** 0.5 * noise)
    return torch.stack(x, 1)


@pytest.mark.parametrize("a", [0.0, 0.5, 0.9, -0.5])
@pytest.mark.parametrize("chains", [1, 8])
def test_the_time_of_ar1(a, chains):
    found = measure.autocorrelation_time(ar1(a, chains, 16000 // chains))
    want = (1 + a) / (1 - a)
    left_out = 0.02 * want if a >= 0 else 0.04  # beyond the window: e^{−5} of it, or 2 Σ a^s from s = 6 on
    assert abs(found.time - want) < 3 * found.error + left_out
    assert found.error < 0.3 * want
    assert found.draws == 16000
    assert found.ess == pytest.approx(16000 / found.time)
    assert found.correlations[1] == pytest.approx(a, abs=0.03)


def test_the_error_is_that_of_many_runs():
    runs = ar1(0.6, 60, 3000)
    found = [measure.autocorrelation_time(run) for run in runs]
    spread = torch.tensor([one.time for one in found]).std().item()
    error = sum(one.error for one in found) / 60
    assert 0.7 < spread / error < 1.4


def test_the_mean_over_a_chain_has_the_variance_that_the_time_says():
    runs = ar1(0.8, 400, 1000)
    time = measure.autocorrelation_time(runs).time
    assert runs.mean(1).var().item() == pytest.approx(time / 1000, rel=0.25)


def test_a_line_and_a_picture():
    found = measure.autocorrelation_time(ar1(0.5, 1, 2000)[0])
    assert str(found).startswith("autocorrelation time ")
    seen = []

    class Axes:
        def __getattr__(self, name):
            return lambda *args, **kwargs: seen.append(name)

    found.plot(Axes())
    assert seen == ["plot", "axvline", "set"]


@pytest.mark.parametrize(
    ("series", "message"),
    [
        (torch.zeros(3, 4, 5), "chains × draws"),
        (torch.ones(1), "2 or more"),
        (torch.ones(50), "is constant"),
        (torch.tensor([1.0, float("nan"), 2.0]), "inf or nan"),
    ],
)
def test_what_has_no_time(series, message):
    with pytest.raises(ValueError, match=message):
        measure.autocorrelation_time(series)


def test_the_factor_is_checked():
    with pytest.raises(ValueError, match="factor=0 must be positive"):
        measure.autocorrelation_time(torch.arange(10.0), factor=0)
