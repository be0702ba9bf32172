"""Test error against the number of hidden units, after the experiment on implicit regularization in the slides (002).

    TETHER_DATA=... python examples/hidden_units.py            a picture in out/hidden_units.png
    TETHER_DATA=... python examples/hidden_units.py --quick

One hidden layer of H = 2³ … 2¹² ReLU units on MNIST, SGD with momentum 0.9 and a step size that falls linearly to 0,
without dropout, weight decay or early stopping, to a training error of (nearly) zero. The step size, 0.1 at the start,
is the same for every H. Every replica has its own start and 5,000 images that no other sees, the same ones at every H.
The slides: the test error goes on falling long after the training error is zero.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import results
import tether

Pair = tuple[torch.Tensor, torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--powers", type=int, nargs=2, default=(3, 12), help="H from 2^a to 2^b")
    parser.add_argument("--runs", type=int, default=8, help="replicas up to H = 256; half of them to 1024, then 2")
    parser.add_argument("--images", type=int, default=5_000)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--quick", action="store_true", help="H up to 32, 2 replicas, 500 images, 3 epochs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("out/hidden_units.png"))
    parser.add_argument("--json", type=Path, default=Path("out/hidden_units.json"))
    options = parser.parse_args()
    if options.quick:
        options.powers, options.runs, options.images, options.epochs = (3, 5), 2, 500, 3
    torch.set_num_threads(options.threads)
    data, test = images(options.runs, options.images)
    began, rows = time.perf_counter(), []
    columns = ("training error %", "test error %", "best on the way", "path norm", "change of test")
    print(f"{'H':>5} {'replicas':>8} " + " ".join(f"{name:>16}" for name in columns))
    for power in range(options.powers[0], options.powers[1] + 1):
        H = 2**power
        runs = options.runs if H <= 256 else max(2, options.runs // 2) if H <= 1024 else 2
        rows.append({"H": H} | train(H, [x[:runs] for x in data], test, options.epochs, options.lr))
        texts = [f"{spread(rows[-1][name]):>16}" for name in ("training", "test", "best", "path norm")]
        if len(rows) > 1:  # against the H before, on the same images
            changes = [a - b for a, b in zip(rows[-1]["test"], rows[-2]["test"], strict=False)]
            texts.append(f"{spread(changes):>16}")
        print(f"{H:>5} {runs:>8} " + " ".join(texts), flush=True)
        results.write(options.json, options, rows)
    setting = f"{options.images:,} images, {options.epochs} epochs, h = {options.lr:g}"
    print(f"Mean ± standard error; {setting}. Took {time.perf_counter() - began:.0f} s.")
    draw(rows, setting, options.out)
    print(f"Picture: {options.out}")


def images(runs: int, count: int) -> tuple[list[torch.Tensor], Pair]:
    """A training set for each replica, without overlap, and the test set."""
    (x, y), (x_test, y_test) = (tether.data.mnist(train=train) for train in (True, False))
    if runs * count > len(x):
        raise SystemExit(
            f"--runs {runs} --images {count}: MNIST has {len(x):,} images in all, use --runs {len(x) // count}"
        )
    own = [pixels[: runs * count].unflatten(0, (runs, count)) for pixels in (x.flatten(1).float() / 255, y)]
    return own, (x_test.flatten(1).float() / 255, y_test)


def train(H: int, data: list[torch.Tensor], test: Pair, epochs: int, lr: float) -> dict[str, Any]:
    """Errors in per cent at the end, the lowest test error on the way, and the path norm, for each replica."""
    runs, count = data[1].shape
    nets = tether.Replicas(lambda: nn.Sequential(nn.Linear(784, H), nn.ReLU(), nn.Linear(H, 10)), runs)
    opt = tether.Optimizer(nets, lr=lr, word="MS", friction=-math.log(0.9))
    anneal = tether.Schedule(opt, "lr", lambda epoch: 1 - epoch / epochs)
    per_epoch = math.ceil(count / 100)

    def each_epoch(step: int, *_: Any) -> Mapping[str, Any]:
        anneal.step()
        epoch = step // per_epoch
        return {"test": errors(nets, *test)} if epoch == epochs or epoch % max(1, epochs // 5) == 0 else {}

    steps = per_epoch * epochs
    record = tether.train(
        nets, opt, tuple(data), cross_entropy, steps, 100, log_every=per_epoch, callbacks=[each_epoch], each=True
    )
    if record.stopped:
        raise SystemExit(f"H = {H}: replicas {list(record.stopped)} diverged; use a smaller --lr")
    tests = record.metrics["test"]
    return {
        "training": errors(nets, *data).tolist(),
        "test": tests[-1].tolist(),
        "best": tests.min(0).values.tolist(),
        "path norm": [tether.measure.path_norm(nets[i]) for i in range(runs)],
    }


@torch.no_grad()
def errors(nets: tether.Replicas, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Per cent of wrong answers of each replica, on images that all share or on its own."""
    each = y.dim() == 2
    return 100 * (nets(x, each=each).argmax(-1) != y).double().mean(1)


def spread(values: list[float]) -> str:
    x = torch.tensor(values, dtype=torch.float64)
    return f"{float(x.mean()):.2f} ± {float(x.std()) / math.sqrt(len(x)):.2f}"


def draw(rows: list[dict[str, Any]], setting: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 4.2), layout="constrained")
    curves = {"training": "training", "test": "test, at the end", "best": "test, best on the way"}
    for (name, label), style in zip(curves.items(), ("o-", "s-", "^:"), strict=True):
        values = [torch.tensor(row[name], dtype=torch.float64) for row in rows]
        errs = [float(x.std()) / math.sqrt(len(x)) for x in values]
        axis.errorbar([row["H"] for row in rows], [float(x.mean()) for x in values], errs, fmt=style, label=label)
    axis.set_xscale("log", base=2)
    axis.set(xlabel="hidden units H", ylabel="error %", title=f"MNIST, one hidden layer, {setting}", ylim=(0, None))
    axis.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
