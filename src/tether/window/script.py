"""The program that makes what the window shows, to the same numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from tether.optimizer import Optimizer
from tether.part import NUMERIC
from tether.rhythms import Always
from tether.surfaces import Free
from tether.window.dynamics import ADAM, STEP, optimizer_of, used_by
from tether.window.runner import Change, Runner
from tether.window.setting import ACTIVATIONS, Setting

__all__ = ["script"]


def script(setting: Setting, runners: Sequence[Runner]) -> str:
    """A program with one function for the problem and a block for each dynamics."""
    lines = ["import torch", "from torch import nn", "from torch.nn import functional", "", "import tether", ""]
    lines += [f"torch.set_num_threads({torch.get_num_threads()})  # sums of floats depend on it", ""]
    lines += _problem(setting, runners[0].problem.classes)
    for i, runner in enumerate(runners):
        lines += ["", *_dynamics(i, setting, runner)]
    return "\n".join(lines) + "\n"


def _problem(setting: Setting, classes: int) -> list[str]:
    given = setting.problem
    kind = given["kind"]
    if kind == "well":
        return [
            "",
            "class Well(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            f"        self.q = nn.Parameter(torch.tensor([{given['start']}, 0.0]))",
            "",
            "",
            "def loss(model):",
            f"    return {given['barrier']} * (model.q[..., 0] ** 2 - 1) ** 2 + model.q[..., 1] ** 2 / 2",
            "",
            "",
            "network, points = Well, None",
        ]
    inputs, outputs = (1, 1) if kind == "line" else (2, 1 if classes == 2 else classes)
    widths = [inputs, *setting.hidden]
    activation = f"nn.{ACTIVATIONS[setting.activation]}()"
    layers = [f"nn.Linear({a}, {b}), {activation}, " for a, b in pairwise(widths)]
    lines = ["", "def network():"]
    lines += [f"    return nn.Sequential({''.join(layers)}nn.Linear({widths[-1]}, {outputs}))", "", ""]
    if kind == "csv":
        lines += ['rows = torch.tensor([[float(cell) for cell in line.split(",")] for line in open("points.csv")])']
        lines += [
            "x, y = rows[:, :2], rows[:, 2].unique(return_inverse=True)[1]  # points.csv: your file without names"
        ]
    else:
        options = "".join(f", {name}={value!r}" for name, value in given.items() if name not in ("kind", "points"))
        lines += [f"x, y = tether.data.{kind}({given['points']}{options}, seed={setting.seed})"]
    if kind == "line":
        return [*lines, "points, loss = (x, y), functional.mse_loss"]
    if classes == 2:
        return [*lines, "points, loss = (x, y.float().unsqueeze(-1)), functional.binary_cross_entropy_with_logits"]
    return [*lines, "points, loss = (x, y), functional.cross_entropy"]


def _dynamics(i: int, setting: Setting, runner: Runner) -> list[str]:
    label = runner.row.get("label") or runner.row.get("method") or "a table of parts"
    lines = [f"# {i + 1}: {label}".replace("\n", " ")]
    lines += [f"nets = tether.Replicas(network, {setting.replicas}, seed={setting.seed})"]
    lines += _optimizer(runner.first, setting.seed, runner)
    done = 0
    for change in runner.changes:
        if change.step > done:
            lines += [_train(setting, runner, done, change.step)]
            done = change.step
        lines += _changed(change, runner)
    if runner.step > done:
        lines += [_train(setting, runner, done, runner.step)]
    shown = ", ".join(f"{float(value):.9g}" for value in _sums(runner))
    return [*lines, f"print([float(p.detach().double().sum()) for p in nets.parameters()])  # [{shown}]"]


def _sums(runner: Runner) -> list[float]:
    with runner.run.shown():
        return [float(x.detach().double().sum()) for x in runner.nets.parameters()]


def _train(setting: Setting, runner: Runner, first: int, steps: int) -> str:
    batch = "" if runner.batch is None else f", batch={runner.batch}"
    begin = f", first={first}" if first else ""
    return f"tether.train(nets, opt, points, loss, steps={steps}{batch}{begin}, seed={setting.seed})"


def _changed(change: Change, runner: Runner) -> list[str]:
    if change.row is not None:
        return _optimizer(change.row, change.seed, runner)
    return [f"opt.param_groups[{part}][{name!r}] = {_number(value)}" for part, name, value in change.numbers]


def _optimizer(row: Mapping[str, Any], seed: int, runner: Runner) -> list[str]:
    """The optimizer of a row, as a call of its method or with its parts."""
    if row.get("method") == ADAM:
        lr = row.get("fields", {}).get("lr", 0.005)
        return [f"opt = torch.optim.Adam(nets.parameters(), lr={lr!r})"]
    opt = optimizer_of(row, runner.problem.replicas(runner.setting), seed)
    assert isinstance(opt, Optimizer)
    if "parts" not in row:
        fields = "".join(
            f", {name}={_field(name, value)}" for name, value in row.get("fields", {}).items() if value != ""
        )
        fast = (
            f", fast={opt.param_groups[0]['where']!r}"
            if row["method"] == "multirate_sgd" and "fast=" not in fields
            else ""
        )
        return [f"opt = tether.methods.{row['method']}(nets{fast}{fields}, seed={seed})"]
    lines = ["opt = tether.Optimizer(", "    nets,", "    ["]
    for own in opt.rows:
        group = own.group
        text = f"tether.Part({group['where']!r}, word={group['word']!r}"
        used = used_by(group["word"])
        text += "".join(f", {name}={_number(group[name])}" for name in NUMERIC if name in used and _worth(name, group))
        text += "" if isinstance(own.surface, Free) else f", on=tether.{own.surface!r}"
        text += "" if own.metric is None else f", metric=tether.{own.metric!r}"
        text += "" if isinstance(own.rhythm, Always) else f", rhythm=tether.{own.rhythm!r}"
        lines += [f"        {text}),"]
    opt.release()
    return [*lines, "    ],", f"    lr={STEP},", f"    seed={seed},", ")"]


def _worth(name: str, group: Mapping[str, Any]) -> bool:
    return name != "weight_decay" or bool(group[name])


def _field(name: str, value: Any) -> str:
    if name == "free":
        return repr([glob.strip() for glob in str(value).split(",") if glob.strip()])
    return _number(value) if isinstance(value, int | float) and not isinstance(value, bool) else _quoted(value)


def _quoted(value: Any) -> str:
    return 'float("inf")' if value in ("inf", "∞") else repr(value)


def _number(value: Any) -> str:
    number = float(value)
    if number == math.inf:
        return 'float("inf")'
    return repr(value) if isinstance(value, int) else repr(number)
