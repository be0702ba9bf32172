"""Train copies of one model by several methods on the same batches, by turns, so that their times compare.

As is usual when transformers are fine-tuned, and for all methods alike, gradients are clipped to a norm of 1 and step
sizes fall linearly to 0.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import results

Method = Callable[[nn.Module], torch.optim.Optimizer]
Rows = list[dict[str, Any]]
TURN = 10  # steps at a time


def train(
    model: nn.Module,
    methods: Mapping[str, Method],
    batches: Sequence[Any],
    loss: Callable[[nn.Module, Any], torch.Tensor],
    accuracy: Callable[[nn.Module], float],
    seed: int,
) -> Rows:
    """One row per method: its accuracy at the end, and the processor seconds of its steps alone."""
    models = {name: copy.deepcopy(model).train() for name in methods}
    optimizers = {name: method(models[name]) for name, method in methods.items()}
    falls = [LambdaLR(opt, lambda n: 1 - n / len(batches)) for opt in optimizers.values()]
    seconds = dict.fromkeys(methods, 0.0)
    draws = dict.fromkeys(methods, torch.Generator().manual_seed(seed).get_state())
    for start in range(0, len(batches), TURN):
        for (name, opt), fall in zip(optimizers.items(), falls, strict=True):
            params = list(models[name].parameters())
            torch.set_rng_state(draws[name])  # dropout does not depend on who else runs
            began = time.process_time()
            for batch in batches[start : start + TURN]:
                opt.zero_grad()
                loss(models[name], batch).backward()
                nn.utils.clip_grad_norm_([param for param in params if param.grad is not None], 1.0)
                opt.step()
                fall.step()
            seconds[name] += time.process_time() - began
            draws[name] = torch.get_rng_state()
    rows = []
    for name, net in models.items():
        score = round(100 * accuracy(net.eval()), 2)
        rows.append({"method": name, "seed": seed, "accuracy": score, "seconds": round(seconds[name], 1)})
        print(f"seed {seed}: {name:<44} {score:6.2f} %  {seconds[name]:6.1f} s", flush=True)
    return rows


def frozen_but(model: nn.Module, trained: Iterable[str]) -> list[nn.Parameter]:
    """Let only the named beginnings ask for gradients, and return them."""
    for name, param in model.named_parameters():
        param.requires_grad_(name.startswith(tuple(trained)))
    return [param for param in model.parameters() if param.requires_grad]


def series(
    run: Callable[[int], Rows], seeds: Iterable[int], options: argparse.Namespace, facts: dict[str, Any]
) -> Rows:
    """The rows of all seeds, written to `options.out` after each; a seed that is there is not run again."""
    rows: Rows = []
    if options.out.exists():
        record = json.loads(options.out.read_text())
        now = {name: value for name, value in vars(options).items() if name not in ("out", "seeds")} | facts
        before = record["settings"] | record["measured"]
        other = {name: before.get(name) for name, value in now.items() if before.get(name) != value}
        if other:
            raise SystemExit(f"{options.out} was written with {other}: name another file by --out")
        rows = record["measured"]["rows"]
    for seed in seeds:
        if seed not in {row["seed"] for row in rows}:
            rows += run(seed)
            options.seeds = sorted({row["seed"] for row in rows})
            results.write(options.out, options, {**facts, "rows": rows})
    return rows


def table(rows: Rows) -> str:
    """Accuracy with its standard error over the seeds, seconds per run, and the speed relative to the first method."""
    lines = ["| method | accuracy % | seconds | speed |", "|---|---|---|---|"]
    full = {row["seed"]: row["seconds"] for row in rows if row["method"] == rows[0]["method"]}
    for name in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == name]
        scores = [row["accuracy"] for row in mine]
        error = f" ± {statistics.stdev(scores) / len(scores) ** 0.5:.2f}" if len(scores) > 1 else ""
        speed = statistics.median(full[row["seed"]] / row["seconds"] for row in mine)
        took = statistics.mean(row["seconds"] for row in mine)
        lines.append(f"| {name} | {statistics.mean(scores):.2f}{error} | {took:.0f} | {speed:.2f}× |")
    return "\n".join(lines)
