import math
from typing import Any

import numpy as np
import torch
from torch import nn

import tether
from tether.surfaces import Circle, Level, Orthogonal, Sphere
from tether_studies.drawing import subplots
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, Table, at, study
from tether_studies.judges import every, near, plus_minus, yes

COUPLED = torch.tensor([[1.0, 0.4], [0.4, 0.8]], dtype=torch.float64)  # the Hessian of a quadratic loss in two layers
STEP = 0.005  # of a relaxation time
NOTE = "Ric = 0 on a circle and the mean of U″ is 0, so that no ρ > 0 satisfies CD(ρ, ∞)"


def sphere_rate(n: int, r: float, τ: float) -> float:
    """At which ⟨q(t)⟩ decays on S^{n−1} of radius r without a force: τ(n − 1)/r²."""
    return τ * (n - 1) / r**2


def stiefel_rate(r: int, s: int, τ: float) -> float:
    """At which ⟨Q(t)⟩ decays on r × s matrices with orthonormal columns: τ((s − 1)/2 + r − s).

    By (4.25) it is τ times the length of the mean curvature, and 𝓗 = −Q Σ EᵀE over an orthonormal basis of tangents E:
    (s − 1)/2 from those within the columns' span, r − s from those out of it.
    """
    return τ * ((s - 1) / 2 + r - s)


def diffused(surface: Any, start: torch.Tensor, h: float, τ: float, steps: int, seed: int, **options: Any) -> Any:
    """Points on a surface at every step of X without a force, the start included."""
    q = nn.Parameter(start.clone())
    opt = tether.Optimizer([("q", q)], lr=h, temperature=τ, on=surface, seed=seed, **options)
    q.grad = torch.zeros_like(q)
    yield q.detach().clone()
    for _ in range(steps):
        opt.step()
        yield q.detach()


def eigenvalues(step: Any, size: int) -> np.ndarray:
    """Of a linear step, from the images of the unit vectors."""
    return np.linalg.eigvals(np.stack([step(row) for row in np.eye(size)], 1))


def verlet(x: float) -> float:
    """The largest |λ| of a step of BAB with hΩ = x."""

    def step(state: np.ndarray) -> np.ndarray:
        q = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        opt = tether.Optimizer([("q", q)], lr=x, word="BAB")
        q.grad = torch.zeros_like(q)
        opt.step()  # makes the momenta, and a step before of the same size
        q.data.fill_(state[0])
        opt.state[q]["momentum"].fill_(state[1])
        q.grad.fill_(state[0])
        opt.step()
        return np.array([q.item(), opt.state[q]["momentum"].item()])

    return float(np.abs(eigenvalues(step, 2)).max())


def partitioned(method: str, h: float) -> np.ndarray:
    """Eigenvalues of a step of DHSGD or DHSGDc on the quadratic loss ½ θᵀKθ, one weight in each layer."""

    def step(state: np.ndarray) -> np.ndarray:
        net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
        opt = getattr(tether.methods, method)(net, lr=h)
        first, second = net.parameters()
        first.grad, second.grad = torch.zeros_like(first), torch.zeros_like(second)
        opt.step()
        first.data.fill_(state[0])
        opt.state[first]["momentum"].fill_(state[1])
        second.data.fill_(state[2])
        g = COUPLED @ torch.tensor(state[[0, 2]])
        first.grad.fill_(g[0].item())
        second.grad.fill_(g[1].item())
        opt.step()
        return np.array([first.item(), opt.state[first]["momentum"].item(), second.item()])

    return eigenvalues(step, 3)


def flow_rate() -> float:
    """How fast the flow behind DHSGDc contracts: its slowest eigenvalue."""
    (a, b), (c, d) = COUPLED.tolist()
    return -float(np.linalg.eigvals([[0, 1, 0], [-a, 0, -b], [-c, 0, -d]]).real.max())


def torus(w: torch.Tensor) -> torch.Tensor:
    """The circle of radius 1 around the circle of radius 2."""
    return (w[:2].norm() - 2).square() + w[2].square() - 1


def projector(q: torch.Tensor) -> torch.Tensor:
    """(4.23): Π = I − G⁺G."""
    G = torch.func.grad(torus)(q).unsqueeze(0)
    return torch.eye(3, dtype=q.dtype) - G.mT @ G / (G @ G.mT)


def curvature(q: torch.Tensor) -> torch.Tensor:
    """(4.24): 𝓗_i = Π_jk ∂_j Π_ik, as it is printed."""
    return torch.einsum("jk,ikj->i", projector(q), torch.func.jacrev(projector)(q))


