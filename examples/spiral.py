"""Six ways to train a small network on the two-turn spiral, after Figure 3.8 of the thesis (T. Vlaar, 2022).

    python examples/spiral.py              five runs of each method, a table and out/spiral.png
    python examples/spiral.py --quick      a first look, in seconds

The network has one hidden layer of 20 ReLU nodes and a sigmoid output. It sees 500 points, 25 at a time, for
10,000 steps. Every method gets the same data, the same start and the same batches for the same seed.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import signal
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy

import tether

METHODS = {
    "SGD": lambda net, seed: tether.methods.sgd(net, lr=0.1, seed=seed),
    "SGLD": lambda net, seed: tether.methods.sgld(net, lr=0.1, noise=0.1, seed=seed),
    "Adam": lambda net, seed: torch.optim.Adam(net.parameters(), lr=0.005),
    "AdLaLa γ=10": lambda net, seed: tether.methods.adlala(net, lr=0.25, friction=10, seed=seed, **ADLALA),
    "AdLaLa γ=0.5": lambda net, seed: tether.methods.adlala(net, lr=0.25, friction=0.5, seed=seed, **ADLALA),
    "LOL": lambda net, seed: tether.methods.lol(net, lr=0.25, friction=0.01, temperature=1e-3, seed=seed),
}
ADLALA = {"temperature": 1e-4, "noise": 0.01, "coupling": 0.1, "per": "tensor"}
THESIS = {"SGD": 79.0, "SGLD": 78.0, "Adam": 83.7, "AdLaLa γ=10": 85.5, "AdLaLa γ=0.5": 93.4}  # over 100 runs


def train(net, optimizer, batches):
    for x, y in batches:
        optimizer.zero_grad()
        binary_cross_entropy(net(x), y).backward()
        optimizer.step()


def network(generator):
    net = nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 1), nn.Sigmoid(), nn.Flatten(0))
    # torch's own start, as in the authors' program: from weights 0.01 N(0, 1) SGD ends 12 points below SGLD (100 runs)
    for layer in (net[0], net[2]):
        for parameter in layer.parameters():
            nn.init.uniform_(parameter, -(layer.in_features**-0.5), layer.in_features**-0.5, generator=generator)
    return net


def data(generator):
    """500 points to train on and 1000 to test with, both from the seed of `generator`."""
    for_training, for_testing = torch.randint(2**31, (2,), generator=generator).tolist()
    (x, y), (x_test, y_test) = tether.data.spiral(500, seed=for_training), tether.data.spiral(1000, seed=for_testing)
    return x, y.float(), x_test, y_test.float()


def batches_of(x, y, steps, generator, size=25):
    """Shuffled epochs, cut into batches beforehand."""
    epochs = math.ceil(steps * size / len(x))
    order = torch.cat([torch.randperm(len(x), generator=generator) for _ in range(epochs)])
    rows = order[: steps * size].view(steps, size)
    return zip(x[rows], y[rows], strict=True)


def run(method, seed, steps):
    """Train once; returns the test accuracy in per cent, the CPU seconds and the parameters found."""
    generator = torch.Generator().manual_seed(seed)
    x, y, x_test, y_test = data(generator)
    net = network(generator)
    optimizer = METHODS[method](net, seed)
    batches = batches_of(x, y, steps, generator)
    began = time.process_time()
    train(net, optimizer, counted(batches))
    seconds = time.process_time() - began
    with torch.no_grad():
        right = (net(x_test) > 0.5) == (y_test > 0.5)
    return 100 * right.float().mean().item(), seconds, [p.detach().numpy() for p in net.parameters()]


def at_least_one(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be 1 or more")
    return int(text)


def main():
    parser = argparse.ArgumentParser(description="Train on the two-turn spiral by six methods.")
    parser.add_argument("--seeds", type=at_least_one, metavar="N", help="runs of each method (5)")
    parser.add_argument("--steps", type=at_least_one, metavar="N", help="steps of each run (10000)")
    parser.add_argument("--out", type=Path, default=Path("out/spiral.png"), metavar="FILE", help="the picture")
    parser.add_argument("--quick", action="store_true", help="2 runs of 1000 steps, unless told otherwise")
    options = parser.parse_args()
    seeds, steps = options.seeds or (2 if options.quick else 5), options.steps or (1000 if options.quick else 10_000)
    began = time.perf_counter()
    # a seed at a time and the slowest methods first: the time left is honest and the two processes end together
    tasks = [(method, seed, steps) for seed in range(seeds) for method in reversed(METHODS)]
    results = run_all(tasks, steps)
    runs = {method: [r for (m, *_), r in zip(tasks, results, strict=True) if m == method] for method in METHODS}
    show_table(runs)
    draw(runs, options.out)
    print(
        f"Mean ± standard error; {seeds} × {steps:,} steps. The thesis (Figure 3.8): 100 × 10,000 steps.\n"
        f"Decision boundaries: {options.out}. Took {time.perf_counter() - began:.0f} s."
    )


# ---- two processes and a progress bar -------------------------------------------------------------------------

PROCESSES = 2
TICK = 250


def begin_process(counter):
    torch.set_num_threads(1)
    globals()["steps_done"] = counter


def counted(batches):
    """Pass the batches on and tell the progress bar about them."""
    counter = globals().get("steps_done")
    for step, batch in enumerate(batches, 1):
        yield batch
        if counter is not None and step % TICK == 0:
            with counter.get_lock():
                counter.value += TICK


def run_all(tasks, steps):
    """The results of `run`, in the order of the tasks."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    context = multiprocessing.get_context("spawn")
    counter = context.Value("q", 0)
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C is this process's alone
    pool = context.Pool(min(PROCESSES, len(tasks)), begin_process, (counter,))
    signal.signal(signal.SIGINT, handler)
    console, terminal = Console(stderr=True), sys.stderr.isatty()
    columns = (TextColumn("training"), BarColumn(None), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("left"))
    with pool, Progress(*columns, console=console, disable=not terminal, transient=True) as progress:
        bar = progress.add_task("", total=len(tasks) * (steps // TICK * TICK))
        if not terminal:
            print(f"{len(tasks)} runs of {steps:,} steps ...", file=sys.stderr, flush=True)
        pending = pool.starmap_async(run, tasks, chunksize=1)
        while not pending.ready():
            progress.update(bar, completed=counter.value)
            pending.wait(0.2)
        return pending.get()


# ---- the table and the picture --------------------------------------------------------------------------------


def show_table(runs):
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    header = ["method", "test accuracy %", "worst", "best", "CPU s", "thesis %"]
    rows = []
    for method, results in runs.items():
        accuracies, seconds, _ = zip(*results, strict=True)
        n = len(accuracies)
        error = f"{statistics.stdev(accuracies) / math.sqrt(n):.1f}" if n > 1 else "–"
        rows.append([
            method,
            f"{statistics.fmean(accuracies):.1f} ± {error}",
            f"{min(accuracies):.1f}",
            f"{max(accuracies):.1f}",
            f"{statistics.fmean(seconds):.1f}",
            f"{THESIS[method]:.1f}" if method in THESIS else "–",
        ])  # fmt: skip
    if not sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        for row in [header, *rows]:
            print(row[0].ljust(widths[0]), *(x.rjust(w) for x, w in zip(row[1:], widths[1:], strict=True)), sep="   ")
        return
    table = Table(box=SIMPLE_HEAD)
    for name in header:
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def draw(runs, path):
    """One panel per method: the class probability its median run has learnt, under that run's test points."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.lines import Line2D

    colours = ("#1f5fa8", "#c2452d")
    shades = LinearSegmentedColormap.from_list("classes", ["#8db5de", "#f8f7f4", "#eeab99"])
    extent = 2.2
    axis = torch.linspace(-extent, extent, 400)
    grid = torch.cartesian_prod(axis, axis).flip(1)
    plt.rcParams.update({"font.family": "DejaVu Sans", "font.size": 9})
    figure, panels = plt.subplots(2, 3, figsize=(8.4, 6.0), layout="constrained")
    for panel, (method, results) in zip(panels.flat, runs.items(), strict=True):
        by_accuracy = sorted(range(len(results)), key=lambda seed, r=results: r[seed][0])
        seed = by_accuracy[(len(results) - 1) // 2]
        accuracy, _, parameters = results[seed]
        _, _, x, y = data(torch.Generator().manual_seed(seed))
        net = network(torch.Generator())
        with torch.no_grad():
            for parameter, found in zip(net.parameters(), parameters, strict=True):
                parameter.copy_(torch.from_numpy(found))
            field, wrong = net(grid).view(400, 400), (net(x) > 0.5) != (y > 0.5)
        area = (-extent, extent, -extent, extent)
        image = panel.imshow(field, extent=area, origin="lower", cmap=shades, vmin=0, vmax=1, interpolation="bilinear")
        panel.contour(axis, axis, field, levels=[0.5], colors="#222222", linewidths=0.9)
        for label, colour in enumerate(colours):
            points, missed = x[(y == label) & ~wrong], x[(y == label) & wrong]
            panel.scatter(*points.T, s=3, color=colour, linewidths=0)
            panel.scatter(*missed.T, s=8, color=colour, edgecolors="#111111", linewidths=0.5, zorder=3)
        name, _, setting = method.partition(" ")
        panel.set_title(rf"$\bf{{{name}}}$ {setting}   {accuracy:.1f} %".replace("    ", "   "), fontsize=10)
        panel.set(xticks=[], yticks=[], xlim=(-extent, extent), ylim=(-extent, extent), aspect="equal")
        panel.spines[:].set(color="#aaaaaa", linewidth=0.6)
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06)
    bar = figure.colorbar(image, ax=panels, shrink=0.6, aspect=28, pad=0.02, ticks=[0, 0.5, 1])
    bar.set_label("probability of class 1")
    bar.outline.set_visible(False)
    dot = {"linestyle": "none", "marker": "o", "markeredgewidth": 0}
    figure.legend(
        handles=[
            Line2D([], [], color=colours[0], markersize=3.5, label="class 0", **dot),
            Line2D([], [], color=colours[1], markersize=3.5, label="class 1", **dot),
            Line2D(
                [],
                [],
                color="#bbbbbb",
                markersize=4.5,
                label="misclassified",
                **(dot | {"markeredgecolor": "#111111", "markeredgewidth": 0.5}),
            ),
            Line2D([], [], color="#222222", linewidth=0.9, label="decision boundary"),
        ],
        loc="outside lower center",
        ncols=4,
        frameon=False,
        title=f"Test points and classifier of the median of {len(results)} runs",
        title_fontsize=9,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
