"""The published methods as tables of parts, each with its source.

Every function takes a module and the published parameters and returns an `Optimizer`; further keywords (``seed``,
``weight_decay``, ``on_nonfinite``, …) go to it. The defaults are the values that the publications recommend. A layer is
a module with parameters of its own (weights and biases together, 3.24). The output layer is the last one, unless
``output`` names another by a glob such as ``"head.*"``.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, TypeVar

import torch

from tether.engine.given import bare
from tether.engine.references import cited
from tether.engine.table import CITATIONS
from tether.ensemble.replicas import Replicas
from tether.layerwise import Radius, constrained, glob_of, layers, narrow_first, output_layer, per_layer, thermostats
from tether.metrics.path import Path
from tether.metrics.rms import RMS
from tether.metrics.spectral import Spectral
from tether.optimizer import Optimizer
from tether.part import Part, matches, number
from tether.rhythms.metropolis import Metropolis
from tether.rhythms.multirate import one_clock, set_clocks
from tether.rhythms.pace import Pace
from tether.rhythms.rhythm import whole_steps
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
    "hmc",
    "langevin",
    "langevin_in_layers",
    "lol",
    "mala",
    "multirate_sgd",
    "muon",
    "orthogonal_cola_od",
    "orthogonal_cola_ud",
    "path_sgd",
    "random_subset",
    "rms_sgld",
    "samadams",
    "sgd",
    "sgld",
    "sphere_cola_od",
    "sphere_cola_ud",
]

PARTITIONED, CONSTRAINED, PATHS, MULTIRATE = "leimkuhler2019", "leimkuhler2021", "neyshabur2015", "vlaar2022multirate"

Method = TypeVar("Method", bound=Callable[..., Optimizer])


def cites(source: str, parameters: bool = False) -> Callable[[Method], Method]:
    """Record the source of a method, a key of references.bib. Without ``parameters=True`` it accepts modules only."""

    def note(method: Method) -> Method:
        name = method.__name__
        CITATIONS[name] = source

        def build(*args: Any, **kwargs: Any) -> Optimizer:
            model = bare(args[0] if args else kwargs.get("model"))
            if not parameters and not isinstance(model, torch.nn.Module):
                got = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
                raise TypeError(
                    f"{name} looks at the model's layers: pass the module itself, tether.methods.{name}(model, ...); "
                    f"got {got}"
                )
            if args:
                args = (model, *args[1:])
            else:
                kwargs = {**kwargs, "model": model} if "model" in kwargs else kwargs
            optimizer = method(*args, **kwargs)
            optimizer.method = name
            return optimizer

        build.__name__, build.__doc__ = name, method.__doc__
        build.__wrapped__ = method  # type: ignore[attr-defined]
        return build  # type: ignore[return-value]

    return note


def citation(method: str) -> str:
    """The source of a method, by its name."""
    return cited(CITATIONS[method])


@cites("robbins1951", parameters=True)
def sgd(model: torch.nn.Module, lr: float = 0.1, **options: Any) -> Optimizer:
    """Gradient descent: θ ← θ − h g, equal to ``torch.optim.SGD`` bit for bit.

    With momentum it is `langevin` at zero temperature, word ``OBA``, with ``lr = h²`` and
    ``momentum = exp(−γh)``.
    """
    return Optimizer(model, lr=lr, word="X", temperature=0.0, **options)


@cites("welling2011", parameters=True)
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


@cites("li2016", parameters=True)
def rms_sgld(
    model: torch.nn.Module,
    lr: float = 1e-3,
    temperature: float = 1e-5,
    decay: float = 0.99,
    eps: float = 1e-5,
    until: int | None = None,
    **options: Any,
) -> Optimizer:
    """SGLD with a step size for each weight: θ ← θ − hGg + √(2τhG) R, G = 1/(√v + ε), by the metric `RMS`.

    v is the running mean of g². While it runs, the noise has the wrong size by a term Γ that is left out, as in the
    publication; `RMS` says by how much. With `until` it is kept from that step on, and then exp(−L/τ) is sampled as
    by `sgld`. At temperature 0 it is ``torch.optim.RMSprop``.
    """
    return Optimizer(model, lr=lr, word="X", temperature=temperature, metric=RMS(decay, eps, until), **options)


@cites("leimkuhler2013", parameters=True)
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


@cites("leimkuhler2025", parameters=True)
def samadams(
    model: torch.nn.Module,
    lr: float = 0.1,
    friction: float = 1.0,
    temperature: float = 1e-5,
    forget: float = 1.0,
    least: float = 0.1,
    most: float = 10.0,
    power: float = 0.5,
    scale: float | None = None,
    **options: Any,
) -> Optimizer:
    """Langevin dynamics by BAOAB with steps ψ(ζ)h that are short where the gradient is large: ZBAOABZ.

    ζ is a running mean of the squared gradient, and ψ lies between `least` and `most`: `tether.Pace` has the
    equations. Averages weigh each state by ``opt.pace()``, as `tether.sample` does.
    """
    pace = Pace(forget, least, most, power, scale)
    rest: dict[str, Any] = {"friction": friction, "temperature": temperature, "rhythm": pace}
    return Optimizer(model, lr=lr, **{"word": "BAOAB", **rest, **options})


@cites("duane1987", parameters=True)
def hmc(
    model: torch.nn.Module,
    lr: float = 0.1,
    steps: int = 10,
    temperature: float = 1.0,
    on: Surface | None = None,
    **options: Any,
) -> Optimizer:
    """Hamiltonian Monte Carlo (1.63–1.65): it samples exp(−U/τ) exactly, with U what the closure returns.

    One ``step(closure)`` is one proposal: momenta are redrawn from N(0, τ), `steps` Verlet steps of length `lr` follow,
    and the result is accepted with probability min(1, e^{−ΔH/τ}). It takes ``steps + 1`` gradients. The closure returns
    the whole loss, with `Replicas` one energy for each. A minibatch cannot be tested for: the test would compare two
    noisy energies, and the density would be another. `opt.acceptance` is the share of accepted proposals.

    `on` is a surface for the weights; biases are free. Then the steps are those of RATTLE, and a step that, with
    momenta reversed, does not lead back to where it came from is rejected (Zappa, Holmes-Cerfon, Goodman 2018).
    """
    return _tested(model, on, "OBAB", lr=lr, temperature=temperature, friction=inf, rhythm=Metropolis(steps), **options)


@cites("roberts1996", parameters=True)
def mala(
    model: torch.nn.Module,
    lr: float = 0.01,
    temperature: float = 1.0,
    on: Surface | None = None,
    **options: Any,
) -> Optimizer:
    """Metropolis-adjusted Langevin (1.60): a step of SGLD, θ − h g + √(2τh) R, which the energies accept or reject.

    It is `hmc` with one step of length √(2h): from redrawn momenta p = √τ R, Verlet leads to the point above, and ΔH is
    the logarithm of the ratio of densities in (1.60), times τ. On a surface that is a projected step with the densities
    of the tangent spaces, and the projection back is tested as well. A proposal takes two gradients. See `hmc` on the
    closure, minibatches and `on`.
    """
    return _tested(model, on, "X", lr=lr, temperature=temperature, rhythm=Metropolis(), **options)


def _tested(model: torch.nn.Module, on: Surface | None, word: str, **options: Any) -> Optimizer:
    """An optimizer whose steps are proposals, with the weights on a surface if there is one."""
    if on is None:
        return Optimizer(model, word=word, **options)
    if not isinstance(on, Surface):
        raise TypeError(f"on={on!r} must be a surface, e.g. on=tether.Orthogonal(), or None")
    if not isinstance(model, torch.nn.Module):
        raise TypeError("on= is for the weights of a module: pass the model itself, or use Optimizer(..., parts)")
    return Optimizer(model, constrained(model, lambda: on, None, ()), word=word, **options)


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

    A sequence has one value per layer, from input to output. A number is used for all layers.
    """
    names = layers(model)
    frictions = per_layer("friction", friction, names)
    temperatures = per_layer("temperature", temperature, names)
    parts = [
        Part(glob_of(layer), friction=γ, temperature=τ)
        for layer, γ, τ in zip(names, frictions, temperatures, strict=True)
    ]
    return Optimizer(model, narrow_first(parts), lr=lr, word=word, **options)


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
        Part(output or output_layer(model), friction=inf, temperature=output_temperature),
        Part("*", friction=friction, temperature=temperature),
    ]
    return Optimizer(model, parts, lr=lr, word="BAOAB", **options)


