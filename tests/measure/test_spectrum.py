"""Eigenvalues of Hessians: closed forms, Lanczos against the whole matrix, honest counts."""

import math

import pytest
import torch
from landscapes import NOTHING, Quadratic, rotated, small, value
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, TensorDataset

import tether
from tether.measure import Unconverged, hessian_spectrum
from tether.measure.hessian import hessian
from tether.measure.lanczos import extremes
from tether.measure.spectrum import count


def half_square(output, target):
    return (output - target).square().sum() / 2


def reference(net, data, loss=nn.functional.cross_entropy):
    """The Hessian by torch's own double loop over a flat vector, in double precision."""
    named = [(name, x.detach().double()) for name, x in net.named_parameters() if x.requires_grad]
    rest = {name: x.detach().double() for name, x in net.named_parameters() if not x.requires_grad}
    rest |= {name: x.double() if x.is_floating_point() else x for name, x in net.named_buffers()}
    flat = torch.cat([x.flatten() for _, x in named])

    def f(θ):
        parts = θ.split([x.numel() for _, x in named])
        state = {name: part.view_as(x) for part, (name, x) in zip(parts, named, strict=True)}
        return loss(torch.func.functional_call(net, {**rest, **state}, (data[0].double(),)), data[1])

    with sdpa_kernel(SDPBackend.MATH):
        return torch.autograd.functional.hessian(f, flat)


def test_a_quadratic_has_the_eigenvalues_of_its_matrix():
    values = [-3.0, -1e-3, 0.0, 0.0, 1e-3, 2.0, 5.0]
    net = Quadratic(rotated(values), torch.randn(7, dtype=torch.float64))
    result = hessian_spectrum(net, NOTHING, value)
    torch.testing.assert_close(result.eigenvalues, torch.tensor(values, dtype=torch.float64), atol=1e-13, rtol=0)
    assert (result.negative, result.zero, result.positive) == (2, 2, 3)
    assert result.exact
    assert result.bottom == result.parameters == result.products == 7
    assert result.kind == "saddle, degenerate"
    assert result.trace == pytest.approx(4.0)
    assert result.loss == pytest.approx((0.5 * net.θ @ net.A @ net.θ).item())
    coarse = hessian_spectrum(net, NOTHING, value, zero=1e-2)  # ±1e-3 are within 1e-2 · 5
    assert (coarse.negative, coarse.zero, coarse.positive) == (1, 4, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_linear_net_has_the_hessian_of_its_data(dtype):
    """Σ xxᵀ for each output: rank N and d − N zeros, times the number of outputs; λI makes it definite."""
    torch.manual_seed(1)
    X, Y = torch.randn(5, 8, dtype=dtype), torch.randn(5, 2, dtype=dtype)
    net = nn.Linear(8, 2, bias=False, dtype=dtype)
    result = hessian_spectrum(net, (X, Y), half_square)
    each = torch.linalg.eigvalsh(X.double().mT @ X.double())
    exact = torch.cat([each, each]).sort().values
    torch.testing.assert_close(result.eigenvalues, exact, atol=1e-12, rtol=1e-12)
    assert (result.negative, result.zero, result.positive) == (0, 6, 10)
    assert result.kind == "minimum, degenerate"
    ridge = hessian_spectrum(net, (X, Y), half_square, regularization=0.5)
    torch.testing.assert_close(ridge.eigenvalues, exact + 0.5, atol=1e-12, rtol=1e-12)
    assert (ridge.negative, ridge.zero, ridge.positive, ridge.kind) == (0, 0, 16, "minimum, hyperbolic")
    shifted = result.regularized(0.5)
    assert torch.equal(shifted.eigenvalues, ridge.eigenvalues)
    assert str(shifted) == str(ridge)
    assert str(shifted.regularized(0.0)) == str(result)


def test_the_matrix_is_torchs_own_for_layers_of_all_sorts():
    torch.manual_seed(0)
    conv = nn.Sequential(
        nn.Conv2d(1, 2, 3, bias=False), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)
    )
    conv[1].running_mean.normal_()
    conv[1].running_var.uniform_(0.5, 2)
    conv[5].bias.requires_grad_(False)
    attention = nn.Sequential(
        nn.TransformerEncoderLayer(4, 2, 4, dropout=0.5, batch_first=True), nn.Flatten(), nn.Linear(12, 3)
    )
    for net, x in ((conv, torch.randn(9, 1, 6, 6)), (attention, torch.randn(9, 3, 4))):
        data = x, torch.arange(9) % 3
        result = hessian_spectrum(net.train(), data)
        exact = torch.linalg.eigvalsh(reference(net.eval(), data))
        torch.testing.assert_close(result.eigenvalues, exact, atol=1e-12, rtol=1e-9)
        assert result.parameters == sum(x.numel() for x in net.parameters() if x.requires_grad)


