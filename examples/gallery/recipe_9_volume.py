r"""
How degenerate is this minimum? The local learning coefficient
==============================================================

Count parameters, and you know little about a network: many of them may not matter. The local learning coefficient
:math:`\lambda` counts those that do. The volume of parameters around a minimum whose loss is at most
:math:`\varepsilon` above it shrinks like :math:`\varepsilon^\lambda`; :math:`\lambda` is half the number of parameters
where the Hessian is regular, and less where it is not. ``measure.llc`` estimates it by chains that start at the minimum
and are held near it (Lau et al., 2025).
"""

# %%
# First a case where the answer is known. A linear network of three layers, 5-2-3-6, has 34 parameters, but what it
# computes is a 6 × 5 matrix of rank 2, which has 18. So :math:`\lambda = 9` (Aoyagi's formula says the same), not 17.

import math
import warnings

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import mse_loss

import tether
from tether.measure import llc

torch.manual_seed(0)
linear = nn.Sequential(*[nn.Linear(a, b, bias=False) for a, b in ((5, 2), (2, 3), (3, 6))])
for weight in linear.parameters():
    nn.init.orthogonal_(weight)
x = math.sqrt(5) * torch.cat([torch.eye(5), -torch.eye(5)])
data = x, linear(x).detach()
langevin = {"word": "BAOAB", "friction": 0.2, "lr": 0.5, "chains": 16}
known = llc(linear, data, mse_loss, inverse=3e5, localisation=100.0, **langevin)
print(known)

# %%
# The temperature in this line is a check of the sampler: it is 1 if the draws follow the density that was asked for.
# Below 1 the chains are too short, above it the step is too long, and then λ̂ is wrong, too. SGLD, which is often
# used here, has an error of first order in its step: too large by 1/(1 − hk/2) where the curvature is k, and here k
# goes up to 1. ``llc`` warns. (Its chains are held a hundred times closer here, or their flat directions would take
# too long; that takes 0.6 off.)

warnings.simplefilter("ignore")  # the lines show it
for lr in (0.1, 0.3, 1.0):
    sgld = llc(linear, data, mse_loss, inverse=3e5, localisation=1e4, lr=lr, chains=16, draws=100)
    print(f"SGLD, h = {lr}: {sgld}")
warnings.simplefilter("default")

# %%
# Now networks that learn: three widths, on the one-turn spiral, each measured at the end of its training, with two
# strengths :math:`\gamma` of what holds the chains near. A direction of curvature :math:`k` counts for :math:`n\beta
# k/(n\beta k + \gamma)` of a half, so a number that depends on :math:`\gamma` is no property of the network alone: it
# says how many directions are stiffer than :math:`\gamma/(n\beta)`.


def network(width):
    """Two hidden layers."""
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))


x, y = tether.data.spiral(300, turns=1.0, noise=0.1, seed=0)
widths, strengths, found = (4, 12, 36), (10.0, 100.0), {}
for width in widths:
    nets = tether.Replicas(lambda: network(width), n=2)  # noqa: B023
    opt = tether.methods.langevin(nets, lr=0.2, friction=0.5, temperature=0.0)
    tether.train(nets, opt, (x, y), steps=3000)
    for γ in strengths:
        each = llc(nets, (x, y), lr=0.2, word="BAOAB", draws=150, thin=5, localisation=γ)
        found[width, γ] = each
        values = "  ".join(f"{one.value:.2f} ± {one.error:.2f} (R-hat {one.rhat:.2f})" for one in each)
        print(f"width {width:2}, {each[0].parameters:4} parameters, γ = {γ:3.0f}: {values}")

# %%
# The verdict: where the formula is known, the number is right. On trained networks it is 1 to 3 where half the
# parameters are 21 to 757, and that it is small is the message. From 42 parameters to 1,514 it grows from 1.9 to 3.1
# at γ = 10 and not at all at γ = 100: how strongly the chains are held changes it more than the width does, so
# compare networks at one γ only. All chains in one stack take a seventh of the time of a loop over 16
# (``benchmarks/measure.py --only chains``).

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for γ, colour in zip(strengths, ("C0", "C1"), strict=True):
    for width in widths:
        each = found[width, γ]
        values, bars = [one.value for one in each], [2 * one.error for one in each]
        label = f"γ = {γ:.0f}" if width == widths[0] else None
        left.errorbar([one.parameters for one in each], values, bars, fmt="o", color=colour, ms=4, label=label)
sizes = [found[width, γ][0].parameters for width in widths]
left.plot(sizes, [size / 2 for size in sizes], color="gray", lw=0.8, label="half the parameters")
left.set(xscale="log", yscale="log", xlabel="parameters", ylabel="λ̂ ± 2 standard errors")
left.legend()
found[36, 10.0][0].plot(right)
right.set(title="36 units, γ = 10: the mean so far")
plt.show()