@cites(PARTITIONED)
def dhsgd(model: torch.nn.Module, lr: float = 0.1, output: str | None = None, **options: Any) -> Optimizer:
    """Dissipated Hamiltonian SGD (3.27–3.30): Verlet inside, θ ← θ − (h²/2) g on the output layer."""
    parts = [
        # B(h) A(h/2) O A(h/2) with O setting p to 0: the h²/2 of (3.29), from the first step on
        Part(output or output_layer(model), word="BAOA", friction=inf, temperature=0.0),
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
    parts = [Part(output or output_layer(model), word=words[scheme], temperature=0.0), Part("*", word="BAB")]
    return Optimizer(model, parts, lr=lr, **options)


@cites("jones2011")
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

    One thermostat ``per`` "layer", "tensor" or "model". It compensates gradient noise of unknown strength.

    `coupling` is the published ε, which multiplies a sum over all N weights of the thermostat. A step with 2h²εNτ > 1
    is refused: use a smaller `coupling` for wide layers, or ``normalised=True``, which divides it by N. The published
    form is the default for every width. With ``normalised=True`` the right `coupling` is much larger, of the order of
    1/τ. The defaults are for training. To sample, take ``coupling=1/τ, normalised=True, noise=(2*τ)**0.5``: with the
    published ones the thermostat takes very long to reach a small τ.
    """
    parts = thermostats(model, per, word=word, temperature=temperature, coupling=coupling, noise=noise)
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

    Weights and biases have separate thermostats, as in the authors' program; with ``per="layer"`` they share one. For
    wide layers see `adaptive_langevin` on `coupling` and ``normalised=True``.
    """
    τ2 = temperature if output_temperature is None else output_temperature
    last = Part(output or output_layer(model), word="BAOAB", friction=friction, temperature=τ2)
    inner = thermostats(model, per, last, word="BACDEDCAB", temperature=temperature, coupling=coupling, noise=noise)
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
    parts = constrained(model, Circle, radius, free)
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
    parts = constrained(model, Circle, radius, free)
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
    parts = constrained(model, Sphere, radius, free)
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
    parts = constrained(model, Sphere, radius, free)
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
    parts = constrained(model, Orthogonal, None, free, start=start)
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
    parts = constrained(model, Orthogonal, None, free, start=start)
    return Optimizer(model, parts, lr=lr, word=word, friction=friction, temperature=temperature, **options)


@cites(MULTIRATE)
def multirate_sgd(
    model: torch.nn.Module,
    fast: str | Sequence[str],
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

    Between its steps no gradient of the slow part is computed: its parameters have ``requires_grad=False`` until
    ``opt.release()``, or the optimizer's end. `fast` is a glob, or several. `drift` spreads the slow step over them
    (5.1) instead of taking it at once (5.2). `batchnorm` and `slow_eval`: see `tether.rhythms.multirate.set_clocks`.
    Tied weights move once; `fast` must match all of their names or none.
    """
    k, fast = whole_steps("", "k", k), fast if isinstance(fast, str) else "|".join(fast)
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


@cites(MULTIRATE, parameters=True)
def composite_sgd(
    model: torch.nn.Module, lr: float = 0.1, k: int = 25, momentum: float = 0.9, **options: Any
) -> Optimizer:
    """Two copies of the network on two time scales, merged every k steps (5.9.3): `lr` is the slow step, h/k the fast.

    The slow copy costs no extra gradient: both copies start a cycle at the same point with the same gradient.
    """
    k = whole_steps("", "k", k)
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

    `probabilities` maps globs on parameter names to shares. The default is 0.8 for the first weight matrix and 0.5 for
    the others, as in Figure 5.7.
    """
    named = list(model.named_parameters())
    dims = 1 + isinstance(model, Replicas)
    if probabilities is None:
        weights = [name for name, param in named if param.dim() > dims]
        probabilities = {glob.escape(name): 0.5 if i else 0.8 for i, name in enumerate(weights)}
    alike: dict[float, list[str]] = {}
    for where, share in probabilities.items():
        alike.setdefault(share, []).append(where)
    parts = [Part("|".join(wheres), asleep=share, nap=k) for share, wheres in alike.items()]
    if not all(any(matches(name, part.where) for part in parts) for name, _ in named):
        parts.append(Part("*"))
    return Optimizer(model, parts, lr=lr, **_descent(momentum), **options)


@cites(PATHS, parameters=True)  # its metric checks the model
def path_sgd(
    model: torch.nn.Module,
    lr: float = 0.1,
    p: float = 2,
    momentum: float = 0.0,
    temperature: float = 0.0,
    **options: Any,
) -> Optimizer:
    """Path-SGD: w_e ← w_e − h/γ_p(w, e) ∂L/∂w_e, steepest descent in the geometry of a ReLU network's paths.

    Two networks that differ by a rescaling and compute the same function still do so after a step. With momentum the
    word is MS; with a temperature it is X.
    """
    if momentum and temperature:
        raise ValueError("momentum with temperature: use Optimizer(model, word='BAOAB', metric=tether.Path(), ...)")
    return Optimizer(model, lr=lr, metric=Path(p), temperature=temperature, **_descent(momentum), **options)


@cites("jordan2024")
def muon(
    model: torch.nn.Module,
    lr: float = 1e-3,
    momentum: float = 0.95,
    nesterov: bool = True,
    weight_decay: float = 0.1,
    adjust_lr: str = "original",
    other_lr: float | None = None,
    **options: Any,
) -> Optimizer:
    """Muon: θ ← (1 − hλ)θ − h s UVᵀ with UΣVᵀ the momentum of a matrix, by the metric `Spectral`.

    Its matrices move as those of ``torch.optim.Muon``, to the rounding of bfloat16, in which torch computes UVᵀ; here
    that is done in float32, for all matrices of one shape at once. Matrices are the parameters with two axes or more,
    the weights of convolutions as out × (in · kernel); not those of `torch.nn.Embedding`. All others are a second row:
    the same momentum without the metric.

    Args:
        model: a module, or `Replicas`.
        lr: h.
        momentum: μ of the words MS and MV, p ← μp + g.
        nesterov: UΣVᵀ is g + μp instead of p.
        weight_decay: λ of the matrices; it is no part of the gradient. Others are not decayed.
        adjust_lr: s, the scale of `Spectral`: ``"original"`` or ``"match_rms_adamw"``.
        other_lr: the step size of the second row; None takes lr.
        **options: of `Optimizer`.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    axes = 2 + isinstance(model, Replicas)
    named = list(model.named_parameters())
    whole = [glob.escape(name) for name, x in named if x.dim() >= axes and id(x) not in tables]
    parts = [Part("|".join(whole), metric=Spectral(scale=adjust_lr, decay=weight_decay))] if whole else []
    rest = [Part("*", lr=lr if other_lr is None else other_lr)] if len(whole) < len(named) else []
    fields = _descent(momentum)
    if nesterov and momentum:
        fields["word"] = "MV"
    return Optimizer(model, [*parts, *rest], lr=lr, **fields, **options)


def _descent(momentum: float) -> dict[str, Any]:
    """SGD's word, with torch's momentum if there is one."""
    friction = _friction(momentum)
    return {"word": "MS", "friction": friction} if momentum else {"word": "X"}


def _friction(momentum: float) -> float:
    """γ of the letter M for torch's momentum μ = e^{−γ}."""
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum={momentum!r} must be at least 0 and below 1, e.g. momentum=0.9")
    return -math.log(momentum) if momentum else inf
