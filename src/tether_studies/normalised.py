"""Normalised gradient flow at a fixed norm, and early stopping, on the exponential loss (GD-dynamics slides)."""

from functools import partial

import numpy as np
import torch
from torch.nn.functional import normalize

from tether_studies.drawing import subplots
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, Table, at, study
from tether_studies.judges import less, yes
from tether_studies.separators import MARGIN, degrees, separators


def pulls(Z: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """e^{−w·x} of all points, and Σ e^{−w·x} x: problems × starts × points, and × features."""
    pull = torch.exp(-w @ Z.mT)
    return pull, pull @ Z


def multiplier(Z: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """μ of Σ e^{−w·x} x = μ w, by least squares."""
    return (pulls(Z, w)[1] * w).sum(2) / w.square().sum(2)


def tangent_eigenvalue(Z: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The smallest eigenvalue of P (Σ e^{−w·x} x xᵀ + μ) P on the tangent space of the sphere."""
    pull, _ = pulls(Z, w)
    size = w.shape[2]
    H = torch.einsum("psn,pni,pnj->psij", pull, Z, Z) + multiplier(Z, w)[..., None, None] * torch.eye(size).double()
    along = normalize(w, dim=2)
    P = torch.eye(size).double() - along[..., :, None] * along[..., None, :]
    far = 1e6 * H.norm(dim=(2, 3), keepdim=True)  # the normal direction must not be the smallest
    return torch.linalg.eigvalsh(P @ H @ P + far * along[..., :, None] * along[..., None, :])[..., 0]


def regularised(Z: torch.Tensor, decay: torch.Tensor, steps: int = 3000) -> torch.Tensor:
    """The minimum of Σ e^{−w·x} + ½λ|w|² for every λ of every problem, by Newton's method with short steps from 0."""
    reach, w = Z.norm(dim=2).amax(1)[:, None, None], torch.zeros(*decay.shape, Z.shape[2]).double()
    for _ in range(steps):
        pull, force = pulls(Z, w)
        H = torch.einsum("psn,pni,pnj->psij", pull, Z, Z) + decay[..., None, None] * torch.eye(Z.shape[2]).double()
        way = torch.linalg.solve(H, (decay[..., None] * w - force).unsqueeze(3)).squeeze(3)
        w = w - way / (1 + reach * way.norm(dim=2, keepdim=True))
        if way.norm(dim=2).max() < 1e-12:
            break
    return w


@study("normalised", "GD-dynamics slides, normalization; summary")
class Normalised(Experiment):
    """at a fixed norm the flow ends where weight decay would, from most starts

    Separable points. The normalised flow of the direction w̃ on the exponential loss with ρ̇ = 0 is the gradient flow of
    Σ e^{−ρ w̃·x} on the sphere; from random starts, for several ρ. Where it stands still Σ e^{−w·x} x = μ w, w = ρ w̃.
    The Hessian on the tangent space is P (Σ e^{−w·x} x xᵀ + μ) P. The minimum with weight decay λ = μ satisfies the
    same equation. Early stopping: the free flow from 0, stopped where |w| = ρ, beside that minimum.

    The slides have no numbers of an experiment. Points are those of max-margin, without features that are never seen.
    """

    says = """
        the Hessian is positive definite where the normalised flow ends
            | a normalization version of GD also restores pos def Hessian but only under very special data
        the flow ends in the same direction from every start | not true for normalized GD
        and this is the minimum with weight decay λ = μ
            | w̃* = x/|x|, as regularization: (1/λ) Σ x e^(−w·x) = w
        the larger ρ, the closer to the hard-margin separator | λ → 0 recovers the gist of Srebro's result
        early stopping points to the minimum with weight decay of the same norm, the better the later
            | true for Early Stopped GD
    """
    problems: int = at(20, quick=3, full=100)
    points: int = 30
    features: int = 4
    starts: int = at(20, quick=4)
    norms: tuple[float, ...] = at((0.1, 0.5, 2.0, 8.0, 20.0), quick=(0.5, 4.0))
    steps: int = at(20_000, quick=300)

    def run(self, lab: Lab) -> Results:
        Z = self.drawn(lab.named_seed("problems"))
        work = {("sphere", ρ): partial(self.descend, Z, ρ) for ρ in self.norms}
        return lab.pieces({**work, "stopped": partial(self.stopped, Z)})

    def drawn(self, seed: int) -> torch.Tensor:
        """Points times their labels, problems × points × features, separable with a margin."""
        draw = partial(torch.randn, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        X, normal = draw(self.problems, self.points, self.features), draw(self.problems, 1, self.features)
        return X * (X * normal).sum(2, keepdim=True).sign() + MARGIN * normalize(normal, dim=2)

    def descend(self, Z: torch.Tensor, ρ: float) -> Results:
        """Where the flow on the sphere of radius ρ stands still, and what is true there.

        The loss is divided by its size, which changes the clock of the flow and not its way.
        """
        w = ρ * normalize(torch.randn(self.problems, self.starts, self.features, dtype=torch.float64), dim=2)
        reach = Z.norm(dim=2).amax(1)[:, None, None]
        h = 0.5 / (reach**2 + reach / ρ)
        for _ in range(self.steps):
            pull, force = pulls(Z, w)
            along = normalize(w, dim=2)
            slope = (force - (force * along).sum(2, keepdim=True) * along) / pull.sum(2, keepdim=True)
            w = ρ * normalize(w + h * slope, dim=2)
        pull, _ = pulls(Z, w)
        μ, size = multiplier(Z, w), pull.sum(2)
        each = torch.arange(self.problems), size.argmin(1)  # the lowest end of every problem
        best = w[each]
        hardest = separators(Z)[0][:, 0]
        decayed = regularised(Z, μ[each].clamp_min(1e-300)[:, None])[:, 0]
        return {
            "slope": slope.norm(dim=2),
            "multiplier": μ / size,  # in units of the loss
            "eigenvalue": tangent_eigenvalue(Z, w) / size,
            "lowest": (μ / size)[each],
            "angle": degrees(w, best[:, None]),
            "separator": degrees(best, hardest),
            "decayed": (decayed - best).norm(dim=1) / ρ,
        }

    def stopped(self, Z: torch.Tensor) -> Results:
        """The angle between the free flow from 0 where |w| = ρ and the minimum with weight decay of that norm."""
        w, found = torch.zeros(self.problems, 1, self.features).double(), []
        for ρ in self.norms:
            for _ in range(100 * self.steps):
                pull, force = pulls(Z, w)
                going = w.norm(dim=2, keepdim=True) < ρ
                if not bool(going.any()):
                    break
                h = torch.minimum(0.01 * max(ρ, 0.2) / force.norm(dim=2), 0.1 / pull.sum(2)).unsqueeze(2)
                w = torch.where(going, w + h * force, w)
            low, high = torch.full((self.problems, 1), -60.0).double(), torch.full((self.problems, 1), 12.0).double()
            for _ in range(40):  # log λ, by halves: the norm of the minimum falls with λ
                middle = (low + high) / 2
                longer = regularised(Z, middle.exp(), 400).norm(dim=2) > ρ
                low, high = torch.where(longer, middle, low), torch.where(longer, high, middle)
            found.append(degrees(w[:, 0], regularised(Z, middle.exp())[:, 0]))
        return {"angle": torch.stack(found)}

    def claims(self, results: Results) -> Found:
        ends = {ρ: results["sphere", ρ] for ρ in self.norms}
        still = max(float(x["slope"].max()) for x in ends.values())
        count = f"{self.problems} problems × {self.starts} starts × {len(ends)} norms, slopes below {still:.0e}"
        low = {ρ: int((x["multiplier"] <= 0).sum()) for ρ, x in ends.items()}
        flat = {ρ: int((x["eigenvalue"] <= 1e-9).sum()) for ρ, x in ends.items()}
        total = self.problems * self.starts
        said = ", ".join(f"{n} of {total} at ρ = {ρ:g}" for ρ, n in flat.items() if n) or "none"
        signs = ", ".join(f"{n} at ρ = {ρ:g}" for ρ, n in low.items() if n) or "none"
        yield f"not positive definite: {said}; μ ≤ 0: {signs}", yes(not any(flat.values()), count)
        other = {ρ: int((x["angle"] > 0.1).sum()) for ρ, x in ends.items()}
        said = ", ".join(f"{n} of {total} at ρ = {ρ:g}" for ρ, n in other.items())
        yield f"ends elsewhere than the lowest: {said}", yes(not any(other.values()), count)
        worst = max(float(x["decayed"].max()) for x in ends.values())
        least = min(float(x["lowest"].min()) for x in ends.values())
        said = f"the lowest end is {worst:.0e} of ρ away from it at the most, and μ there {least:.2g} L or more"
        yield said, yes(least > 0 and worst < 1e-4, count)
        first, last = (ends[ρ]["separator"] for ρ in (self.norms[0], self.norms[-1]))
        said = ", ".join(f"{x['separator'].mean():.2f}° at ρ = {ρ:g}" for ρ, x in ends.items())
        yield said, less(last, first)
        angles = results["stopped"]["angle"]
        said = ", ".join(f"{x.mean():.2f}° at |w| = {ρ:g}" for x, ρ in zip(angles, self.norms, strict=True))
        yield said, less(angles[-1], angles.max(0))

    def tables(self, results: Results) -> list[Table]:
        rows = []
        for ρ in self.norms:
            x = results["sphere", ρ]
            signs = [int((x[key] <= limit).sum()) for key, limit in (("multiplier", 0), ("eigenvalue", 1e-9))]
            numbers = [f"{x['multiplier'].min():.3g}", f"{x['eigenvalue'].min():.3g}", int((x["angle"] > 0.1).sum())]
            rows.append([f"{ρ:g}", *signs, *numbers, f"{x['separator'].mean():.2f}"])
        head = [
            "ρ",
            "ends with μ ≤ 0",
            "Hessian not definite",
            "least μ/L",
            "least eigenvalue/L",
            "other ends",
            "angle °",
        ]
        caption = f"{self.problems} problems, {self.starts} starts each; angle to the hard-margin separator"
        return [Table(head, rows, caption)]

    def draw(self, results: Results) -> Figures:
        figure, (left, right) = subplots(1, 2, figsize=(9, 3.8))
        for ρ in self.norms:
            left.semilogy(np.sort(results["sphere", ρ]["eigenvalue"].ravel()).clip(1e-12), label=f"ρ = {ρ:g}")
        left.set(xlabel="end, sorted", ylabel="smallest eigenvalue over the loss", title="normalised flow")
        left.legend()
        right.plot(self.norms, results["stopped"]["angle"], color="#1f5fa8", lw=0.6, alpha=0.6)
        right.plot(self.norms, results["stopped"]["angle"].mean(1), "o-", color="#1f5fa8")
        right.set(xscale="log", xlabel="|w| at the stop", ylabel="angle to weight decay (°)", title="early stopping")
        return {"normalised": figure}
