import math
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss, softplus

from tether.measure import hessian_spectrum
from tether_studies.drawing import subplots
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, at, study
from tether_studies.images import Pair
from tether_studies.judges import less, yes
from tether_studies.quantities import Quantity, within

ACTIVATIONS = {"ReLU": nn.ReLU, "tanh": nn.Tanh}
START, MINIMUM, LIFTED, DECAYED, FIRM = KINDS = (
    *("start", "minimum", "minimum, + λI"),
    *("minimum with decay", "minimum with decay, + λI"),
)
ZERO = 1e-6  # of the largest eigenvalue
STILL = 1e-6  # |∇| where a minimum is; with softened units, of λ
SOFTENED = "softened"
WAY = [(1e-4, 10.0), (1e-4, 30.0), (1e-4, 100.0), (1e-4, 300.0), (1e-4, 1000.0)]  # λ and β, one after another
WAY += [(λ, 1000.0) for λ in (1e-5, 1e-6, 1e-7)]


def descend(net: nn.Module, data: Pair, decay: float, steps: int) -> float:
    """Bring a network to a minimum of the square loss with weight decay; returns |∇| there."""
    x, y = data
    parameters = list(net.parameters())
    opt = torch.optim.LBFGS(parameters, 1, steps, 4 * steps, 1e-14, 1e-30, 100, "strong_wolfe")

    def closure() -> torch.Tensor:
        opt.zero_grad()
        total = mse_loss(net(x), y) + 0.5 * decay * sum(p.square().sum() for p in parameters)
        total.backward()
        return total

    opt.step(closure)
    closure()
    return math.hypot(*[float(p.grad.norm()) for p in parameters if p.grad is not None])


def softened(w: torch.Tensor, data: Pair, decay: float, β: float) -> torch.Tensor:
    """The loss with decay of a network with units softplus(βz)/β, its weights in a row."""
    x, y = data
    hidden = len(w) // (x.shape[1] + 1)
    first, last = w[:-hidden].view(hidden, -1), w[-hidden:]
    fitted = softplus(x @ first.mT, β) @ last
    return (fitted - y.squeeze(1)).square().mean() + 0.5 * decay * w.square().sum()


def newton(w: torch.Tensor, loss: Any, decay: float, steps: int) -> tuple[torch.Tensor, float, torch.Tensor]:
    """Go to a minimum by steps −|H|⁻¹∇, halved until the loss falls; from a saddle along its most negative direction.

    Returns the minimum, |∇| and the eigenvalues there.
    """
    for _ in range(steps):
        slope, (values, vectors) = torch.func.grad(loss)(w), torch.linalg.eigh(torch.func.hessian(loss)(w))
        still = float(slope.norm()) < STILL * decay
        if still and values[0] > 0:
            break
        if still:
            w = w + 1e-3 * vectors[:, 0]
            continue
        step = -vectors @ ((vectors.mT @ slope) / values.abs().clamp(min=0.1 * decay))
        size, level, fall = 1.0, loss(w), slope @ step
        while loss(w + size * step) > level + 1e-4 * size * fall and size > 1e-10:
            size /= 2
        w = w + size * step
    return w, float(torch.func.grad(loss)(w).norm()), torch.linalg.eigvalsh(torch.func.hessian(loss)(w))


def split_unit(w: torch.Tensor, hidden: int, t: float) -> torch.Tensor:
    """Weights with the largest unit in two of the same direction, one in place of the smallest: cos t and sin t of it.

    ReLU units are homogeneous, so the function is the same for all t, and so is |w|².
    """
    first, last = w[:-hidden].view(hidden, -1).clone(), w[-hidden:].clone()
    sizes = first.square().sum(1) + last.square()
    big, idle = int(sizes.argmax()), int(sizes.argmin())
    first[idle], last[idle] = math.sin(t) * first[big], math.sin(t) * last[big]
    first[big], last[big] = math.cos(t) * first[big], math.cos(t) * last[big]
    return torch.cat((first.flatten(), last))


def span(counts: Any) -> str:
    """The least and the most."""
    low, high = int(np.min(counts)), int(np.max(counts))
    return str(low) if low == high else f"{low} to {high}"


