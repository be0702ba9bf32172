r"""
Overfitting: every weight on a circle
=====================================

A network with many weights and few points learns the noise of the points: its test loss falls, then rises. Here each
weight :math:`w` moves on a circle :math:`w^2 + \xi^2 = r^2` with a slack variable :math:`\xi`, so that
:math:`|w| \le r` after every step. There is no penalty to balance against the loss, only a radius for each layer.
"""

# %%
# A hundred noisy points and 300 hidden units; six runs at once.

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as loss

import tether

points = tether.data.spiral(100, turns=1.0, noise=0.2, seed=0)
test_x, test_y = tether.data.spiral(2000, turns=1.0, noise=0.2, seed=1)


def network():
    """300 ReLU units."""
    return nn.Sequential(nn.Linear(2, 300), nn.ReLU(), nn.Linear(300, 1))


@torch.no_grad()
def test(step, nets, opt):
    """The test loss of each run."""
    output = nets(test_x)[..., 0]
    return {"test": loss(output, test_y.float().expand_as(output), reduction="none").mean(1)}


# %%
# The word OBA without noise is SGD with momentum. The second table has the same dynamics on circles.

bounded = [
    tether.Part("0.weight", on=tether.Circle(1.0)),
    tether.Part("2.weight", on=tether.Circle(0.5)),
    tether.Part("*"),
]
curves = {}
for name, parts in (("momentum", None), ("momentum on circles", bounded)):
    nets = tether.Replicas(network, n=6)
    opt = tether.Optimizer(nets, parts, lr=0.2, word="OBA", friction=1.0)
    record = tether.train(nets, opt, points, loss, steps=4000, batch=20, log_every=200, callbacks=[test])
    curves[name] = record.metrics["test"]
    mean = curves[name].mean(1)
    print(f"{name:<20}: test loss {mean[-1]:.3f} in the end, {mean.min():.3f} at its lowest")

# %%
# Mean and spread over the six runs.

figure, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
for name, values in curves.items():
    mean, spread = values.mean(1), values.std(1)
    (line,) = ax.plot(record.steps, mean, label=name)
    ax.fill_between(record.steps, mean - spread, mean + spread, color=line.get_color(), alpha=0.2)
ax.set(xlabel="step", ylabel="test loss", ylim=(0.05, 0.2))
ax.legend()
plt.show()

# %%
# Had one stopped at the right step, the free network would have been as good: compare its lowest test loss. On circles
# there is no right step to find. ``tether run fig-4.7`` does it on Fashion-MNIST, ``tether run fig-4.1`` on the spiral
# of the thesis.
