"""Where multiple time-stepping breaks down, and what mends it: Figures 1.9, 1.10 and 1.12 to 1.14 of the thesis (003).

    python examples/resonance.py

Two springs on one mass, Ω = 3 (Example 1.2.2): r-RESPA resonates just below h = nπ/Ω, and friction removes it. A slow
mass on a fast one, Ω² = 10 (Example 1.2.4): reversible averaging resonates if the slow mass stands still meanwhile
(type 0), and does not if it drifts along (type 1). Every number comes from the nested words themselves: a step of a
linear system is a matrix, whose columns are the images of the unit vectors.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch

from tether.hamiltonian import trajectory

OMEGA = 3.0
SPRINGS = (lambda q: q**2 / 2, lambda q: OMEGA**2 * q**2 / 2)
STIFF = 10.0


def springs(h: torch.Tensor, k: int) -> torch.Tensor:
    """Matrices of one r-RESPA step, one for each h."""
    basis = torch.eye(2, dtype=torch.float64).expand(len(h), 2, 2)
    q, p = next(trajectory(f"B(BAB){k}B", SPRINGS, basis[:, 0].clone(), basis[:, 1].clone(), h[:, None]))
    return torch.stack((q, p), 1)


def masses(h: torch.Tensor, k: int, drifting: bool) -> torch.Tensor:
    """Matrices of one step of reversible averaging, type 1 if the slow mass drifts along, one for each h."""
    Q, q, P, p = torch.eye(4, dtype=torch.float64).expand(len(h), 4, 4).unbind(1)
    word = f"B(BAB){k}B" if drifting else f"BA(BAB){k}AB"
    (Q, q), (P, p) = next(
        trajectory(
            word,
            lambda Q, q: Q**2 / 2 + STIFF * (Q - q) ** 2 / 2,
            (Q, q),
            (P, p),
            h[:, None],
            mass=(1.0, 1 / STIFF),
            average=True,
        )
    )
    return torch.stack((Q, q, P, p), 1)


def second_moments(h: torch.Tensor, friction: torch.Tensor, k: int, copies: int, steps: int) -> torch.Tensor:
    """⟨q²⟩ − τ/(1 + Ω²) at τ = 1 by Algorithm 1.2, friction × h; nan where it grows without bound."""
    shape = (len(friction), len(h), copies)
    zero = torch.zeros(shape, dtype=torch.float64)
    run = trajectory(
        f"B(BAOAB){k}B", SPRINGS, zero, zero, h[None, :, None], friction=friction[:, None, None], temperature=1.0
    )
    total, count = torch.zeros(shape[:2], dtype=torch.float64), 0
    for step in range(steps):
        q, _ = next(run)
        if step >= steps // 10:
            total, count = total + q.square().mean(2), count + 1
    error = total / count - 1 / (1 + OMEGA**2)
    return torch.where(error.abs() < 10, error, math.nan)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=2000, help="of Algorithm 1.2 for Figure 1.10")
    parser.add_argument("--copies", type=int, default=50, help="of each system there")
    parser.add_argument("--points", type=int, default=400, help="step sizes on an axis")
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()

    h = torch.linspace(0.02, 10, options.points, dtype=torch.float64) / OMEGA
    radii = torch.linalg.eigvals(springs(h, 100)).abs().amax(1)
    outside = (radii > 1 + 1e-4).nonzero().flatten()
    print(f"r-RESPA, Ω = 3: stable for hΩ < {float(h[outside[0]] * OMEGA):.3f} (π = {math.pi:.3f}), "
          f"largest |λ| {float(radii.max()):.3f}")  # fmt: skip
    steps = torch.linspace(0.01, 1.5, options.points, dtype=torch.float64)
    chains = {kind: torch.linalg.eigvals(masses(steps, 100, bool(kind))) for kind in (0, 1)}
    for kind, found in chains.items():
        print(f"reversible averaging, type {kind}, Ω² = 10: largest |λ| {float(found.abs().max()):.4f}")
    sizes = torch.linspace(0.2, 10, 50, dtype=torch.float64) / OMEGA
    friction = torch.logspace(-2, 1, 30, dtype=torch.float64)
    error = second_moments(sizes, friction, 10, options.copies, options.steps)
    for γ in (0, 15, 25):
        print(
            f"Langevin r-RESPA, γ = {float(friction[γ]):.2f}: {int(error[γ].isnan().sum())} of 50 step sizes unstable"
        )
    draw(h * OMEGA, radii, steps, chains, sizes * OMEGA, friction, error, options.out)
    print(f"Took {time.perf_counter() - began:.0f} s.")


def draw(h, radii, steps, chains, sizes, friction, error, out: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(10, 7.5), layout="constrained")
    left, right = axes[0]
    left.plot(h, radii)
    left.set(title="r-RESPA resonates below nπ (Figure 1.9)", xlabel="hΩ", ylabel="largest |λ|")
    for n in (1, 2, 3):
        left.axvline(n * math.pi, color="0.7", lw=0.8, zorder=0)
    mesh = right.pcolormesh(sizes, friction, error.abs().clamp(1e-3, 1).log10(), cmap="coolwarm", shading="nearest")
    right.set(title="… and friction mends it (Figure 1.10)", xlabel="hΩ", ylabel="friction γ", yscale="log")
    figure.colorbar(mesh, ax=right, label="log₁₀ of the error of ⟨q²⟩; white is unstable")
    for kind, found in chains.items():
        axes[1][0].plot(steps, found.abs().amax(1), label=f"type {kind}")
        axes[1][1].plot(steps.repeat_interleave(4), found.angle().flatten(), ".", ms=2, alpha=0.7, label=f"type {kind}")
    axes[1][0].set(title="reversible averaging (Figure 1.12)", xlabel="h", ylabel="largest |λ|")
    axes[1][1].set(title="arguments of the eigenvalues (Figures 1.13, 1.14)", xlabel="h", ylabel="arg λ")
    axes[1][0].legend(frameon=False)
    axes[1][1].legend(frameon=False, markerscale=4)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "resonance.png", dpi=120)
    print(f"picture: {out / 'resonance.png'}")


if __name__ == "__main__":
    main()
