r"""
A posterior: sample, and look at R-hat
======================================

Langevin dynamics at temperature :math:`\tau` draws weights from :math:`\exp(-L/\tau)`. For :math:`L` the mean of
the negative log-likelihood over :math:`n` points, with the prior as weight decay, :math:`\tau = 1/n` is the posterior.
Each replica is a chain with a start and noise of its own, so that R-hat can tell whether the chains agree.
"""

# %%
# Twenty noisy points with a gap between them, and a network of 20 units.

import matplotlib.pyplot as plt
import torch
from torch import nn

import tether

spread = 0.1  # of the points around the curve
draw = torch.Generator().manual_seed(0)
x = torch.cat([torch.linspace(-1, -0.3, 10), torch.linspace(0.4, 1, 10)]).unsqueeze(1)
y = torch.sin(3 * x) + spread * torch.randn(x.shape, generator=draw)


def loss(output, target):
    """The mean of −log N(target; output, spread²), up to a constant."""
    return ((output - target) ** 2).mean() / (2 * spread**2)


def network():
    """20 tanh units."""
    return nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))


# %%
# Eight chains. The prior N(0, 1) of each weight is :math:`\tfrac12 |w|^2`, divided by :math:`n` as the loss is. The
# step is short: with 0.05 the draws are three times too wide at the points. ``tether.sample`` warns then, since the
# momenta have twice the temperature they should have.

chains = tether.Replicas(network, n=8)
opt = tether.methods.langevin(chains, lr=0.02, friction=1.0, temperature=1 / len(x), weight_decay=1 / len(x))
inputs = torch.linspace(-1.5, 1.5, 61).unsqueeze(1)
draws = tether.sample(chains, opt, (x, y), loss, draws=250, thin=50, burn_in=2500, quantities={}, inputs=inputs)

# %%
# The units of a network can be exchanged, so chains need not agree on the weights. They have to agree on what the
# network says. R-hat is 1 where they do; below 1.05 is usually taken as good enough.

rhat, size = draws.rhat()["output"], draws.ess()["output"]
print(draws)
print(f"R-hat of the output: at most {rhat.max():.3f} over {len(inputs)} inputs")
print(f"effective draws: {size.min():.0f} or more")

# %%
# Where there are no points, the draws differ.

mean, sd = draws.mean("output")[:, 0], draws.variance("output")[:, 0].sqrt()
figure, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
ax.fill_between(inputs[:, 0], mean - 2 * sd, mean + 2 * sd, alpha=0.25, label="mean ± 2 sd")
ax.plot(inputs, mean)
ax.plot(inputs, draws["output"][0, ::80, :, 0].T, color="gray", lw=0.5)
ax.plot(x, y, "k.", label="points")
ax.set(ylim=(-2.5, 2.5))
ax.legend()
plt.show()
