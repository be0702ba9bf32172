"""The published methods as rows of the table, each with its source.

Every function takes a module and the published parameters and returns an `Optimizer`; further keywords
(``seed``, ``weight_decay``, ``on_nonfinite``, …) go to it. The defaults are the documents' rules of thumb.
A layer is a module with parameters of its own (weights and biases together, 3.24); the output layer is the
last one unless ``output`` names it by a glob such as ``"head.*"``.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, TypeVar

import numpy as np
import torch

from tether.multirate import one_clock, set_clocks
from tether.optimizer import Optimizer
from tether.part import Part, matches, number
from tether.path import Path
from tether.replicas import Replicas
from tether.surfaces import Circle, Orthogonal, Sphere, Surface

__all__ = [
    "adaptive_langevin",
    "adlala",
    "circle_cola_od",
    "circle_cola_ud",
    "citation",
    "composite_sgd",
    "dhsgd",
    "dhsgd_contractive",
    "langevin",
    "langevin_in_layers",
    "lol",
    "multirate_sgd",
    "orthogonal_cola_od",
    "orthogonal_cola_ud",
    "path_sgd",
    "random_subset",
    "sgd",
    "sgld",
    "sphere_cola_od",
    "sphere_cola_ud",
]

PARTITIONED = (
    "B. Leimkuhler, C. Matthews, T. Vlaar. Partitioned integrators for thermodynamic parameterization of neural "
    "networks. Foundations of Data Science 1 (2019)"
)
CONSTRAINED = (
    "B. Leimkuhler, T. Vlaar, T. Pouchon, A. Storkey. Better training using weight-constrained stochastic dynamics. "
    "ICML 2021"
)
PATHS = (
    "B. Neyshabur, R. Salakhutdinov, N. Srebro. Path-SGD: path-normalized optimization in deep neural networks. "
    "NeurIPS 2015"
)
MULTIRATE = "T. Vlaar, B. Leimkuhler. Multirate training of neural networks. ICML 2022"
CITATIONS: dict[str, str] = {}

Radius = float | torch.Tensor | Sequence[float]
Method = TypeVar("Method", bound=Callable[..., Optimizer])


def cites(source: str) -> Callable[[Method], Method]:
    """Note the source of a method under its name, and on what it returns."""

    def note(method: Method) -> Method:
        name = method.__name__
        CITATIONS[name] = source

        def build(*args: Any, **kwargs: Any) -> Optimizer:
            optimizer = method(*args, **kwargs)
            optimizer.method = name
            return optimizer

        build.__name__, build.__doc__ = name, method.__doc__
        build.__wrapped__ = method  # type: ignore[attr-defined]
        return build  # type: ignore[return-value]

    return note


def citation(method: str) -> str:
    """The source of a method, by its name."""
    return CITATIONS[method]


@cites("H. Robbins, S. Monro. A stochastic approximation method. Annals of Mathematical Statistics 22 (1951)")
def sgd(model: torch.nn.Module, lr: float = 0.1, **options: Any) -> Optimizer:
    """Gradient descent: θ ← θ − h g, equal to ``torch.optim.SGD`` bit for bit.

    With momentum it is `langevin` at zero temperature, word ``OBA``, with ``lr = h²`` and
    ``momentum = exp(−γh)``.
    """
    return Optimizer(model, lr=lr, word="X", temperature=0.0, **options)


@cites("M. Welling, Y. W. Teh. Bayesian learning via stochastic gradient Langevin dynamics. ICML 2011")
def sgld(
    model: torch.nn.Module,
    lr: float = 0.1,
    noise: float | None = None,
    temperature: float | None = None,
    **options: Any,
) -> Optimizer:
    """Stochastic gradient Langevin dynamics (2.66): θ ← θ − h g + σ √h R.

    Give ``noise`` σ (default 0.01) or ``temperature`` τ = σ²/2; it samples exp(−L/τ) as h → 0. For the
    posterior of n data points with L their mean loss, τ = 1/n.
    """
    if noise is not None and temperature is not None:
        raise ValueError(f"noise={noise} and temperature={temperature} say the same thing (σ² = 2τ): give one of them")
    if temperature is None:
        temperature = number("sgld", "noise", 0.01 if noise is None else noise) ** 2 / 2
    return Optimizer(model, lr=lr, word="X", temperature=temperature, **options)


@cites(
    "B. Leimkuhler, C. Matthews. Rational construction of stochastic numerical methods for molecular sampling. "
    "Applied Mathematics Research eXpress 2013"
)
def langevin(
    model: torch.nn.Module,
    lr: float = 0.1,
    friction: float = 1.0,
    temperature: float = 1e-5,
    word: str = "BAOAB",
    **options: Any,
) -> Optimizer:
    """Langevin dynamics (3.14): dθ = p dt, dp = −∇L dt − γ p dt + √(2γτ) dW, by the splitting `word`."""
    return Optimizer(model, lr=lr, word=word, friction=friction, temperature=temperature, **options)


@cites(PARTITIONED)
def langevin_in_layers(
    model: torch.nn.Module,
    lr: float = 0.1,
    friction: float | Sequence[float] = 1.0,
    temperature: float | Sequence[float] = 1e-5,
    word: str = "BAOAB",
    **options: Any,
) -> Optimizer:
    """Langevin dynamics with a friction and a temperature for each layer (3.25).

    A sequence has one value per layer, input to output; a number serves all.
    """
    layers = _layers(model)
    frictions = _per_layer("friction", friction, layers)
    temperatures = _per_layer("temperature", temperature, layers)
    parts = [
        Part(_glob(layer), friction=γ, temperature=τ)
        for layer, γ, τ in zip(layers, frictions, temperatures, strict=True)
    ]
    return Optimizer(model, _narrow_first(parts), lr=lr, word=word, **options)


@cites(PARTITIONED)
def lol(
    model: torch.nn.Module,
    lr: float = 0.1,
    friction: float = 0.01,
    temperature: float = 1e-3,
    output_temperature: float = 0.0,
    output: str | None = None,
    **options: Any,
) -> Optimizer:
    """Langevin–overdamped Langevin (3.26): BAOAB throughout, with infinite friction on the output layer."""
    parts = [
        Part(output or _output(model), friction=inf, temperature=output_temperature),
        Part("*", friction=friction, temperature=temperature),
    ]
    return Optimizer(model, parts, lr=lr, word="BAOAB", **options)


@cites(PARTITIONED)
def dhsgd(model: torch.nn.Module, lr: float = 0.1, output: str | None = None, **options: Any) -> Optimizer:
    """Dissipated Hamiltonian SGD (3.27–3.30): Verlet inside, θ ← θ − (h²/2) g on the output layer."""
    parts = [
        # B(h) A(h/2) O A(h/2) with O setting p to 0: the h²/2 of (3.29), from the first step on
        Part(output or _output(model), word="BAOA", friction=inf, temperature=0.0),
        Part("*", word="BAB"),
    ]
    return Optimizer(model, parts, lr=lr, **options)


@cites(PARTITIONED)
def dhsgd_contractive(
    model: torch.nn.Module, lr: float = 0.1, scheme: str = "euler", output: str | None = None, **options: Any
) -> Optimizer:
    """DHSGDc (3.3.2.1): Verlet inside, gradient flow with step h on the output layer.

    ``scheme="heun"`` solves the latter by Heun's method; it takes two gradients and needs
    ``step(closure)``.
    """
    words = {"euler": "X", "heun": "XH"}
    if scheme not in words:
        raise ValueError(f"scheme={scheme!r} must be 'euler' or 'heun'")
    parts = [Part(output or _output(model), word=words[scheme], temperature=0.0), Part("*", word="BAB")]
    return Optimizer(model, parts, lr=lr, **options)


@cites(
    "A. Jones, B. Leimkuhler. Adaptive stochastic methods for sampling driven molecular systems. "
    "Journal of Chemical Physics 135 (2011)"
)
def adaptive_langevin(
    model: torch.nn.Module,
    lr: float = 0.1,
    temperature: float = 1e-4,
    coupling: float = 0.1,
    noise: float = 0.01,
    per: str = "layer",
    word: str = "BACDEDCAB",
    **options: Any,
) -> Optimizer:
    """Adaptive Langevin dynamics (3.21): the friction ξ adapts until the kinetic temperature is τ.

    One thermostat ``per`` "layer", "tensor" or "model". It absorbs gradient noise of unknown strength.
    """
    parts = _thermostats(model, per, word=word, temperature=temperature, coupling=coupling, noise=noise)
    return Optimizer(model, parts, lr=lr, **options)


@cites(PARTITIONED)
def adlala(
    model: torch.nn.Module,
    lr: float = 0.15,
    temperature: float = 1e-4,
    friction: float = 0.1,
    noise: float = 0.01,
    coupling: float = 0.1,
    output_temperature: float | None = None,
    per: str = "tensor",
    output: str | None = None,
    **options: Any,
) -> Optimizer:
    """AdLaLa (3.31): adaptive Langevin inside, Langevin with `friction` on the output layer.

    As in the authors' program weights and biases have a thermostat each; ``per="layer"`` lets them share one.
    """
    τ2 = temperature if output_temperature is None else output_temperature
    last = Part(output or _output(model), word="BAOAB", friction=friction, temperature=τ2)
    inner = _thermostats(model, per, last, word="BACDEDCAB", temperature=temperature, coupling=coupling, noise=noise)
    return Optimizer(model, [last, *inner], lr=lr, **options)


@cites(CONSTRAINED)
def circle_cola_od(
    model: torch.nn.Module,
    lr: float = 0.1,
    radius: Radius = 1.0,
    temperature: float = 0.0,
    free: Sequence[str] = (),
    **options: Any,
) -> Optimizer:
    """c-CoLA-od (4.47): overdamped Langevin with every weight bounded, |θ| ≤ r.

    `radius` is a number, or one per weight layer from input to output; `free` are globs of weights left free. Biases
    and the parameters of norm layers are free.
    """
    parts = _constrained(model, Circle, radius, free)
    return Optimizer(model, parts, lr=lr, word="X", temperature=temperature, **options)


@cites(CONSTRAINED)
def circle_cola_ud(
    model: torch.nn.Module,
    lr: float = 0.3,
    friction: float = 1.0,
    radius: Radius = 1.0,
    temperature: float = 0.0,
    free: Sequence[str] = (),
    word: str = "OBA",
    **options: Any,
) -> Optimizer:
    """c-CoLA-ud (4.48): Langevin dynamics with every weight bounded; see `circle_cola_od`."""
    parts = _constrained(model, Circle, radius, free)
    return Optimizer(model, parts, lr=lr, word=word, friction=friction, temperature=temperature, **options)


@cites(CONSTRAINED)
def sphere_cola_od(
    model: torch.nn.Module,
    lr: float = 0.1,
    radius: Radius = 1.0,
    temperature: float = 0.0,
    free: Sequence[str] = (),
    **options: Any,
) -> Optimizer:
    """Overdamped Langevin with the incoming weights of every unit bounded in norm (4.3); see `circle_cola_od`."""
    parts = _constrained(model, Sphere, radius, free)
    return Optimizer(model, parts, lr=lr, word="X", temperature=temperature, **options)


@cites(CONSTRAINED)
def sphere_cola_ud(
    model: torch.nn.Module,
    lr: float = 0.3,
    friction: float = 1.0,
    radius: Radius = 1.0,
    temperature: float = 0.0,
    free: Sequence[str] = (),
    word: str = "OBA",
    **options: Any,
) -> Optimizer:
    """Langevin dynamics with the incoming weights of every unit bounded in norm (4.3); see `circle_cola_od`."""
    parts = _constrained(model, Sphere, radius, free)
    return Optimizer(model, parts, lr=lr, word=word, friction=friction, temperature=temperature, **options)


@cites(CONSTRAINED)
def orthogonal_cola_od(
    model: torch.nn.Module,
    lr: float = 0.1,
    temperature: float = 0.0,
    free: Sequence[str] = (),
    start: str = "random",
    **options: Any,
) -> Optimizer:
    """o-CoLA-od (4.53–4.55): overdamped Langevin with orthogonal weights.

    `free` are globs of weights left free, e.g. those of the input and output layers, as in Figure 4.4; `start` is
    "random" as in the paper, or "project" for trained weights. Biases and norm layers are free.
    """
    parts = _constrained(model, Orthogonal, None, free, start=start)
    return Optimizer(model, parts, lr=lr, word="X", temperature=temperature, **options)


@cites(CONSTRAINED)
def orthogonal_cola_ud(
    model: torch.nn.Module,
    lr: float = 0.1,
    friction: float = 0.5,
    temperature: float = 0.0,
    free: Sequence[str] = (),
    start: str = "random",
    word: str = "OBA",
    **options: Any,
) -> Optimizer:
    """o-CoLA-ud (4.57): Langevin dynamics with orthogonal weights; see `orthogonal_cola_od`."""
    parts = _constrained(model, Orthogonal, None, free, start=start)
    return Optimizer(model, parts, lr=lr, word=word, friction=friction, temperature=temperature, **options)


@cites(MULTIRATE)
def multirate_sgd(
    model: torch.nn.Module,
    fast: str,
    k: int = 5,
    lr: float = 0.05,
    momentum: float = 0.9,
    drift: bool = True,
    weight_decay: float = 0.0,
    slow_weight_decay: float | None = None,
    batchnorm: str = "train",
    slow_eval: bool = False,
    **options: Any,
) -> Optimizer:
    """Multirate SGD with momentum (Algorithms 5.1 to 5.3): `fast` every step with h/k, the rest every k steps with h.

    Between its steps no gradient of the slow part is computed. `drift` spreads its step over them (5.1) instead of
    taking it at once (5.2). `batchnorm` and `slow_eval` are explained in `tether.multirate.set_clocks`. Tied weights
    move once; `fast` must match all of their names or none.
    """
    if not isinstance(k, int) or k < 1:
        raise ValueError(f"k={k!r} must be a whole number of fast steps, 1 or more, e.g. k=5")
    one_clock(model, fast)
    friction = _friction(momentum)
    decay = weight_decay if slow_weight_decay is None else slow_weight_decay
    parts = [
        Part(fast, word="MS", lr=lr / k, friction=friction, weight_decay=weight_decay),
        Part("*", word="MS", lr=lr, friction=friction, weight_decay=decay, every=k, drift=drift),
    ]
    optimizer = Optimizer(model, parts, lr=lr, **options)
    if k > 1:
        set_clocks(model, optimizer, batchnorm, slow_eval)
    return optimizer


@cites(MULTIRATE)
def composite_sgd(
    model: torch.nn.Module, lr: float = 0.1, k: int = 25, momentum: float = 0.9, **options: Any
) -> Optimizer:
    """Two copies of the network on two time scales, merged every k steps (5.9.3): `lr` is the slow step, h/k the fast.

    The slow copy needs no pass of its own: both start a cycle at the same point, from the same gradient.
    """
    if not isinstance(k, int) or k < 1:
        raise ValueError(f"k={k!r} must be a whole number of fast steps, 1 or more, e.g. k=25")
    return Optimizer(model, lr=lr / k, merge=k, **_descent(momentum), **options)


@cites(MULTIRATE)
def random_subset(
    model: torch.nn.Module,
    lr: float = 0.1,
    k: int = 5,
    probabilities: Mapping[str, float] | None = None,
    momentum: float = 0.0,
    **options: Any,
) -> Optimizer:
    """SGD with random subsets of the weights asleep for k steps (5.5.1).

    `probabilities` are by glob on parameter names; without them 0.8 for the first weight matrix and 0.5 for the others,
    as in Figure 5.7.
    """
    named = list(model.named_parameters())
    dims = 1 + isinstance(model, Replicas)
    if probabilities is None:
        weights = [name for name, param in named if param.dim() > dims]
        probabilities = {glob.escape(name): 0.5 if i else 0.8 for i, name in enumerate(weights)}
    parts = [Part(where, asleep=share, nap=k) for where, share in probabilities.items()]
    if not all(any(matches(name, part.where) for part in parts) for name, _ in named):
        parts.append(Part("*"))
    return Optimizer(model, parts, lr=lr, **_descent(momentum), **options)


@cites(PATHS)
def path_sgd(
    model: torch.nn.Module,
    lr: float = 0.1,
    p: float = 2,
    momentum: float = 0.0,
    temperature: float = 0.0,
    **options: Any,
) -> Optimizer:
    """Path-SGD (002): w_e ← w_e − h/γ_p(w, e) ∂L/∂w_e, steepest descent in the geometry of a ReLU network's paths.

    Networks that compute the same function by rescaled weights go on computing the same. With momentum the word is MS,
    at a temperature X.
    """
    if momentum and temperature:
        raise ValueError("momentum and temperature: use Optimizer(model, word='BAOAB', metric=tether.Path(), ...)")
    return Optimizer(model, lr=lr, metric=Path(p), temperature=temperature, **_descent(momentum), **options)


def _descent(momentum: float) -> dict[str, Any]:
    """SGD's word, with torch's momentum if there is one."""
    friction = _friction(momentum)
    return {"word": "MS", "friction": friction} if momentum else {"word": "X"}


def _friction(momentum: float) -> float:
    """γ of the letter M for torch's momentum μ = e^{−γ}."""
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum={momentum!r} must be at least 0 and below 1, e.g. momentum=0.9")
    return -math.log(momentum) if momentum else inf


