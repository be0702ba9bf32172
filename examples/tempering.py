"""Over a barrier by temperature: the uneven double well of Figure 1.16 of T. Vlaar's thesis (2022), by three samplers.

    python examples/tempering.py              a table, in about 10 seconds
    python examples/tempering.py --steps 3000   smaller errors

All chains begin in the upper well, x = 1. The barrier before the lower one is 10 times the lowest temperature.
Hamiltonian Monte Carlo alone stays where it began. With replica exchange four chains, one for each temperature,
exchange their states. In simulated tempering the temperature of each chain moves up and down. Both give every
temperature its density.
"""

import argparse

import torch

import tether

LADDER = (0.3, 0.6, 1.2, 2.4)


def energy(x):
    """Figure 1.16."""
    return 3.5 * (x**2 - 1) ** 2 + 0.5 * (x + 1)


def exact(temperature):
    """The probability of the upper well, and the mean energy, by a sum over a fine grid."""
    x = torch.linspace(-4, 4, 8001, dtype=torch.float64)
    weight = (-energy(x) / temperature).softmax(0)
    return weight[x > 0].sum().item(), (weight * energy(x)).sum().item()


def sample(temperature, steps, between):
    """Positions after every step, and what `between(opt, energies)` returned after each: both steps × chains."""
    x = torch.nn.Parameter(torch.ones(len(temperature)))
    opt = tether.methods.hmc([("x", x)], lr=0.2, steps=4, temperature=temperature, batch_dims=1)

    def closure():
        opt.zero_grad()
        energies = energy(x)
        energies.sum().backward()
        return energies.detach()

    positions, places = [], []
    for _ in range(steps):
        opt.step(closure)
        places.append(between(opt, energy(x.detach())))
        positions.append(x.detach().clone())
    return torch.stack(positions), torch.stack(places)


def estimate(values, here):
    """The mean over the draws that are `here`, with the standard error of a ratio of sums over independent chains."""
    sums, counts = (values * here).sum(0), here.sum(0).double()
    mean = sums.sum() / counts.sum()
    error = (sums - mean * counts).std() / counts.mean() / len(counts) ** 0.5
    return mean.item(), error.item()


def show(method, x, here, temperature):
    """A line of the table: of the draws x that are `here`, at this temperature. The first quarter is left out."""
    late = len(x) // 4
    x, here = x[late:], here[late:]
    upper, mean = exact(temperature)
    found, error = estimate((x > 0).double(), here)
    height, spread = estimate(energy(x), here)
    wells = [f"{100 * found:.1f} ± {100 * error:.1f}", f"{100 * upper:.1f}"]
    heights = [f"{height:.3f} ± {spread:.3f}", f"{mean:.3f}", f"{100 * here.double().mean():.0f}"]
    print(ROW.format(method, f"{temperature:g}", *wells, *heights), flush=True)


ROW = "{:<22}{:>5}{:>16}{:>9}{:>18}{:>9}{:>12}"


def main():
    parser = argparse.ArgumentParser(description="Sample an uneven double well.")
    parser.add_argument("--chains", type=int, default=64, help="chains of each method (64)")
    parser.add_argument("--steps", type=int, default=600, help="proposals of each chain (600)")
    options = parser.parse_args()
    chains, steps = options.chains, options.steps
    print(f"{chains} chains of {steps:,} proposals from x = 1; the first quarter is left out")
    print(ROW.format("method", "τ", "upper well %", "exact", "mean energy", "exact", "draws %"))

    cold = torch.full((chains,), LADDER[0])
    x, _ = sample(cold, steps, lambda opt, energies: torch.zeros(chains))
    show("HMC", x, torch.ones_like(x, dtype=torch.bool), LADDER[0])

    # A chain for each temperature. Ladders lie side by side, up and down in turn, so that all neighbours are close.
    ladders = torch.tensor([LADDER, LADDER[::-1]]).repeat(chains // 2 + 1, 1)[:chains]
    x, _ = sample(ladders.flatten(), steps, tether.exchange)
    energies = []
    for temperature in LADDER:
        draws = x[:, ladders.flatten() == temperature]
        show("replica exchange", draws, torch.ones_like(draws, dtype=torch.bool), temperature)
        energies.append(energy(draws[steps // 4 :]).mean().item())

    # Weights that let a chain spend a quarter of its time at each temperature, from the energies found above.
    weights = tether.tempering_weights(LADDER, energies)
    x, places = sample(cold, steps, lambda opt, energies: tether.temper(opt, energies, LADDER, weights))
    for k, temperature in enumerate(LADDER):
        show("simulated tempering", x, places == k, temperature)


if __name__ == "__main__":
    main()