def test_lanczos_finds_both_ends_and_bounds_its_errors():
    net, data = small()
    data = data[0].double(), data[1]
    exact = torch.linalg.eigvalsh(reference(net, data))
    for dtype, slack in ((torch.float32, 2e-6), (torch.float64, 1e-13)):
        for top, bottom in ((1, 0), (0, 1), (1, 1), (4, 3)):
            chosen = {"top": top, "bottom": bottom, "dense": 0, "tolerance": 1e-4}
            result = hessian_spectrum(net.to(dtype), (data[0].to(dtype), data[1]), **chosen)
            want = torch.cat([exact[:bottom], exact[len(exact) - top :]])
            error = (result.eigenvalues - want).abs()
            assert (error <= result.residuals).all()
            assert error.max() <= 1e-6 * exact.abs().max() + slack  # the square of the tolerance, or rounding
            assert result.residuals.max() <= 2e-4 * exact.abs().max()
            assert not result.exact


def test_lanczos_counts_multiplicities():
    """One Krylov space holds one vector of each eigenspace: copies must be looked for."""
    values = [-2.0, -2.0, -2.0, -1.0] + [0.0] * 30 + [1.0, 3.0, 3.0, 4.0, 4.0, 4.0, 4.0]
    net = Quadratic(rotated(values))
    result = hessian_spectrum(net, NOTHING, value, top=6, bottom=5, dense=0, tolerance=1e-6)
    want = torch.tensor([-2.0, -2.0, -2.0, -1.0, 0.0, 3.0, 3.0, 4.0, 4.0, 4.0, 4.0], dtype=torch.float64)
    torch.testing.assert_close(result.eigenvalues, want, atol=1e-8, rtol=0)
    assert result.negative == 4


@pytest.mark.parametrize("seed", [247, 276, 291, 296])
def test_lanczos_stays_orthogonal_where_all_eigenvalues_lie_together(seed):
    """One pass of Gram–Schmidt lets errors grow threefold from row to row here: 1.7 instead of 0.85."""
    torch.manual_seed(seed)
    layer = torch.nn.ConvTranspose2d(3, 2, 3, stride=2, bias=False).double()
    J = torch.stack([layer(e.view(1, 3, 3, 4)).flatten() for e in torch.eye(36, dtype=torch.float64)])
    A = (J @ J.mT).detach()
    options = {"tolerance": 1e-7, "iterations": 300, "generator": torch.Generator().manual_seed(0)}
    found = extremes(lambda v, out: out.copy_(A @ v), A[0], 1, 0, **options)
    assert found.values[-1].item() == pytest.approx(torch.linalg.eigvalsh(A)[-1].item(), rel=1e-6)


def test_lanczos_restarts_when_memory_is_short():
    torch.manual_seed(0)
    diagonal = torch.tensor([*torch.linspace(0, 1, 500).tolist(), 1.05, 1.1, -0.03], dtype=torch.float64)
    like = torch.empty(503, dtype=torch.float64)
    settings = {"tolerance": 1e-7, "iterations": 5000, "generator": torch.Generator().manual_seed(0)}
    found = extremes(lambda v, out: torch.mul(diagonal, v, out=out), like, 3, 1, memory=30 * 503 * 8, **settings)
    want = torch.tensor([-0.03, 1.0, 1.05, 1.1], dtype=torch.float64)
    torch.testing.assert_close(found.values, want, atol=1e-10, rtol=0)
    assert found.vectors.abs().argmax(1).tolist() == [502, 499, 500, 501]
    residual = found.vectors * diagonal - found.values[:, None] * found.vectors
    assert (residual.norm(dim=1) <= found.residuals).all()