def _constrained(
    model: torch.nn.Module, surface: Callable[..., Surface], radius: Radius | None, free: Sequence[str], **fields: Any
) -> list[Part]:
    """A part for the weights, or one for each where there are several radii, and one for the rest."""
    if isinstance(free, str):
        raise TypeError(f"free={free!r} must be a list of globs, e.g. free=[{free!r}]")
    replicas = isinstance(model, Replicas)  # their first axis is no dimension of a weight
    named = [(name, param.dim() - replicas if param.numel() else 0) for name, param in model.named_parameters()]
    for where in free:
        if not any(matches(name, where) for name, _ in named):
            raise ValueError(f"free={where!r} matches no parameter")
    weights = [name for name, dim in named if dim > 1 and not any(matches(name, where) for where in free)]
    if not weights:
        raise ValueError("no weights to constrain: no parameter with two dimensions or more is not free")
    literal = [glob.escape(name) for name in weights]
    if isinstance(radius, Sequence):
        if len(radius) != len(weights):
            raise ValueError(f"radius has {len(radius)} values for the {len(weights)} weights {', '.join(weights)}")
        parts = [Part(where, on=surface(r, **fields)) for where, r in zip(literal, radius, strict=True)]
    else:
        on = surface(**fields) if radius is None else surface(radius, **fields)
        parts = [Part("|".join(literal), on=on)]
    return [*parts, Part("*")] if len(weights) < len(named) else parts