def drift_of_a_step(along: str, h: float, τ: float, q: torch.Tensor, force: torch.Tensor) -> torch.Tensor:
    """E(q₁ − q)/h of (4.41) or (4.42) on the torus, by Gauss–Hermite quadrature over the noise."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(9)
    R = torch.from_numpy(np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"), -1).reshape(-1, 3))
    weight = np.einsum("i,j,k->ijk", weights, weights, weights).ravel() / weights.sum() ** 3
    start = q.expand(len(R), 3)
    surface = Level(torus, along=along).bind([(3,)])
    moved = surface.project(start - h * force + math.sqrt(2 * τ * h) * R, start)
    return (torch.from_numpy(weight) @ (moved - start)) / h


@study("theory", "thesis, 1.2.2.1, 3.3.2, 4.4, 4.7.1; CoLA poster, Theorem")
class Theory(Experiment):
    """what can be computed of constrained diffusions, and of DHSGD, is what the methods do

    Without a force ⟨q(t)⟩ on a surface of constant mean curvature decays as e^{−λt} with a known λ. The step is X with
    projection; relaxation is followed for a time 1/λ in steps of 0.005/λ, so that its bias is below 1 %. The variance
    of averages is that of starts in equilibrium. Drifts of the projected scheme are exact integrals over the noise,
    eigenvalues of steps are read off the optimizer.

    In (4.11) and (4.20) the exponent −2Lt/β is half of what (4.39) gives for the square: both are bounds, and the
    measured one is that of (4.39). Theorem 4.4.1 says nothing about circles: there CD(ρ, ∞) cannot hold. Circles relax
    at a rate all the same.
    """

    says = """
        on spheres the mean decays at τ(n − 1)/r² | (4.25): the mean curvature is −(n − 1) q/r²
        on orthogonal matrices it decays at τ(n − 1)/2, on r × s ones at τ((s − 1)/2 + r − s) | (4.25) on Q with QᵀQ = I
        the squared mean decays at 4L/β, twice the exponent of (4.11) | (4.39): 2L/β for the norm
        the variance of averages is β/L times that of the observable
            | Corollary 4.4.2: bounded by it; coordinates of a sphere attain the bound
        a step of the projected scheme has the drift of the underlying equation, −Π∇U + τ𝓗, up to O(h)
            | (4.25) with the mean curvature (4.24), against (4.41) and (4.42)
        on circles, of which Theorem 4.4.1 says nothing, the mean decays at τ/r² | CD(ρ, ∞), ρ > 0, cannot hold there
        Verlet is stable up to hΩ = 2 | (1.31): h ≤ 2/Ω
        DHSGD does not dissipate as h → 0, DHSGDc contracts at the rate of its flow
            | 3.3.2: not at all dissipative as h → 0; the contractive variant dissipates the energy
        the fixed points of both are stationary points of the loss | 3.3.2: fixed points are stationary points
    """
    copies: int = at(4000, quick=200, long=16_000, full=40_000)  # diffusing points of each run
    matrices: int = at(1600, quick=40, full=4000)
    runs: int = at(8, quick=2, full=16)
    steps: int = at(200, quick=20)  # of 0.005/λ each
    lengths: int = at(2000, quick=100, full=5000)  # steps of an average, each of 0.05/λ

    def run(self, lab: Lab) -> Results:
        cases: dict[Any, Any] = {}
        for n, r, τ in ((3, 1.0, 1.0), (10, 2.0, 0.3)):
            cases["sphere", n] = lambda n=n, r=r, τ=τ: self.sphere(n, r, τ, lab.named_seed(f"sphere {n}"))
        for r, s in ((4, 4), (6, 3)):
            cases["matrices", r, s] = lambda r=r, s=s: self.matrix(r, s, lab.named_seed(f"matrices {r} {s}"))
        cases["circle"] = lambda: self.circle(lab.named_seed("circle"))
        cases["averages"] = lambda: self.averages(lab.named_seed("averages"))
        cases["drift"], cases["Verlet"], cases["DHSGD"] = self.drifts, self.stability, self.dissipation
        return lab.pieces(cases)

    def relaxed(self, overlaps: Any, λ: float, h: float) -> Results:
        """The rate −log⟨q(t)·q(0)⟩/t at the end, of each run, and the curve over time."""
        curve = np.stack([one.numpy() for one in overlaps])
        return {"rate": -np.log(curve[-1]) / (h * (len(curve) - 1)), "expected": λ, "curve": curve.mean(1), "h": h}

    def sphere(self, n: int, r: float, τ: float, seed: int) -> Results:
        λ = sphere_rate(n, r, τ)
        start = torch.zeros(self.runs * self.copies, n)
        start[:, 0] = r
        points = diffused(Sphere(r, slack=False), start, STEP / λ, τ, self.steps, seed)
        return self.relaxed((q[:, 0].view(self.runs, -1).mean(1) / r for q in points), λ, STEP / λ)

    def matrix(self, r: int, s: int, seed: int) -> Results:
        λ, τ = stiefel_rate(r, s, 1.0), 1.0
        start = torch.eye(r, s).expand(self.runs * self.matrices, r, s)
        points = diffused(Orthogonal(), start, STEP / λ, τ, self.steps, seed, batch_dims=1)
        traces = (q.diagonal(dim1=1, dim2=2).mean(1).view(self.runs, -1).mean(1) for q in points)
        return self.relaxed(traces, λ, STEP / λ)

    def circle(self, seed: int) -> Results:
        """θ starts at 0, the bottom, and is wherever its slack ξ says: ⟨ξ⟩ decays, and θ² = r² − ξ²."""
        r, τ = 0.5, 0.1
        λ, h = τ / r**2, STEP * r**2 / τ
        q = nn.Parameter(torch.zeros(self.runs * self.copies))
        opt = tether.Optimizer([("q", q)], lr=h, temperature=τ, on=Circle(r), seed=seed)
        q.grad = torch.zeros_like(q)
        overlaps = [torch.ones(self.runs)]
        for _ in range(self.steps):
            opt.step()
            overlaps.append(torch.cos(opt.state[q]["point"]).view(self.runs, -1).mean(1))
        return self.relaxed(overlaps, λ, h)

    def averages(self, seed: int) -> Results:
        """T times the variance of averages of q₁ on S², over 2 Var/λ."""
        n, r, τ = 3, 1.0, 1.0
        λ, copies = sphere_rate(n, r, τ), max(self.copies // 10, 20)
        generator = torch.Generator().manual_seed(seed)
        start = nn.functional.normalize(torch.randn(self.runs * copies, n, generator=generator), dim=1)
        h, total = 0.05 / λ, torch.zeros(len(start))
        for q in diffused(Sphere(r, slack=False), start, h, τ, self.lengths, seed):
            total += q[:, 0]
        mean, T = total / (self.lengths + 1), h * self.lengths
        found = T * mean.view(self.runs, -1).square().mean(1)
        x = λ * T  # over a time T: the integral of the correlation e^{−λt}
        return {"variance": found / (2 * r**2 / n / λ), "expected": 1 - (1 - math.exp(-x)) / x}

    def drifts(self) -> Results:
        q = torch.tensor([2 + math.cos(0.7), 0.0, math.sin(0.7)], dtype=torch.float64)
        force, τ = torch.tensor([0.3, -0.5, 0.2], dtype=torch.float64), 0.5
        exact = -projector(q) @ force + τ * curvature(q)
        sizes = [0.01, 0.005, 0.0025]
        found = {
            along: [float((drift_of_a_step(along, h, τ, q, force) - exact).norm()) for h in sizes]
            for along in ("start", "end")
        }
        return {"sizes": sizes, "length": float(exact.norm()), **found}

    def stability(self) -> Results:
        x = np.linspace(0.05, 2.5, 99)
        return {"x": x, "radius": np.array([verlet(float(one)) for one in x])}

    def dissipation(self) -> Results:
        h = np.array([0.4, 0.2, 0.1, 0.05])
        rates = {
            name: np.array([-np.log(np.abs(partitioned(name, float(one))).max()) / one for one in h])
            for name in ("dhsgd", "dhsgd_contractive")
        }
        fixed = {f"{name}, fixed": np.abs(partitioned(name, 0.2) - 1).min() for name in rates}
        return {"h": h, **rates, **fixed, "flow": flow_rate()}

    def claims(self, results: Results) -> Found:
        yield self.rates(results, ("sphere", 3), ("sphere", 10))
        yield self.rates(results, ("matrices", 4, 4), ("matrices", 6, 3))
        one = results["sphere", 3]
        squared = 2 * np.asarray(one["rate"]) / one["expected"]
        yield (
            f"the exponent of the square over that of (4.11): {plus_minus(squared, 3)}",
            near(squared, 2.0, within=0.06),
        )
        found = results["averages"]
        text = f"variance over its bound {plus_minus(found['variance'], 3)}, {found['expected']:.3f} for this time"
        yield text, near(found["variance"], found["expected"], within=0.1)
        drift = results["drift"]
        ratios = {along: drift[along][0] / drift[along][-1] for along in ("start", "end")}
        text = ", ".join(f"along the {a}: off by {drift[a][-1]:.1e}, {ratios[a]:.2f} times less" for a in ratios)
        small = all(abs(x - 4) < 0.6 for x in ratios.values())
        yield text, yes(small, f"4 times less for a quarter of h; the drift has length {drift['length']:.2f}")
        text, judged = self.rates(results, ("circle",))
        yield f"{text}; {NOTE}", judged
        x, radius = (np.asarray(results["Verlet"][key]) for key in ("x", "radius"))
        stable, unstable = radius[x < 2].max(), radius[x > 2.001].min()
        text = f"largest |λ| {stable:.6f} below 2, at least {unstable:.3f} above"
        yield text, yes(abs(stable - 1) < 1e-9 and unstable > 1.01, f"{len(x)} step sizes")
        own = results["DHSGD"]
        slow, fast = (np.asarray(own[key]) for key in ("dhsgd", "dhsgd_contractive"))
        text = f"rates at h = 0.4, 0.05: DHSGD {slow[0]:.4f}, {slow[-1]:.4f}; DHSGDc {fast[0]:.3f}, {fast[-1]:.3f}"
        right = slow[0] / slow[-1] > 6 and abs(fast[-1] / own["flow"] - 1) < 0.1
        yield text, yes(right, f"DHSGD's is proportional to h; the flow's is {own['flow']:.3f}")
        gaps = [own[f"{name}, fixed"] for name in ("dhsgd", "dhsgd_contractive")]
        text = f"distance of the eigenvalues from 1: {gaps[0]:.3g}, {gaps[1]:.3g}"
        yield (
            text,
            yes(min(gaps) > 1e-3, "no eigenvalue 1, so that 0, where the gradient is 0, is the only fixed point"),
        )

    def rates(self, results: Results, *names: Any) -> tuple[str, Any]:
        """Measured over expected rates of some cases."""
        cases = {" ".join(map(str, name)): results[name if len(name) > 1 else name[0]] for name in names}
        ratios = {name: np.asarray(found["rate"]) / found["expected"] for name, found in cases.items()}
        judged = {name: near(ratio, 1.0, within=0.03) for name, ratio in ratios.items()}
        text = "measured over expected: " + ", ".join(f"{name} {plus_minus(x, 3)}" for name, x in ratios.items())
        return text, every(judged) if len(judged) > 1 else next(iter(judged.values()))

    def tables(self, results: Results) -> list[Table]:
        rows = [
            [" ".join(map(str, name)) if isinstance(name, tuple) else name, f"{found['expected']:.4g}", text]
            for name, found in results.items()
            if isinstance(found, dict) and "rate" in found
            for text in [plus_minus(found["rate"], 4)]
        ]
        return [Table(["surface", "rate, exact", "rate, measured"], rows, "decay of the mean without a force")]

    def draw(self, results: Results) -> Figures:
        figure, (left, middle, right) = subplots(1, 3, figsize=(13, 4))
        for name, found in results.items():
            if isinstance(found, dict) and "curve" in found:
                t = found["h"] * np.arange(len(found["curve"])) * found["expected"]
                label = " ".join(map(str, name)) if isinstance(name, tuple) else name
                left.semilogy(t, found["curve"], label=label)
        left.semilogy([0, 1], [1, math.exp(-1)], "k:", label="e^{−λt}")
        left.set(title="the mean without a force", xlabel="λt", ylabel="⟨q(t)·q(0)⟩")
        left.legend(fontsize=7)
        middle.plot(results["Verlet"]["x"], results["Verlet"]["radius"])
        middle.set(title="Verlet (1.31)", xlabel="hΩ", ylabel="largest |λ|")
        own = results["DHSGD"]
        for key, label in (("dhsgd", "DHSGD"), ("dhsgd_contractive", "DHSGDc")):
            right.loglog(own["h"], own[key], "o-", label=label)
        right.axhline(own["flow"], color="0.6", lw=0.8)
        right.set(title="rate of contraction (3.3.2)", xlabel="h", ylabel="−log|λ|/h")
        right.legend()
        return {"theory": figure}