@study("degeneracy", "GD-dynamics slides, square loss, deep networks")
class DegenerateMinima(Experiment):
    """minima of overparametrized networks are degenerate; weight decay can make them hyperbolic

    Networks without biases and with ten times as many weights as points are brought to a minimum of the square loss by
    L-BFGS. There the errors vanish and the Hessian is Σ ∇f ∇fᵀ: as many positive eigenvalues as points, the others 0.
    At the start, where errors remain, it has more. A minimum with ½λ|w|² is one of another loss, whose Hessian has λI
    added.

    The slides have no numbers of an experiment. Starts are torch's own; λ is added to the mean of the squares. ReLUs
    with weight decay are pulled to their kinks, where there is no Hessian: they are taken as the limit of
    softplus(βz)/β, from the minimum without decay, by Newton's method. A unit in two of the same direction has the same
    function and the same |w|², so that exact ReLUs have flat directions even with λ wherever one unit is idle.
    """

    says = """
        the Hessian of an overparametrized network has zero eigenvalues at a minimum
            | at least one zero eigenvalue (Theorem 4)
        where the points are fitted only directions in the span of their ∂f/∂W are curved
            | if N < number of weights there is degeneracy: here N = {points}
        directions that are degenerate near a minimum are not during descent
            | the degenerate directions near a minimum will not be degenerate during GD
        λI makes the Hessian at such a minimum positive definite | H + λI can be positive definite
        the minimum with weight decay is hyperbolic, if the network is smooth
            | regularization can transform a degenerate Hessian at a minimum into a hyperbolic one
        and so it is if its units are ReLUs | the same, for deep networks with ReLUs
    """
    label = ("units", "where")
    columns = tuple(
        Quantity(name, lambda one, i=i: one["counts"][..., i], show=lambda x: f"{x.mean():.1f}")  # type: ignore[misc]
        for i, name in enumerate(("negative", "zero", "positive"))
    )
    caption = "Hessian, means over the runs"
    runs: int = at(10, quick=2, full=50)
    points: int = at(12, quick=6, full=30)
    features: int = 5
    hidden: int = at(20, quick=10, full=100)
    steps: int = at(10_000, quick=400)  # of L-BFGS, at most
    decay: float = 1e-2

    def run(self, lab: Lab) -> Results:
        """Spectra at starts and minima, for smooth and for ReLU networks; run i of both has the same points."""
        pairs = [(name, i) for name in (*ACTIVATIONS, SOFTENED) for i in range(self.runs)]
        return lab.each(pairs, lambda pair: self.piece(pair[0], lab.named_seed(f"run {pair[1]}")))

    def begun(self, activation: str, seed: int) -> tuple[nn.Sequential, Pair]:
        """A network at its start, and its points."""
        torch.manual_seed(seed)
        data = torch.randn(self.points, self.features).double(), torch.randn(self.points, 1).double()
        first, last = nn.Linear(self.features, self.hidden, bias=False), nn.Linear(self.hidden, 1, bias=False)
        return nn.Sequential(first, ACTIVATIONS[activation](), last).double(), data

    def piece(self, activation: str, seed: int) -> Results:
        """Counts of negative, zero and positive eigenvalues and the extreme ones, a row for each of KINDS."""
        if activation == SOFTENED:
            return self.limit(seed)
        net, data = self.begun(activation, seed)
        start = {name: x.clone() for name, x in net.state_dict().items()}
        begun = hessian_spectrum(net, data, mse_loss, zero=ZERO)
        slopes = [descend(net, data, 0.0, self.steps)]
        free = hessian_spectrum(net, data, mse_loss, zero=ZERO)
        net.load_state_dict(start)
        slopes.append(descend(net, data, self.decay, self.steps))
        held = hessian_spectrum(net, data, mse_loss, zero=ZERO)
        found = (begun, free, free.regularized(self.decay), held, held.regularized(self.decay))
        return {
            "counts": [(one.negative, one.zero, one.positive) for one in found],
            "eigenvalues": torch.stack([one.eigenvalues for one in found]),
            "slopes": slopes,
            "losses": [free.loss, held.loss],
            "cutoffs": [one.cutoff for one in found],
        }

    def limit(self, seed: int) -> Results:
        """From the minimum of ReLUs without decay along `WAY`: the least eigenvalue over λ, and |∇| over λ."""
        net, data = self.begun("ReLU", seed)
        descend(net, data, 0.0, self.steps)
        w = torch.cat([p.detach().flatten() for p in net.parameters()])
        least, slopes = list[float](), list[float]()
        for λ, β in WAY:
            w, slope, values = newton(w, lambda w, λ=λ, β=β: softened(w, data, λ, β), λ, self.steps // 50)
            least.append(float(values[0]) / λ)
            slopes.append(slope / λ)
        sharp = [softened(split_unit(w, self.hidden, t), data, WAY[0][0], 1e9) for t in (0.0, 0.6)]
        return {"least": least, "slopes": slopes, "split": float((sharp[1] - sharp[0]).abs() / sharp[0])}

    def tabled(self, results: Results) -> dict[tuple[str, str], Results]:
        """What all runs found, by the units and by where."""
        found = {}
        for name in ACTIVATIONS:
            runs = list(within(results, name).values())
            every = {key: np.stack([one[key] for one in runs]) for key in ("counts", "slopes", "losses")}
            for i, kind in enumerate(KINDS):
                found[name, kind] = {**every, "counts": every["counts"][:, i]}
        return found

    def claims(self, results: Results) -> Found:
        found, parameters = self.tabled(results), self.hidden * (self.features + 1)
        zeros = {name: found[name, MINIMUM]["counts"][:, 1] for name in ACTIVATIONS}
        curved, lifted = ([found[name, kind]["counts"][:, 2] for name in ACTIVATIONS] for kind in (MINIMUM, LIFTED))
        worst = max(found[name, MINIMUM]["losses"][:, 0].max() for name in ACTIVATIONS)
        said = f"of {parameters} eigenvalues {span(zeros['ReLU'])} are 0 with ReLU and {span(zeros['tanh'])} with tanh"
        flat = bool(min(x.min() for x in zeros.values()) >= 1 and worst < 1e-10)
        yield said, yes(flat, f"{self.runs} networks of each kind at minima with losses up to {worst:.0e}")
        fitted = bool((np.array(curved) == self.points).all())
        evidence = f"{2 * self.runs} minima; 0 is {ZERO:g} of the largest"
        yield f"{span(curved)} positive eigenvalues", yes(fitted, evidence)
        begun = found["tanh", START]["counts"][:, 1]
        said = f"{span(begun)} zero eigenvalues at the start, {span(zeros['tanh'])} at the minimum (tanh)"
        yield said, less(begun, zeros["tanh"])
        definite = bool((np.array(lifted) == parameters).all())
        said = f"{span(lifted)} of {parameters} eigenvalues positive, λ = {self.decay:g}"
        yield said, yes(definite, f"{2 * self.runs} minima of the loss without λ")
        smooth, kinks = found["tanh", FIRM], found["ReLU", FIRM]["slopes"][:, 1]
        firm, arrived = smooth["counts"][:, 2] == parameters, smooth["slopes"][:, 1] < STILL
        said = f"positive definite in {int(firm[arrived].sum())} of {int(arrived.sum())} tanh networks that arrived"
        evidence = f"|∇| < {STILL:g} there; {int((~arrived).sum())} of {self.runs} were still on their way after"
        hyperbolic = bool(firm[arrived].all() and arrived.mean() > 0.5)
        yield said, yes(hyperbolic, f"{evidence} {self.steps:,} steps")
        ends = list(within(results, SOFTENED).values())
        least, slopes = (np.stack([one[key] for one in ends]) for key in ("least", "slopes"))
        there = slopes < STILL
        last = [i for i, (_, β) in enumerate(WAY) if β == WAY[-1][1]]
        worst = [float(least[:, i][there[:, i]].min(initial=math.inf)) for i in range(len(WAY))]
        said = ", ".join(f"{x:.2f} λ at λ = {λ:g}, β = {β:g}" for (λ, β), x in zip(WAY, worst, strict=True) if β >= 100)
        count = f"{int(there[:, last].sum())} of {there[:, last].size} arrived at β = {WAY[-1][1]:g}"
        kinked = f"with ReLUs themselves |∇| stays at {np.median(kinks):.0e} (median), at kinks"
        moved = max(float(one["split"]) for one in ends)
        split = f"a unit in two of one direction changes the loss by {moved:.0e} of it"
        definite = bool(there[:, last].mean() > 0.5 and min(worst[i] for i in last) > 0)
        yield f"least eigenvalue {said}", yes(definite, f"{count}; {kinked}; {split}")

    def draw(self, results: Results) -> Figures:
        figure, panels = subplots(1, 2, figsize=(9, 4), sharey=True)
        marks = {START: ("0.6", 2), MINIMUM: ("#1f5fa8", 6), LIFTED: ("#c2452d", 4), FIRM: ("#3a8f4d", 2)}
        for axis, name in zip(panels, ACTIVATIONS, strict=True):
            first = results[name, 0]
            for kind, (colour, size) in marks.items():
                values = first["eigenvalues"][KINDS.index(kind)][::-1]
                axis.plot(range(1, len(values) + 1), values, "o", ms=size, mew=0, color=colour, label=kind)
            cutoff = first["cutoffs"][KINDS.index(MINIMUM)]
            axis.axhspan(-cutoff, cutoff, color="0.9", zorder=0)
            axis.axvline(self.points + 0.5, color="0.7", lw=0.8, zorder=0)
            axis.set_yscale("symlog", linthresh=1e-6)
            axis.set(title=f"{name} units, {self.points} points", xlabel="rank", ylabel="eigenvalue of the Hessian")
        panels[0].legend()
        return {"degeneracy": figure}
