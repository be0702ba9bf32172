import math
from typing import Any

import numpy as np
import torch

from tether.hamiltonian import trajectory
from tether_studies.drawing import subplots
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, at, study
from tether_studies.judges import yes

OMEGA = 3.0
SPRINGS = (lambda q: q**2 / 2, lambda q: OMEGA**2 * q**2 / 2)
STIFF = 10.0
SPAN = (0.02, 10.0)  # of hΩ


@study("fig-1.9", "thesis, Figures 1.9, 1.10, 1.12–1.14")
class Resonance(Experiment):
    """multiple time-stepping resonates; friction or drift mends it

    Two springs on one mass, Ω = 3 (Example 1.2.2): r-RESPA resonates just below h = nπ/Ω, and friction removes it. A
    slow mass on a fast one, Ω² = 10 (Example 1.2.4): reversible averaging resonates if the slow mass stands still
    meanwhile (type 0), and does not if it drifts along (type 1). Every number comes from the nested words themselves: a
    step of a linear system is a matrix, whose columns are the images of the unit vectors.

    Figure 1.10 in the thesis has one run of 10⁶ steps for each pair; here it is an average over copies.
    """

    says = """
        r-RESPA is unstable just below h = nπ/Ω and stable just above | Figure 1.9: resonances at hΩ = π, 2π, 3π
        larger friction removes the resonances | Figure 1.10: no instability at large γ
        reversible averaging resonates with the slow variable fixed, not with linear drift
            | Figures 1.12 to 1.14: |λ| = 1 for type 1
    """
    points: int = at(400, quick=200)  # step sizes on an axis
    substeps: int = 100  # k, large enough for the fast motion to be exact
    sizes: int = at(50, quick=20)  # step sizes and frictions of Figure 1.10
    frictions: int = at(30, quick=8)
    copies: int = at(50, quick=20, full=500)  # of each system there
    steps: int = at(2000, quick=200, full=20_000)

    def run(self, lab: Lab) -> Results:
        """Eigenvalues of the three integrators, and ⟨q²⟩ by Algorithm 1.2."""
        work: dict[str, Any] = {"r-RESPA": self.respa, "type 0": lambda: self.averaging(drifting=False)}
        work["type 1"] = lambda: self.averaging(drifting=True)
        return lab.pieces({**work, "Langevin": lambda: self.langevin(lab.named_seed("noise"))})

    def respa(self) -> Results:
        """|λ| of one r-RESPA step, for each h."""
        h = torch.linspace(*SPAN, self.points, dtype=torch.float64) / OMEGA
        q, p = torch.eye(2, dtype=torch.float64).expand(len(h), 2, 2).unbind(1)
        q, p = next(trajectory(f"B(BAB){self.substeps}B", SPRINGS, q, p, h[:, None]))
        return {"h": h, "radii": torch.linalg.eigvals(torch.stack((q, p), 1)).abs().amax(1)}

    def averaging(self, drifting: bool) -> Results:
        """Eigenvalues of one step of reversible averaging, type 1 if the slow mass drifts along."""
        h = torch.linspace(0.01, 1.5, self.points, dtype=torch.float64)
        Q, q, P, p = torch.eye(4, dtype=torch.float64).expand(len(h), 4, 4).unbind(1)
        word = f"B(BAB){self.substeps}B" if drifting else f"BA(BAB){self.substeps}AB"
        energy = lambda Q, q: Q**2 / 2 + STIFF * (Q - q) ** 2 / 2  # noqa: E731
        run = trajectory(word, energy, (Q, q), (P, p), h[:, None], mass=(1.0, 1 / STIFF), average=True)
        (Q, q), (P, p) = next(run)
        found = torch.linalg.eigvals(torch.stack((Q, q, P, p), 1))
        return {"h": h, "radii": found.abs().amax(1), "angles": found.angle()}

    def langevin(self, seed: int) -> Results:
        """⟨q²⟩ − τ/(1 + Ω²) at τ = 1 by Algorithm 1.2, friction × h; nan where it grows without bound."""
        h = torch.linspace(0.2, SPAN[1], self.sizes, dtype=torch.float64) / OMEGA
        friction = torch.logspace(-2, 1, self.frictions, dtype=torch.float64)
        zero = torch.zeros(self.frictions, self.sizes, self.copies, dtype=torch.float64)
        bath: dict[str, Any] = {"friction": friction[:, None, None], "temperature": 1.0, "seed": seed}
        run = trajectory("B(BAOAB)10B", SPRINGS, zero, zero, h[None, :, None], **bath)
        total, count = torch.zeros(zero.shape[:2], dtype=torch.float64), 0
        for step in range(self.steps):
            q, _ = next(run)
            if step >= self.steps // 10:
                total, count = total + q.square().mean(2), count + 1
        error = total / count - 1 / (1 + OMEGA**2)
        return {"h": h, "friction": friction, "error": torch.where(error.abs() < 10, error, math.nan)}

    def claims(self, results: Results) -> Found:
        respa, noisy = results["r-RESPA"], results["Langevin"]
        unstable = respa["h"][respa["radii"] > 1 + 1e-4] * OMEGA
        multiples = [unstable[(unstable > n * math.pi - 1) & (unstable < n * math.pi + 0.5)] for n in (1, 2, 3)]
        bands = [(float(x.min()), float(x.max())) if len(x) else (math.nan, math.nan) for x in multiples]
        step = (SPAN[1] - SPAN[0]) / (self.points - 1)
        below = all(abs(high - n * math.pi) <= 2 * step for n, (_, high) in zip((1, 2, 3), bands, strict=True))
        said = "unstable for hΩ in " + ", ".join(f"{low:.2f}–{high:.2f}" for low, high in bands)
        yield said, yes(below, f"nπ is 3.14, 6.28, 9.42; the grid of step sizes has steps of {step:.3f}")
        few, *_, many = np.isnan(noisy["error"]).sum(1)
        low, high = (f"{noisy['friction'][i]:.2g}" for i in (0, -1))
        said = f"{few} of {self.sizes} step sizes unstable at γ = {low}, {many} at γ = {high}"
        yield said, yes(few > 0 and many == 0, "a run is unstable if its ⟨q²⟩ is off by more than 10")
        zero, one = (float(results[f"type {kind}"]["radii"].max()) for kind in (0, 1))
        evidence = f"k = {self.substeps} sub-steps in place of the exact fast motion"
        yield f"largest |λ|: type 0 {zero:.3f}, type 1 {one:.4f}", yes(zero > 1.01 and one < 1 + 1e-3, evidence)

    def draw(self, results: Results) -> Figures:
        figure, ((left, right), (below, last)) = subplots(2, 2, figsize=(10, 7.5))
        left.plot(results["r-RESPA"]["h"] * OMEGA, results["r-RESPA"]["radii"])
        left.set(title="r-RESPA resonates below nπ (Figure 1.9)", xlabel="hΩ", ylabel="largest |λ|")
        for n in (1, 2, 3):
            left.axvline(n * math.pi, color="0.7", lw=0.8, zorder=0)
        noisy = results["Langevin"]
        shade = np.log10(np.clip(np.abs(noisy["error"]), 1e-3, 1))
        mesh = right.pcolormesh(noisy["h"] * OMEGA, noisy["friction"], shade, cmap="coolwarm", shading="nearest")
        right.set(title="… and friction mends it (Figure 1.10)", xlabel="hΩ", ylabel="friction γ", yscale="log")
        figure.colorbar(mesh, ax=right, label="log₁₀ of the error of ⟨q²⟩; white is unstable")
        for kind in ("type 0", "type 1"):
            found = results[kind]
            below.plot(found["h"], found["radii"], label=kind)
            last.plot(np.repeat(found["h"], 4), found["angles"].ravel(), ".", ms=2, alpha=0.7, label=kind)
        below.set(title="reversible averaging (Figure 1.12)", xlabel="h", ylabel="largest |λ|")
        last.set(title="arguments of the eigenvalues (Figures 1.13, 1.14)", xlabel="h", ylabel="arg λ")
        below.legend()
        last.legend(markerscale=4)
        return {"resonance": figure}