def test_unconverged_is_an_error_that_says_what_to_do():
    net, data = small()
    with pytest.raises(Unconverged, match=r"after 3 products .* residuals up to .* iterations=12"):
        hessian_spectrum(net, data, dense=0, iterations=3, tolerance=1e-6)
    net = Quadratic(rotated([1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]))
    with pytest.raises(Unconverged, match="not whether there are others"):
        hessian_spectrum(net, NOTHING, value, top=2, bottom=0, dense=0, iterations=4)


def test_counts_are_given_only_where_the_ends_tell():
    def counts(low, high, n=100):
        values = torch.tensor([*low, *high], dtype=torch.float64)
        return count(values, len(low), n, 0.1)

    assert counts([0.5], [1.0]) == (0, 0, 100)  # all lie between
    assert counts([-1.0, 0.0], [1.0]) == (1, None, None)
    assert counts([-1.0], [0.0, 2.0]) == (None, None, 1)
    assert counts([-1.0, 0.05], [-0.05, 2.0]) == (1, 98, 1)
    assert counts([-1.0], [2.0]) == (None, None, None)
    assert counts([-2.0], [-1.0]) == (100, 0, 0)
    assert counts([], [2.0]) == (None, None, None)
    assert counts([-1.0, 0.0, 3.0], [], 3) == (1, 1, 1)
    torch.manual_seed(0)
    A = rotated([0.0] * 30 + list(torch.rand(20).tolist()) + [1.5])
    plain = hessian_spectrum(Quadratic(A), NOTHING, value, dense=0)
    assert (plain.negative, plain.zero, plain.positive) == (0, None, None)
    assert plain.kind == "minimum, degenerate"  # one zero is seen, others not counted
    assert "51 parameters: λ 0 … 1.5; 0 negative (minimum, degenerate)" in str(plain)
    ridge = hessian_spectrum(Quadratic(A), NOTHING, value, dense=0, regularization=0.01)
    assert (ridge.negative, ridge.zero, ridge.positive) == (0, 0, 51)
    assert str(plain.regularized(0.01)) == str(ridge)


def test_batches_loaders_and_caches_give_the_same():
    net, (x, y) = small()
    whole = hessian_spectrum(net, (x, y)).eigenvalues
    for data, options in (
        ([(x[:7], y[:7]), (x[7:], y[7:])], {}),
        (iter([(x[:7], y[:7]), (x[7:], y[7:])]), {"cache": True}),
        (DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True), {}),
        ((x, y), {"chunk": 3}),
        ((x, y), {"cache": False}),
    ):
        found = hessian_spectrum(net, data, **options)
        torch.testing.assert_close(found.eigenvalues, whole, atol=1e-12, rtol=1e-9)
        assert found.loss == pytest.approx(nn.functional.cross_entropy(net(x), y).item(), rel=1e-5)


