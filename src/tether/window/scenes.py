"""Curated scenes: settings worth looking at, each with two sentences on what to watch."""

from __future__ import annotations

from typing import Any

__all__ = ["SCENES"]


def _langevin(temperature: float) -> dict[str, Any]:
    fields = {"lr": 0.2, "friction": 1.0, "temperature": temperature}
    return {"method": "langevin", "fields": fields, "label": f"Langevin, τ = {temperature:g}"}


SCENES: list[dict[str, Any]] = [
    {
        "name": "Temperature finds the spiral",
        "watch": "Three runs differ in temperature alone: every gradient is of all points, so nothing else is random. "
        "Watch the hottest find the arms first and keep shaking, the middle one overtake it, and the one without noise "
        "follow late.",
        "setting": {
            "problem": {"kind": "spiral", "points": 500, "turns": 2.0, "noise": 0.02},
            "hidden": [20],
            "activation": "tanh",
            "batch": None,
            "replicas": 10,
            "seed": 0,
            "dynamics": [_langevin(0.0), _langevin(1e-3), _langevin(1e-2)],
        },
    },
    {
        "name": "Orthogonal weights keep six layers alive",
        "watch": "Both networks have six hidden layers, and the four-turn spiral needs them all. Watch plain SGD stay "
        "at one half for long while the constrained network, whose hidden matrices stay orthogonal, begins to learn.",
        "setting": {
            "problem": {"kind": "spiral", "points": 1000, "turns": 4.0, "noise": 0.02},
            "hidden": [50, 50, 50, 50, 50, 50],
            "activation": "relu",
            "batch": 50,
            "replicas": 1,
            "seed": 0,
            "dynamics": [
                {"method": "sgd", "fields": {"lr": 0.1}, "label": "SGD"},
                {
                    "method": "orthogonal_cola_od",
                    "fields": {"lr": 0.1, "free": "0.weight, 12.weight"},
                    "label": "o-CoLA-od",
                },
            ],
        },
    },
    {
        "name": "AdLaLa against Adam",
        "watch": "The same twenty nodes, data and starts. Watch the spread between replicas: Adam's runs end far "
        "apart, AdLaLa's agree, and its thermostats ξ settle where the kinetic temperature meets its target.",
        "setting": {
            "problem": {"kind": "spiral", "points": 500, "turns": 2.0, "noise": 0.02},
            "hidden": [20],
            "activation": "relu",
            "batch": 25,
            "replicas": 10,
            "seed": 0,
            "dynamics": [
                {"method": "adam", "fields": {"lr": 0.005}, "label": "Adam"},
                {"method": "adlala", "fields": {"lr": 0.25, "friction": 0.5}, "label": "AdLaLa"},
            ],
        },
    },
    {
        "name": "Slow biases",
        "watch": "In the second run all biases move on a clock five times slower. Watch the boundary turn before it "
        "shifts, and compare the two test losses.",
        "setting": {
            "problem": {"kind": "spiral", "points": 500, "turns": 4.0, "noise": 0.02},
            "hidden": [100],
            "activation": "relu",
            "batch": 25,
            "replicas": 5,
            "seed": 0,
            "dynamics": [
                {"method": "sgd", "fields": {"lr": 0.2}, "label": "SGD"},
                {
                    "method": "multirate_sgd",
                    "fields": {"lr": 1.0, "k": 5, "momentum": 0.0, "fast": "*.weight"},
                    "label": "slow biases",
                },
            ],
        },
    },
    {
        "name": "A circle against weight decay",
        "watch": "Few points with much noise invite a wild boundary. Watch the histograms: weight decay pulls every "
        "weight to zero, the circle lets them move freely inside ±r and stops them there.",
        "setting": {
            "problem": {"kind": "spiral", "points": 100, "turns": 2.0, "noise": 0.05},
            "hidden": [100],
            "activation": "relu",
            "batch": 20,
            "replicas": 5,
            "seed": 0,
            "dynamics": [
                {"parts": [{"where": "*", "word": "X", "lr": 0.1, "weight_decay": 1e-3}], "label": "weight decay"},
                {
                    "parts": [
                        {
                            "where": "*.weight",
                            "word": "X",
                            "lr": 0.1,
                            "on": {"kind": "Circle", "radius": 2.0},
                            "temperature": 1e-5,
                        },
                        {"where": "*", "word": "X", "lr": 0.1},
                    ],
                    "label": "circle",
                },
            ],
        },
    },
    {
        "name": "BAOAB against Euler at a large step",
        "watch": "Fifty particles in a double well at one temperature. Watch where they have been (bars) against the "
        "density that the temperature asks for (line): Euler's step is too long for it, BAOAB's is not.",
        "setting": {
            "problem": {"kind": "well", "barrier": 1.0, "start": -1.0},
            "hidden": [],
            "activation": "relu",
            "batch": None,
            "replicas": 50,
            "seed": 0,
            "dynamics": [
                {"parts": [{"where": "*", "word": "X", "lr": 0.09, "temperature": 0.5}], "label": "Euler, h = 0.09"},
                {
                    "parts": [{"where": "*", "word": "BAOAB", "lr": 0.3, "friction": 1.0, "temperature": 0.5}],
                    "label": "BAOAB, h = 0.3",
                },
            ],
        },
    },
]
