"""No measure leaves a trace: parameters, buffers, modes, gradients and random states stay as they were."""

import hashlib
import pickle
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tether import measure

# name of the measure, and a call of it on a network of two classes with 3 inputs and a pair (inputs, targets).
CASES = [
    ("linear_path", lambda net, data: measure.linear_path(net, start_of(net), net.state_dict(), data, 3)),
    (
        "linear_path, whole",
        lambda net, data: measure.linear_path(net, start_of(net), net.state_dict(), data, 3, fast=False),
    ),
    (
        "linear_path, recalibrated",
        lambda net, data: measure.linear_path(net, start_of(net), net.state_dict(), data, 3, batchnorm="recalibrate"),
    ),
    ("surface", lambda net, data: measure.surface(net, start_of(net), None, None, data, 3, 3)),
    (
        "surface, recalibrated",
        lambda net, data: measure.surface(
            net, start_of(net), net.state_dict(), start_of(net), data, 3, 3, batchnorm="recalibrate"
        ),
    ),
    ("layer_paths", lambda net, data: measure.layer_paths(net, start_of(net), net.state_dict(), data, 3)),
    ("path_norm", lambda net, data: measure.path_norm(net[0])),
    ("path_vector", lambda net, data: measure.path_vector(net[0])),
    ("boundary", lambda net, data: measure.boundary(planar(net), (-1, 1, -1, 1), grid=9)),
    ("boundary_curvature", lambda net, data: measure.boundary_curvature(planar(net), (-1, 1, -1, 1), grid=9)),
    (
        "boundary_curvature by autograd",
        lambda net, data: measure.boundary_curvature(
            nn.Sequential(planar(net), nn.Tanh()), (-9, 9, -9, 9), grid=9, smoothing=0
        ),
    ),
    (
        "boundary of a random function",
        lambda net, data: measure.boundary(lambda p: p[:, 0] + torch.rand(1) + random.random(), (-1, 1, -1, 1), grid=9),
    ),
    ("prediction_gradient", lambda net, data: measure.prediction_gradient(planar(net), (-1, 1, -1, 1), points=9)),
    ("configurational_temperature", lambda net, data: measure.configurational_temperature(net, data)),
    (
        "configurational_temperature of draws",
        lambda net, data: measure.configurational_temperature(net, data, draws=[start_of(net)] * 2, probes=2),
    ),
    ("histograms", lambda net, data: measure.histograms()(1, net, None)),
    ("morph", lambda net, data: measure.morph(net, data[0][0], data[0][1])),
    ("hessian_spectrum", lambda net, data: measure.hessian_spectrum(net, data)),
    (
        "hessian_spectrum, Lanczos on a shuffling loader",
        lambda net, data: measure.hessian_spectrum(net, shuffled(data), top=2, dense=0),
    ),
    ("hessian_trace", lambda net, data: measure.hessian_trace(net, data, dense=0)),
    ("spectral_density", lambda net, data: measure.spectral_density(net, data, dense=0)),
    ("minimum_norm", lambda net, data: measure.minimum_norm(data[0], torch.ones(12, 4), net[:2], start=net[:2])),
    ("hard_margin", lambda net, data: measure.hard_margin(data[0], data[0][:, 0] > 0, column(net))),
    ("margin", lambda net, data: measure.margin(net, data)),
    ("gradient_norms", lambda net, data: measure.gradient_norms(net, shuffled(data))),
    ("jacobian_spectrum", lambda net, data: measure.jacobian_spectrum(net, data[0])),
    ("jacobian_spectrum, Lanczos", lambda net, data: measure.jacobian_spectrum(net, data[0][:2], top=1)),
    ("lipschitz", lambda net, data: measure.lipschitz(net, data[0])),
    ("homogeneity", lambda net, data: measure.homogeneity(net, data)),
    ("gradient_noise", lambda net, data: measure.gradient_noise(net, data, 3)),
    (
        "llc",
        lambda net, data: measure.llc(
            net, shuffled(data), lr=0.01, draws=4, thin=1, chains=2, batch=4, localisation=1e4
        ),
    ),
    ("gradient_noise, one by one", lambda net, data: measure.gradient_noise(net, data, 3, one_by_one=True)),
]


def shuffled(data):
    return DataLoader(TensorDataset(*data), batch_size=5, shuffle=True)


def column(net):
    """The mean of the first layer: linear, with one output, the same parameters."""
    return nn.Sequential(net[0], net[1], nn.AdaptiveAvgPool1d(1))


def network():
    """BatchNorm and dropout, some of it in training mode, some frozen, with gradients."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))
    x, y = torch.randn(12, 3), torch.arange(12) % 2
    nn.functional.cross_entropy(net(x), y).backward()
    net[1].eval()
    net[4].bias.requires_grad_(False)
    return net, (x, y)


def planar(net):
    """The network on the plane z = 0."""
    return nn.Sequential(nn.ConstantPad1d((0, 1), 0.0), net)


def start_of(net):
    """Another state of the network."""
    return {name: x + 1 for name, x in net.state_dict().items()}


def trace(net, data):
    """A hash of everything that a measure might change."""
    tensors = [*net.state_dict(keep_vars=True).values()]
    grads = [None if x.grad is None else (id(x.grad), x.grad.numpy().tobytes()) for x in net.parameters()]
    parts = (
        [(id(x), x.data_ptr(), x.requires_grad, x.detach().numpy().tobytes()) for x in (*tensors, *data)],
        grads,
        [module.training for module in net.modules()],
        [list(module._forward_hooks) + list(module._forward_pre_hooks) for module in net.modules()],
        [list(vars(module)) for module in net.modules()],
        torch.get_rng_state().numpy().tobytes(),
        pickle.dumps(np.random.get_state()),
        random.getstate(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
    )
    return hashlib.sha256(pickle.dumps(parts)).hexdigest()


@pytest.mark.filterwarnings("ignore:R-hat is", "ignore:the parameters have", "ignore:λ̂ = ")  # of so few draws
@pytest.mark.parametrize(("name", "call"), CASES, ids=[name for name, _ in CASES])
def test_nothing_is_left_behind(name, call):
    net, data = network()
    before = trace(net, data)
    call(net, data)
    assert trace(net, data) == before


def test_the_trace_sees_every_change():
    net, data = network()
    seen = {trace(net, data)}
    for change in (
        lambda: net[1].running_mean.add_(1),
        lambda: net[0].weight.grad.mul_(2),
        lambda: net[1].train(),
        lambda: net[4].bias.requires_grad_(True),
        lambda: torch.rand(1),
        lambda: random.random(),
        lambda: np.random.rand(),
        lambda: data[0].add_(1),
    ):
        change()
        seen.add(trace(net, data))
    assert len(seen) == 9
