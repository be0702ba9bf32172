"""
Cheaper fine-tuning: a slow body and a fast head
================================================

When a trained network learns a new task, its last layer has most to learn. Multirate SGD moves the head at every step
and the body at every fifth. In between the backward pass stops at the head, so that most of its cost is saved.
"""

# %%
# Stand-ins for a pretrained network and a new task, so that this page needs no download: ten classes of points, and
# later the same classes seen through a somewhat different lens, under other labels. ``tether run fig-5.6`` does it with
# MiniLM on SST-2.

import copy
import statistics
import time

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tether

draw = torch.Generator().manual_seed(0)
centres, lens = torch.randn(10, 16, generator=draw), torch.randn(16, 128, generator=draw)
other_lens = lens + 0.5 * torch.randn(16, 128, generator=draw)


def points(n, lens, shift):
    """Points of ten classes around their centres, seen through a nonlinear lens; labels are shifted."""
    labels = torch.randint(10, (n,), generator=draw)
    hidden = centres[labels] + 0.7 * torch.randn(n, 16, generator=draw)
    return torch.tanh(hidden @ lens / 2), (labels + shift) % 10


first_task, new_task, held_out = points(4000, lens, 0), points(1000, other_lens, 3), points(2000, other_lens, 3)


class Block(nn.Module):
    """x + f(x), as in a transformer, or f(x) alone."""

    def __init__(self, residual):
        super().__init__()
        self.residual = residual
        self.change = nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128))

    def forward(self, x):
        """The block's output."""
        return x + self.change(x) if self.residual else self.change(x)


def network(residual):
    """A body of six blocks, and a head."""
    body = nn.Sequential(*(Block(residual) for _ in range(6)))
    return nn.Sequential(body, nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 10)))


def step(net, opt, i, data):
    """One training step on the i-th batch of 100; returns its seconds."""
    rows = torch.arange(100 * i, 100 * (i + 1)) % len(data[0])
    began = time.perf_counter()
    opt.zero_grad()
    cross_entropy(net(data[0][rows]), data[1][rows]).backward()
    opt.step()
    return time.perf_counter() - began


@torch.no_grad()
def accuracy(net):
    """Per cent of the points of the new task that were held out."""
    return 100 * (net(held_out[0]).argmax(1) == held_out[1]).float().mean().item()


# %%
# Full fine-tuning beside multirate, from the same pretrained weights. ``lr`` is the step of the slow part, and the head
# makes five steps of lr/5. The two take turns, so that a busy machine slows both. The body is residual, as those of
# transformers are, or plain.


def compared(residual):
    """Train on the first task, then fine-tune in both ways: seconds of every step, and accuracies every ten steps."""
    torch.manual_seed(0)
    pretrained = network(residual)
    opt = torch.optim.SGD(pretrained.parameters(), lr=0.05, momentum=0.9)
    for i in range(150):
        step(pretrained, opt, i, first_task)
    full, multirate = copy.deepcopy(pretrained), copy.deepcopy(pretrained)
    nets = {
        "full": (full, torch.optim.SGD(full.parameters(), lr=0.01, momentum=0.9)),
        "multirate": (multirate, tether.methods.multirate_sgd(multirate, fast="1.*", k=5, lr=0.05, momentum=0.9)),
    }
    seconds, curves = {name: [] for name in nets}, {name: [] for name in nets}
    for i in range(120):
        for name, (net, opt) in nets.items():
            seconds[name].append(step(net, opt, i, new_task))
            if i % 10 == 9:
                curves[name].append(accuracy(net))
    return seconds, curves


found = {"residual body": compared(residual=True), "plain body": compared(residual=False)}
for body, (seconds, curves) in found.items():
    cycles = {name: [sum(values[i : i + 5]) for i in range(0, 120, 5)] for name, values in seconds.items()}
    ratio = statistics.median(a / b for a, b in zip(cycles["full"], cycles["multirate"], strict=True))
    last = ", ".join(f"{name} {values[-1]:.1f} %" for name, values in curves.items())
    print(f"{body:<13}: {last} after 120 steps; multirate is {ratio:.2f} times as fast")

# %%
# Accuracy on the new task against the time that was spent. Where the body has much to learn, here the plain one, few
# slow steps are not enough: try both before you rely on it.

figure, axes = plt.subplots(1, 2, figsize=(8, 3.5), sharey=True, layout="constrained")
for ax, (body, (seconds, curves)) in zip(axes, found.items(), strict=True):
    for name, values in curves.items():
        ax.plot(torch.tensor(seconds[name]).cumsum(0)[9::10], values, ".-", label=name)
    ax.set(xlabel="seconds of training", ylabel="accuracy, %", title=body)
axes[0].legend()
plt.show()

# %%
# On pretrained transformers and convolutional networks: :doc:`/finetuning`.
