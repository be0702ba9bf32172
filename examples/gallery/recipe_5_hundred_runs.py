"""
A hundred runs: Replicas
========================

One run says little about a method: another start or another order of the points gives another result. ``Replicas``
holds a hundred networks as stacked parameters and trains them by one forward, one backward and one step. Each has its
own start, minibatches and noise, and replica 7 is the same whether it is one of ten or of a hundred.
"""

# %%
# AdLaLa on two spirals, a hundred times.

import statistics
import time

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as loss

import tether

points, (test_x, test_y) = tether.data.spiral(500, seed=0), tether.data.spiral(1000, seed=1)


def network():
    """20 ReLU units."""
    return nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 1))


def trained(nets, make, steps):
    """Seconds of training."""
    opt = make(nets)
    began = time.perf_counter()
    tether.train(nets, opt, points, loss, steps=steps, batch=25)
    return time.perf_counter() - began


METHODS = {
    "SGD": lambda nets: tether.methods.sgd(nets, lr=0.1),
    "AdLaLa": lambda nets: tether.methods.adlala(nets, lr=0.25, friction=0.5),
}
accuracies = {}
for name, make in METHODS.items():
    nets = tether.Replicas(network, n=100)
    seconds = trained(nets, make, steps=3000)
    with torch.no_grad():
        accuracies[name] = 100 * ((nets(test_x)[..., 0] > 0) == (test_y > 0.5)).float().mean(1)
    mean, error = accuracies[name].mean(), accuracies[name].std() / 10
    print(f"{name:<7}: {mean:.1f} ± {error:.1f} % over 100 runs of 3,000 steps, in {seconds:.1f} s")

# %%
# What a hundred at once cost, beside one run: both by turns, and the median of the ratios. Replicas of a perceptron
# take their gradients from a compiled loop, one module by itself from autograd; ``make bench-replicas`` has the rest.

ratios = []
for _ in range(2):
    hundred = trained(tether.Replicas(network, n=100), METHODS["AdLaLa"], steps=100)
    alone = trained(network(), METHODS["AdLaLa"], steps=100)
    ratios.append(100 * alone / hundred)
print(f"a hundred runs at once are {statistics.median(ratios):.0f} times as fast as one after the other")

# %%
figure, ax = plt.subplots(figsize=(6, 3), layout="constrained")
for name, values in accuracies.items():
    ax.hist(values, bins=torch.arange(50, 101, 2), alpha=0.6, label=name)
ax.set(xlabel="test accuracy, %", ylabel="runs")
ax.legend()
plt.show()

# %%
# Any number of a method may be a tensor with one entry for each replica: one run is then a sweep.
# ``examples/search.py`` lets Optuna ask for forty settings at a time.
