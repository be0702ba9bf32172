"""Images between two digits, and whether networks agree on them: section 6.2 of the thesis in small.

    python examples/between_digits.py            a DCGAN of MNIST, 15 ways of 11 images, 10 networks
    python examples/between_digits.py --quick    a first look, in two minutes
    python examples/between_digits.py --humans labels.csv

A small DCGAN learns MNIST. For every digit the code is taken whose image the networks are most certain of; each digit
starts or ends three of the 15 straight ways between codes (6.4). Without labels of people only networks are compared.
``labels.csv`` holds a row for each person and a column for each of the 165 images, way by way, −1 for a missing vote.
Set TETHER_DATA to the folder that holds mnist/.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import tether

CODE = 100
TRIES = 4000  # codes among which the clearest are looked for
WAYS = [(i, i + 1) for i in range(9)] + [(0, 9)] + [(i, i + 5) for i in range(5)]


def generator(features=32):
    """Codes of shape (100,) to images of shape (1, 28, 28) in [−1, 1]."""
    return nn.Sequential(
        nn.Unflatten(1, (CODE, 1, 1)),
        *(nn.ConvTranspose2d(CODE, 4 * features, 7, bias=False), nn.BatchNorm2d(4 * features), nn.ReLU()),
        *(nn.ConvTranspose2d(4 * features, 2 * features, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * features), nn.ReLU()),
        *(nn.ConvTranspose2d(2 * features, 1, 4, 2, 1), nn.Tanh()),
    )


def discriminator(features=32):
    return nn.Sequential(
        *(nn.Conv2d(1, features, 4, 2, 1), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(features, 2 * features, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * features), nn.LeakyReLU(0.2)),
        nn.Conv2d(2 * features, 1, 7),
        nn.Flatten(0),
    )


def started(module):
    """Weights from N(0, 0.02), as Radford et al. have it."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(layer.weight, 0.0, 0.02)
        elif isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.weight, 1.0, 0.02)
    return module


def train_dcgan(images, steps, batch=64):
    """The game of Goodfellow et al.: one step of each, by Adam with h = 2e-4 and β₁ = 0.5."""
    torch.manual_seed(0)
    make, judge = started(generator()), started(discriminator())
    opts = [torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999)) for net in (make, judge)]
    for step in range(steps):
        real = images[torch.randint(len(images), (batch,))]
        fake = make(torch.randn(batch, CODE))
        yes, no = torch.ones(batch), torch.zeros(batch)
        opts[1].zero_grad()
        caught = binary_cross_entropy_with_logits(judge(fake.detach()), no)
        (binary_cross_entropy_with_logits(judge(real), yes) + caught).backward()
        opts[1].step()
        opts[0].zero_grad()
        binary_cross_entropy_with_logits(judge(fake), yes).backward()
        opts[0].step()
        if step % 200 == 199:
            print(f"DCGAN: {step + 1:,} of {steps:,} steps", file=sys.stderr, flush=True)
    return make.eval()


def train_networks(data, test, steps, n=10):
    """Ten perceptrons with 500 hidden units, which differ in start and minibatches."""
    nets = tether.Replicas(lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 10)), n)
    tether.train(nets, torch.optim.Adam(nets.parameters(), lr=5e-4), data, cross_entropy, steps, batch=128)
    with torch.no_grad():
        right = [(net(test[0]).argmax(1) == test[1]).float().mean().item() for net in nets]
    print(f"{n} networks: test accuracy {100 * np.mean(right):.2f} ± {100 * np.std(right):.2f} %")
    return nets


@torch.no_grad()
def clearest(make, nets):
    """For each digit the code whose image all networks take for it with most certainty."""
    codes = torch.randn(TRIES, CODE, generator=torch.Generator().manual_seed(1))
    images = torch.cat([make(part) for part in codes.split(500)])
    sure = nets(images, each=False).softmax(-1).amin(0)  # the doubter's probability
    return codes[sure.argmax(0)]


def draw(ways, found, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(len(ways), len(ways[0].images), figsize=(8.5, 13), layout="constrained")
    for k, panel in enumerate(panels.flat):
        row, column = divmod(k, len(ways[0].images))
        panel.imshow(ways[row].images[column, 0], cmap="gray")
        labels = sorted(set(found.models.labels[:, k].tolist()))
        panel.set_title("✓" if len(labels) == 1 else ",".join(map(str, labels)), fontsize=7, pad=2)
        panel.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description="Images between two digits, and what networks say to them.")
    parser.add_argument("--steps", type=int, metavar="N", help="of the DCGAN (6000)")
    parser.add_argument("--network-steps", type=int, metavar="N", help="of the networks (2000)")
    parser.add_argument("--humans", type=Path, metavar="FILE", help="labels of people, a row for each")
    parser.add_argument("--out", type=Path, default=Path("out/between_digits.png"), metavar="FILE", help="the picture")
    parser.add_argument("--quick", action="store_true", help="1000 steps of the DCGAN and 300 of the networks")
    options = parser.parse_args()
    began = time.process_time()
    (x, y), (x_test, y_test) = tether.data.mnist(), tether.data.mnist(train=False)
    x, x_test = (2 * part.float().reshape(-1, 1, 28, 28) / part.max() - 1 for part in (x, x_test))
    nets = train_networks((x, y), (x_test, y_test), options.network_steps or (300 if options.quick else 2000))
    make = train_dcgan(x, options.steps or (1000 if options.quick else 6000))
    codes = clearest(make, nets)
    ways = [tether.measure.morph(make, codes[i], codes[j], points=11) for i, j in WAYS]
    with torch.no_grad():
        probabilities = nets(torch.cat([way.images for way in ways]), each=False).softmax(-1)
    humans = None if options.humans is None else np.loadtxt(options.humans, delimiter=",", ndmin=2)
    found = tether.measure.agreement(probabilities.argmax(-1), humans, probabilities)
    print(found)
    print(
        f"two networks disagree on {100 * found.disagreement.mean:.1f} ± {100 * found.disagreement.std:.1f} % of images"
    )
    apart = ~torch.from_numpy(found.models.agree)
    largest = probabilities.amax(-1)
    for name, mine in (("disagree", apart), ("agree", ~apart)):
        if mine.any():
            values = largest[:, mine]
            print(f"maximum softmax where networks {name}: {values.mean():.2f} ± {values.std(unbiased=False):.3f}")
    if humans is not None:
        for name, spread in found.softmax.items():
            print(f"maximum softmax, {name}: {spread}")
    draw(ways, found, options.out)
    print(f"{len(WAYS)} ways of 11 images: {options.out}. Took {time.process_time() - began:.0f} s of one core.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
