r"""
A step size for each weight: does it pay for a posterior?
=========================================================

Where weights have different scales, one step size is too long for some and too short for others. Adam divides by the
running size of each gradient; ``methods.rms_sgld`` samples that way. Two questions: does a chain get further with the
same number of gradients, and is what it samples still the posterior? All samplers get the same gradients, and every
one has the step size that was best for it in other chains.
"""

# %%
# A normal posterior in ten dimensions, known exactly. Its precisions lie between 1 and 1000. Once the axes are the
# weights ("along"), once they are turned by a random rotation ("turned"), so that no weight has a scale of its own.

import math
import os

import matplotlib.pyplot as plt
import torch
from torch import nn

import tether

steps = int(os.environ.get("STEPS", "2000"))
size, burn, every, chains = 10, steps // 4, 5, 32
draw = torch.Generator().manual_seed(0)
precisions = torch.logspace(0, 3, size, dtype=torch.float64)
rotation = torch.linalg.qr(torch.randn(size, size, generator=draw, dtype=torch.float64))[0]
axes = {"along": torch.eye(size, dtype=torch.float64), "turned": rotation}

# %%
# Five samplers. "Kept" ones stop to change their scales v at the end of the burn-in: ``until=``. Step sizes to try are
# shares of what is stable: :math:`1/\lambda` for SGLD, :math:`1/\sqrt\lambda` with momenta, and with the metric the
# square roots of those, as :math:`\sqrt v` is about :math:`\sqrt\lambda` here. A friction of 2 is near the best for
# both that have momenta.

most, metric = 1000, tether.RMS(decay=0.99, eps=1e-5, until=burn)


def rms(θ, h, until):
    """Preconditioned SGLD."""
    return tether.methods.rms_sgld(θ, lr=h, temperature=1.0, decay=0.99, until=until, on_nonfinite="skip")


def langevin(θ, h, **more):
    """BAOAB."""
    return tether.methods.langevin(θ, lr=h, temperature=1.0, friction=2.0, on_nonfinite="skip", **more)


samplers = {
    "SGLD": (lambda θ, h: tether.methods.sgld(θ, lr=h, temperature=1.0), most**-1.0),
    "SGLD, RMS": (lambda θ, h: rms(θ, h, None), most**-0.5),
    "SGLD, RMS kept": (lambda θ, h: rms(θ, h, burn), most**-0.5),
    "BAOAB": (langevin, 1.6 * most**-0.5),
    "BAOAB, RMS kept": (lambda θ, h: langevin(θ, h, metric=metric), 1.6 * most**-0.25),
}
shares = (0.25, 0.5, 0.75, 1.0)


def variances(make, h, basis, seed):
    """The variance of each chain along each axis of the posterior, where 1 is right. Chains begin far outside."""
    precision = (basis * precisions) @ basis.T
    start = 3 * torch.randn(chains, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    θ = nn.Parameter((start / precisions.sqrt()) @ basis.T)
    opt, total = make(nn.ParameterList([θ]), h), torch.zeros(chains, size, dtype=torch.float64)
    for step in range(steps):
        θ.grad = θ.detach() @ precision
        opt.step()
        if step >= burn and step % every == 0:
            total += (θ.detach() @ basis).square() * precisions
    return (total / len(range(burn, steps, every))).nan_to_num(nan=1e9, posinf=1e9)


def error(found):
    """Of one chain: what it misses the variances by, √⟨(v − 1)²⟩ over the axes."""
    return (found - 1).square().mean(1).sqrt()


# %%
# The step with the least error in 32 chains is tried again in 32 others, which begin elsewhere. The bias is the mean of
# v − 1 over chains: of the widest axis, of the narrowest.

found, curves = {}, {}
print(f"{'':8}{'':16} {'h':>8} {'error of a chain':>17} {'bias, widest':>15} {'bias, narrowest':>16}")
for turn, basis in axes.items():
    for name, (make, unit) in samplers.items():
        tried = [error(variances(make, share * unit, basis, 1)).mean().item() for share in shares]
        h = shares[min(range(len(shares)), key=lambda i: tried[i])] * unit
        v = variances(make, h, basis, 2)
        found[turn, name], curves[turn, name] = error(v), tried
        cells = [f"{x.mean():.3f} ± {x.std() / math.sqrt(chains):.3f}" for x in (error(v), v[:, 0] - 1, v[:, -1] - 1)]
        print(f"{turn:8}{name:16} {h:8.4f} {cells[0]:>17} {cells[1]:>15} {cells[2]:>16}")

# %%
# Errors against the step size.

figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for panel, turn in zip(panels, axes, strict=True):
    for name in samplers:
        panel.plot(shares, curves[turn, name], "o-", ms=4, label=name)
    panel.set(yscale="log", ylim=(0.05, 5), title=turn, xlabel="step size, as a share of the longest tried")
panels[0].set(ylabel="error of the variances of one chain")
panels[0].legend(fontsize=8)
plt.show()

# %%
# A trap: v begins at 0. Where a chain starts at the minimum and gradients are those of all points, the first step is
# :math:`\sqrt{2\tau h/\varepsilon}`, however narrow the posterior is.

θ = nn.Parameter(torch.zeros(1000, size, dtype=torch.float64))
opt, θ.grad = rms(nn.ParameterList([θ]), 0.01, None), torch.zeros_like(θ)
opt.step()
away = (θ.detach() * precisions.sqrt()).std(0)
print(f"one step from the minimum: {away[0]:.0f} to {away[-1]:.0f} standard deviations away")

# %%
# The verdict, from chains of 20,000 steps (``STEPS=20000``, two minutes of processor time). Where the axes are the
# weights, kept scales pay: the error of SGLD falls from 0.224 ± 0.011 to 0.091 ± 0.003. With running scales it is
# 0.189 ± 0.004, and stays there: the variance of the widest axis is 23 ± 2 % too large, where kept ones have -1 ± 2 %.
# So sample with ``until=``. But momentum is worth more: plain ``BAOAB`` has 0.045 ± 0.002, with or without a rotation,
# since its time grows as the root of the condition number, too. Both together have 0.026 ± 0.001, a third of the
# gradients for the same error; that is the row to take, ``langevin(..., metric=tether.RMS(until=...))``. Where the
# axes are turned, the metric does not pay: 0.197 ± 0.010 for SGLD's 0.211 ± 0.010, and 0.054 ± 0.003 for 0.049 ± 0.002
# with momenta. No network was tried here: its posterior is more or less turned. A weight whose gradient was 0 when v
# was kept, as behind a ReLU that is off, has :math:`G = 1/\varepsilon` from then on.
