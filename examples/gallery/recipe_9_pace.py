r"""
Steps that follow the gradient: Neal's funnel
=============================================

A posterior may be wide in one place and narrow in another. A step that fits the wide part throws the chain out of the
narrow one; a step that fits the narrow part crawls through the wide one. ``tether.Pace`` lets the step shrink where the
gradient has been large, and weighs every state by the time spent in it (SamAdams; Leimkuhler, Lohmann, Whalley, 2025).
"""

# %%
# Neal's funnel: :math:`y \sim N(0, 3^2)`, and :math:`x` has the variance :math:`e^y`. Averages are known:
# :math:`\langle y \rangle = 0` and :math:`\langle y^2 \rangle = 9`.

import math
import os
import time
import warnings

import matplotlib.pyplot as plt
import torch
from torch import nn

import tether


class Funnel(nn.Module):
    """Two numbers."""

    def __init__(self):
        super().__init__()
        self.y, self.x = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(1))


def energy(m):
    """One for each chain."""
    return m.y.square() / 18 + (m.x.square().sum(-1) * torch.exp(-m.y) + m.y) / 2


def average(x, weights):
    """The weighted mean over all chains, and its standard error by how far the chains are from it."""
    mean = (weights * x).sum() / weights.sum()
    apart = (weights * (x - mean)).sum(1) / weights.sum(1).mean()
    return f"{mean:6.2f} ± {apart.std() / math.sqrt(len(x)):4.2f}"


# %%
# Forty chains of 3,000 steps, one gradient each, for both methods and several steps h.

CHAINS, STEPS = (int(os.environ.get(name, value)) for name, value in (("CHAINS", 40), ("STEPS", 3000)))
warnings.simplefilter("ignore")  # that chains diverge is the point
kept = {}
print(f"{'':10} {'h':>5} {'⟨y⟩ = 0':>15} {'⟨y²⟩ = 9':>15} {'step':>16} {'time':>6} chains lost")
for method, name in ((tether.methods.langevin, "BAOAB"), (tether.methods.samadams, "SamAdams")):
    for h in (0.02, 0.1, 0.3):
        chains = tether.Replicas(Funnel, n=CHAINS)
        began = time.process_time()
        opt, size = method(chains, lr=h, temperature=1.0), {"draws": STEPS * 9 // 100, "thin": 10}
        draws = tether.sample(chains, opt, None, energy, **size, burn_in=STEPS // 10)
        seconds = time.process_time() - began
        alive = [i for i in range(CHAINS) if i not in draws.record.stopped]
        y, x = draws["y"][alive].double(), draws["x"][alive, :, 0].double()
        weights = torch.ones_like(y) if draws.weights is None else draws.weights[alive]
        kept[name, h] = x, y, weights
        size = f"{h * weights.min():.3f} to {h * weights.max():.2f}"
        found = f"{average(y, weights):>15} {average(y.square(), weights):>15}"
        print(f"{name:10} {h:5} {found} {size:>16} {seconds:5.1f}s {CHAINS - len(alive):4}")
warnings.simplefilter("default")

# %%
# At h = 0.1 BAOAB does not enter the neck of the funnel: whatever comes near is thrown out, far up. SamAdams goes in,
# with steps of a tenth of h. The gray line is the density of y.

figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
for ax, name in zip(axes, ("BAOAB", "SamAdams"), strict=False):
    x, y, _ = kept[name, 0.1]
    ax.plot(x[::2].flatten(), y[::2].flatten(), ".", ms=1, alpha=0.4)
    ax.set(title=f"{name}, h = 0.1", xlim=(-40, 40), ylim=(-12, 15), xlabel="x", ylabel="y")
edges = torch.linspace(-12, 15, 55)
for name in ("BAOAB", "SamAdams"):
    _, y, weights = kept[name, 0.1]
    axes[2].hist(y.flatten(), edges, weights=weights.flatten(), density=True, histtype="step", label=name)
axes[2].plot(edges, torch.exp(-edges.square() / 18) / math.sqrt(18 * math.pi), color="gray", lw=0.8)
axes[2].set(xlabel="y", title="density, weighted")
axes[2].legend()
plt.show()

# %%
# And a network: the posterior of 20 tanh units from the recipe on R-hat, at a step of five times the size there.
# Beside it BAOAB with the short steps, which is right.

warnings.simplefilter("ignore")
draw = torch.Generator().manual_seed(0)
places = torch.cat([torch.linspace(-1, -0.3, 10), torch.linspace(0.4, 1, 10)]).unsqueeze(1)
values = torch.sin(3 * places) + 0.1 * torch.randn(places.shape, generator=draw)
inputs = torch.linspace(-1.5, 1.5, 61).unsqueeze(1)


def loss(output, target):
    """The mean of −log N(target; output, 0.1²), up to a constant."""
    return ((output - target) ** 2).mean() / 0.02


def spread(method, h, thin, **more):
    """The standard deviation of the outputs, and the chains that are left."""
    chains = tether.Replicas(lambda: nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1)), n=8)
    opt = method(chains, lr=h, temperature=1 / 20, weight_decay=1 / 20, **more)
    options = {"draws": 100, "thin": thin, "burn_in": 1000, "quantities": {}, "inputs": inputs}
    try:
        draws = tether.sample(chains, opt, (places, values), loss, **options)
    except RuntimeError:  # every chain diverged
        return None, 0
    return draws.variance("output").sqrt(), 8 - len(draws.record.stopped)


right, _ = spread(tether.methods.langevin, 0.02, 60)
ways = {
    "BAOAB": (tether.methods.langevin, {}),
    "SamAdams": (tether.methods.samadams, {}),
    "SamAdams, Ω = 1": (tether.methods.samadams, {"scale": 1.0}),
}
for name, (method, more) in ways.items():
    found, left = spread(method, 0.1, 20, **more)
    off = "" if not left else f", spread of the outputs off by {(found / right - 1).abs().mean():.0%}"
    print(f"{name}, h = 0.1: {left} of 8 chains are left{off}")

# %%
# The verdict. SamAdams stays in the funnel at steps where BAOAB fails, and its weighted averages are right once the
# chains are long enough: with ``CHAINS=60 STEPS=33000`` this page finds ⟨y⟩ = −0.02 ± 0.07 and ⟨y²⟩ = 8.77 ± 0.25 at
# h = 0.1, 0.13 ± 0.07 and 8.59 ± 0.44 at h = 0.3; BAOAB has 3.80 ± 0.27 and 46.3 ± 3.6 at h = 0.1, and is right at
# h = 0.02, at a third of SamAdams' time. Three thousand steps, as on this page, are too few for the last bit: a chain
# in the neck uses up its steps before much time has passed, so that averages lean towards the neck. On the network it
# keeps all chains at a step where BAOAB loses all, and with Ω = 1 the spread is right; with Ω the number of
# parameters, the default, the step shrinks too little here. So Ω is a number to choose. A step costs three to four
# times as much as BAOAB's here, where the gradient costs nothing; the numbers of a step are worked out anew each
# time. All parameters share one clock.