def _layers(model: torch.nn.Module) -> list[str]:
    """Modules that hold parameters of their own, in order of first use."""
    return list(dict.fromkeys(name.rpartition(".")[0] for name, _ in model.named_parameters()))


def _glob(layer: str) -> str:
    """The glob of a layer's parameters; characters that mean something in a glob are meant literally."""
    return f"{glob.escape(layer)}.*" if layer else "*"


def _narrow_first(parts: list[Part]) -> list[Part]:
    """A layer inside a layer must come before it, since the first match wins; else the order stays."""
    order = {part.where: i for i, part in enumerate(parts)}
    inside = {part.where: [q for q in order if q != part.where and matches(q, part.where)] for part in parts}
    return sorted(parts, key=lambda part: max([order[part.where], *(order[q] + 0.5 for q in inside[part.where])]))


def _output(model: torch.nn.Module) -> str:
    layers = _layers(model)
    if len(layers) < 2:
        raise ValueError(
            f"a partitioned method needs two layers or more, this model has {layers}: use tether.methods.langevin, "
            "or name the parameters of the output part by output='...'"
        )
    return _glob(layers[-1])


def _per_layer(name: str, value: Any, layers: list[str]) -> list[float]:
    one = isinstance(value, str) or not isinstance(value, Sequence | torch.Tensor | np.ndarray) or np.ndim(value) == 0
    given = [value] * len(layers) if one else list(value)
    values = [number("langevin_in_layers", name, x, allow_infinite=name == "friction") for x in given]
    if len(values) != len(layers):
        raise ValueError(f"{name} has {len(values)} values for the {len(layers)} layers {', '.join(layers)}")
    return values


def _thermostats(model: torch.nn.Module, per: str, taken: Part | None = None, **fields: Any) -> list[Part]:
    """One part, and so one thermostat, for each tensor, layer or the whole model; `taken` parameters apart."""
    names = [name for name, _ in model.named_parameters() if not (taken and matches(name, taken.where))]
    wheres = {
        "tensor": [glob.escape(name) for name in names],
        "layer": list(dict.fromkeys(_glob(name.rpartition(".")[0]) for name in names)),
        "model": ["*"],
    }
    if per not in wheres:
        raise ValueError(f"per={per!r} must be 'tensor', 'layer' or 'model'")
    if not names:
        where = taken.where if taken else "*"
        raise ValueError(f"the inner part matches no parameter: output={where!r} takes them all; name the output alone")
    return _narrow_first([Part(where, **fields) for where in wheres[per]])
