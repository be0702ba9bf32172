"""All points of a line at once through a ReLU, against point by point."""

import math

import pytest
import torch
from torch import nn

from tether import native
from tether.measure import kinks, layer_paths, linear_path

needs_compiler = pytest.mark.skipif(native.library() is None, reason="no C compiler")


def problem(dtype, units=7, outputs=5, rows=12, bias=True):
    torch.manual_seed(0)
    z = [torch.randn(rows, units, dtype=dtype) for _ in range(2)]
    weights = [torch.randn(units, outputs, dtype=dtype) for _ in range(2)]
    return z, weights, [torch.randn(outputs, dtype=dtype) for _ in range(2)] if bias else []


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-5)])
@pytest.mark.parametrize(("units", "outputs", "rows"), [(7, 5, 12), (1, 1, 1), (300, 33, 3), (4, 0, 2), (4, 3, 0)])
def test_every_point_is_the_product_there(dtype, tolerance, units, outputs, rows, threads):
    before = torch.get_num_threads()
    uneven = [-1.0, -0.7, 0.0, 1e-6, 0.01, 0.3, 0.5, 0.9, 1.0, 4.0]
    for bias, alphas in ((True, [k / 20 for k in range(21)]), (False, uneven)):
        z, weights, biases = problem(dtype, units, outputs, rows, bias)
        z[0][:, 0], z[1][:, 0] = 0.0, -1.0  # on the kink, then off
        torch.set_num_threads(threads)
        out = kinks.through(z, weights, biases, alphas)
        torch.set_num_threads(before)
        for k, α in enumerate(alphas):
            hidden, weight = ((1 - α) * a + α * b for a, b in (z, weights))
            exact = hidden.relu() @ weight + ((1 - α) * biases[0] + α * biases[1] if bias else 0)
            assert torch.allclose(out[k], exact, rtol=0, atol=tolerance * (1 + exact.abs().sum().item() / 10))


def network(dtype, bias=True):
    return nn.Sequential(
        nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 8, bias=bias), nn.ReLU(), nn.Linear(8, 3), nn.Tanh(), nn.Linear(3, 3)
    ).to(dtype)


@needs_compiler
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_paths_use_it_and_find_what_the_whole_network_finds(dtype, tolerance, bias, monkeypatch):
    torch.manual_seed(0)
    net = network(dtype, bias)
    start, end = ({name: torch.randn_like(x) for name, x in net.state_dict().items()} for _ in range(2))
    data = torch.randn(40, 6, dtype=dtype), torch.randint(3, (40,))
    calls = []
    through = kinks.through
    monkeypatch.setattr(kinks, "through", lambda *args: calls.append(1) or through(*args))

    def losses(**options):
        lines = {"": linear_path(net, start, end, data, 21, chunk=16, **options)}
        lines |= layer_paths(net, start, end, data, 21, chunk=16, **options)
        return torch.stack([path.losses for path in lines.values()])

    exact = losses(fast=False)
    assert not calls
    assert (losses() - exact).abs().max() < tolerance
    assert len(calls) == 9  # three chunks of everything, of the first layer and of the second
    monkeypatch.setattr(native, "serves", lambda dtype, device: False)
    assert (losses() - exact).abs().max() < tolerance
    assert len(calls) == 9


@pytest.mark.parametrize("where", ["0.weight", "2.weight", "2.bias", "4.weight"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_not_hidden(where, value):
    torch.manual_seed(0)
    net = network(torch.float32)
    start, end = ({name: torch.randn_like(x) for name, x in net.state_dict().items()} for _ in range(2))
    end[where].view(-1)[0] = value
    data = torch.randn(40, 6), torch.randint(3, (40,))
    fast, whole = (linear_path(net, start, end, data, 21, fast=fast) for fast in (True, False))
    assert torch.equal(fast.losses.isfinite(), whole.losses.isfinite())
    assert not fast.finite
