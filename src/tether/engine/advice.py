"""Advice: what to write instead, for what torch knows and tether does not, and for what would have no effect."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import torch

from tether.engine.table import COLUMNS, NEUTRAL
from tether.words import parse

__all__ = ["TRANSLATIONS", "check_params", "warn", "warn_frozen", "warn_unused"]

_ADAM = (
    "tether keeps no second moments; to hold Adam on a surface, use "
    "tether.constrain(torch.optim.Adam(model.named_parameters()), {'*.weight': tether.Orthogonal()})"
)
_NOTHING = "leave it out"
# every keyword of torch.optim.SGD and torch.optim.Adam that is not one of ours
TRANSLATIONS = {
    "momentum": "momentum is a word: momentum=0.9 is word='MS', friction=-math.log(0.9)",
    "dampening": "the word 'MS' is torch's momentum with dampening=0: leave it out",
    "nesterov": "Nesterov's momentum is a word: momentum=0.9 with it is word='MV', friction=-math.log(0.9)",
    "maximize": "every word descends; to ascend, turn the loss around: (-loss).backward()",
    "betas": _ADAM,
    "eps": _ADAM,
    "amsgrad": _ADAM,
    "decoupled_weight_decay": "weight_decay=0.01 is added to the gradient; there is no decoupled form",
    "fused": f"{_NOTHING}; steps are fused wherever they can be",
    "capturable": f"{_NOTHING}; steps are not captured in CUDA graphs",
    "differentiable": f"{_NOTHING}; steps cannot be differentiated",
}

SYMBOLS = {field: symbol for _, field, symbol in COLUMNS} | {"normalised": "ε"}
EXAMPLES = {"γ": "BAOAB", "τ": "BAOAB", "m": "BAOAB"}  # of words that use a symbol; the others belong to the thermostat


def check_params(params: Any) -> None:
    """Raise for what cannot be parameters, and say what is wanted."""
    wanted = "pass a module, model.named_parameters(), model.parameters() or a list of param groups"
    if isinstance(params, torch.nn.Module):
        return
    if isinstance(params, type):
        name = params.__name__
        raise TypeError(f"params is the class {name}: pass a module, e.g. Optimizer({name}(...), lr=0.1)")
    if isinstance(params, Mapping):
        raise TypeError("params is a dict of tensors: pass the module itself, or a list of param groups")
    if callable(params):
        name = getattr(params, "__name__", type(params).__name__)
        raise TypeError(f"params is a function, {name}: call it, e.g. Optimizer(model.named_parameters(), lr=0.1)")
    if isinstance(params, str) or not isinstance(params, Iterable):
        raise TypeError(f"params={params!r} holds no parameters: {wanted}")


def warn_frozen(groups: Sequence[Mapping[str, Any]]) -> None:
    """Warn where no parameter can get a gradient."""
    params = [param for group in groups for param in group["params"]]
    if not any(param.requires_grad for param in params):
        warn(
            f"none of the {len(params)} parameters asks for a gradient, so that nothing will move: "
            "call model.requires_grad_(True) first"
        )


def warn_unused(shared: Mapping[str, Any], rows: Sequence[Any], groups: Sequence[Mapping[str, Any]]) -> None:
    """Warn of fields that were given but enter no letter: `shared` by all parts, or those of one of the `rows`.

    A zero does not warn: no friction, no noise is what such a word has.
    """
    needs = [parse(group["word"]).uses for group in groups]
    words = ", ".join(dict.fromkeys(repr(group["word"]) for group in groups))
    found = [_unused(field, value, words) for field, value in shared.items() if _idle(field, value, *needs)]
    for field, value in shared.items():
        if rows and all(is_dataclass(row) and getattr(row, field, None) is not None for row in rows):
            found.append(
                f"{field}={value!r} has no effect: every part sets its own {field}; leave it out, or change the parts"
            )
    for row, group, own in zip(rows, groups, needs, strict=True):
        given = {field: getattr(row, field) for field in SYMBOLS} if is_dataclass(row) else row
        found += [_unused(f, value, repr(group["word"])) for f, value in given.items() if _idle(f, value, own)]
    for message in dict.fromkeys(found):
        warn(message)


def _idle(field: str, value: Any, *needs: frozenset[str]) -> bool:
    if field not in SYMBOLS or value is None or any(SYMBOLS[field] in own for own in needs):
        return False
    return bool(
        (value != NEUTRAL.get(field, 0.0)).any()
        if isinstance(value, torch.Tensor)
        else value != NEUTRAL.get(field, 0.0)
    )


def _unused(field: str, value: Any, words: str) -> str:
    symbol = SYMBOLS[field]
    return (
        f"{field}={value!r} has no effect: the word {words} has no letter that uses {symbol}; write e.g. "
        f"word={EXAMPLES.get(symbol, 'BACDEDCAB')!r}, or leave {field} out"
    )


def warn(message: str) -> None:
    """Warn at the line that built the optimizer, through whatever of tether is in between."""
    level = 1
    while str(sys._getframe(level).f_globals.get("__name__")).startswith(("tether.", "torch.")):
        level += 1
    warnings.warn(message, stacklevel=level + 1)