class Hugging(nn.Module):
    """Takes keywords and brings its own loss."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1, bias=False)

    def forward(self, inputs, labels=None):
        logits = self.linear(inputs)
        return {"logits": logits, "loss": half_square(logits, labels)}


def test_dictionaries_replicas_parts_and_half_precision():
    X, Y = torch.tensor([[1.0, 2.0, 2.0]]), torch.zeros(1, 1)
    result = hessian_spectrum(Hugging(), {"inputs": X, "labels": Y})
    assert result.eigenvalues.tolist() == pytest.approx([0, 0, 9], abs=1e-12)
    ens = tether.Replicas(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), n=3)
    data = torch.randn(6, 3), torch.randn(6, 1)
    found = hessian_spectrum(ens, data, nn.functional.mse_loss, where="2.*")
    for i, result in enumerate(found):
        alone = hessian_spectrum(ens[i], data, nn.functional.mse_loss, where="2.*")
        assert torch.equal(result.eigenvalues, alone.eigenvalues)
        h = torch.cat([torch.tanh(ens[i][0](data[0])), torch.ones(6, 1)], dim=1).double()
        exact = torch.linalg.eigvalsh(2 / 6 * h.mT @ h)  # linear in the last layer
        torch.testing.assert_close(result.eigenvalues, exact, atol=1e-6, rtol=1e-5)
    net = nn.Linear(3, 1, bias=False).bfloat16()
    found = hessian_spectrum(net, (X.bfloat16(), Y.bfloat16()), half_square, dense=0)
    assert found.eigenvalues.tolist() == pytest.approx([0, 9], abs=1e-5)
    with hessian(net, (X.bfloat16(), Y.bfloat16()), half_square) as H:
        assert H.dtype == torch.float32


def test_the_seed_is_private_and_decides_all():
    net, data = small()
    torch.manual_seed(3)
    first = hessian_spectrum(net, data, dense=0, tolerance=1e-2)
    torch.manual_seed(4)
    again = hessian_spectrum(net, data, dense=0, tolerance=1e-2)
    other = hessian_spectrum(net, data, dense=0, tolerance=1e-2, seed=1)
    assert torch.equal(first.eigenvalues, again.eigenvalues)
    assert not torch.equal(first.eigenvalues, other.eigenvalues)


def test_bad_input_is_named():
    net, (x, y) = small()
    bad = x.clone()
    bad[0, 0] = math.nan
    with pytest.raises(ValueError, match="the loss is nan"):
        hessian_spectrum(net, (bad, y))
    with pytest.raises(ValueError, match=r"of shape \(20,\)"):
        hessian_spectrum(net, (x, y), lambda out, target: nn.functional.cross_entropy(out, target, reduction="none"))
    with pytest.raises(ValueError, match=r"where='5.\*' matches no parameter .* '0.weight'"):
        hessian_spectrum(net, (x, y), where="5.*")
    with pytest.raises(ValueError, match="top=-1"):
        hessian_spectrum(net, (x, y), top=-1)
    with pytest.raises(ValueError, match="bfloat16 is too coarse"):
        hessian_spectrum(net, (x, y), dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="ask for no eigenvalue"):
        hessian_spectrum(net, (x, y), top=0, bottom=0, dense=0)
    with pytest.raises(ValueError, match="regularization=-1"):
        hessian_spectrum(net, (x, y), regularization=-1)

    class Changing:
        passes = 0

        def __iter__(self):
            self.passes += 1
            return iter([(x * self.passes, y)])

    with pytest.raises(ValueError, match="the same points every time"):
        hessian_spectrum(net, Changing())


def test_a_loss_that_is_flat_has_only_zeros():
    net, data = small()
    result = hessian_spectrum(net, data, lambda out, target: out.sum() * 0)
    assert (result.negative, result.zero, result.positive) == (0, result.parameters, 0)
    ends = hessian_spectrum(net, data, lambda out, target: out.sum() * 0, dense=0)
    assert (ends.negative, ends.zero, ends.positive) == (0, ends.parameters, 0)
    found = hessian_spectrum(nn.Linear(4, 1), data, lambda out, target: out.sum())  # linear: no curvature at all
    assert found.zero == 5


def test_the_plot_has_a_mark_for_each_eigenvalue():
    pytest.importorskip("matplotlib").use("Agg")
    result = hessian_spectrum(Quadratic(rotated([-1.0, 0.0, 2.0, 3.0])), NOTHING, value)
    ax = result.plot()
    marks = {line.get_label(): line.get_xydata().tolist() for line in ax.lines}
    assert [x for x, _ in marks["> 0"]] == [1, 2]
    assert [x for x, _ in marks["< 0"]] == [4]
    assert marks["< 0"][0][1] == pytest.approx(-1)
    ends = hessian_spectrum(Quadratic(rotated([-1.0, 0.0, 2.0, 3.0])), NOTHING, value, dense=0).plot()
    assert sorted(x for line in ends.lines for x in line.get_xdata()) == [1, 4]
