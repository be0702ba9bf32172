"""Losses whose Hessians are known, and a small net."""

import torch
from torch import nn


class Quadratic(nn.Module):
    """½θᵀAθ, whatever the data."""

    def __init__(self, A, start=None):
        super().__init__()
        self.register_buffer("A", A)
        self.θ = nn.Parameter(torch.zeros(len(A), dtype=A.dtype) if start is None else start)

    def forward(self, x):
        return 0.5 * self.θ @ self.A @ self.θ + 0 * x.sum()


def value(output, target):
    return output


def rotated(values, seed=0):
    """A symmetric matrix with these eigenvalues."""
    values = torch.as_tensor(values, dtype=torch.float64)
    torch.manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(len(values), len(values), dtype=torch.float64)).Q
    return Q @ torch.diag(values) @ Q.mT


NOTHING = torch.zeros(1, 1), torch.zeros(1)


def small(seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    return net, (torch.randn(20, 4), torch.arange(20) % 3)
