"""What the page must know of the library: letters with their equations, methods, surfaces, problems and scenes."""

from __future__ import annotations

import inspect
from dataclasses import asdict
from typing import Any

from tether.letters import LETTERS
from tether.window.dynamics import CHOICES, NUMBERS, named_methods, used_by
from tether.window.scenes import SCENES
from tether.window.setting import ACTIVATIONS, MOST_REPLICAS, MOST_ROWS, PROBLEMS
from tether.words import WordError, parse

__all__ = ["about_word", "catalogue"]

SYMBOLS = {
    "lr": "h, the step size. A word with momenta moves by h² per gradient.",
    "friction": "γ, how fast momenta are forgotten; ∞ redraws them at every step.",
    "temperature": "τ, how strong the noise is; the dynamics samples exp(−L/τ).",
    "coupling": "ε, how fast the thermostat reacts.",
    "noise": "σ, the applied noise of the letters D and F.",
    "weight_decay": "ω, added to the gradient as ω θ.",
    "mass": "m, how slowly momenta move the weights; averages are the same.",
    "word": "the letters of a step, applied from left to right: type another splitting.",
    "where": "a glob on the names of parameters, e.g. *.weight; the first part that fits takes them.",
    "momentum": "exp(−γh), the share of the momenta that a step leaves.",
    "radius": "r of the surface: circles keep each weight within ±r, spheres the norm of each row at r.",
    "free": "globs of parameters that are not constrained, separated by commas.",
    "output": "a glob for the output layer; empty finds the last one.",
    "output_temperature": "τ of the output layer; empty takes the other temperature.",
    "per": "a thermostat for each tensor, layer or the whole model.",
    "k": "steps of the fast clock for one of the slow one.",
    "fast": "a glob of the parameters on the fast clock; empty takes the output layer.",
    "drift": "do slow weights move a little at every step, or all at once?",
    "slow_weight_decay": "ω of the slow parameters; empty takes that of the fast ones.",
    "batchnorm": "the mode of batch norm while slow parameters move.",
    "slow_eval": "is the slow gradient taken in evaluation mode?",
    "scheme": "how a step of the descent is taken.",
    "start": "how constrained weights begin: at random on the surface, or projected from where they are.",
    "p": "the norm of a path: products of |w|ᵖ along it.",
    "share": "the share of the weights that sleep.",
    "nap": "steps that a weight sleeps.",
    "forget": "α, how fast the mean of the squared gradient is forgotten.",
    "least": "m, the smallest factor of the step.",
    "most": "M, the largest factor of the step.",
    "power": "r, how strongly a large gradient shortens the step.",
    "scale": "Ω, by which the squared gradient is divided; empty takes the number of weights.",
}


def catalogue() -> dict[str, Any]:
    """Everything that the controls are made from, as plain values."""
    choices = {
        name: {kind: {"settings": settings, "about": _first_line(make)} for kind, (make, settings) in kinds.items()}
        for name, kinds in CHOICES.items()
    }
    return {
        "type": "facts",
        "letters": {name: letter.equation for name, letter in sorted(LETTERS.items())},
        "methods": named_methods(),
        "choices": choices,
        "numbers": {name: asdict(field) for name, field in NUMBERS.items()},
        "symbols": SYMBOLS,
        "problems": {kind: {name: asdict(f) for name, f in fields.items()} for kind, fields in PROBLEMS.items()},
        "activations": list(ACTIVATIONS),
        "scenes": SCENES,
        "most": {"replicas": MOST_REPLICAS, "dynamics": MOST_ROWS},
    }


def about_word(word: str) -> dict[str, Any]:
    """What a word is and which numbers it uses, or what is wrong with it and where."""
    try:
        return {"about": str(parse(word)), "uses": sorted(used_by(word))}
    except WordError as error:
        return {"error": str(error).partition("\n")[0], "caret": error.at}


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]
