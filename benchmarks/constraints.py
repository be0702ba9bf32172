"""What a hard constraint costs, beside plain SGD with momentum and the peers, interleaved in one run.

    make bench-constraints
    python benchmarks/constraints.py --rounds 60 --threads 1 --only W1

Whole training steps (forward, backward, update) and the update alone; figures are medians over rounds, ratios are
medians of the rounds' ratios to torch's SGD with momentum (foreach). The violation is the largest |QᵀQ − I| of any
constrained weight in the run.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn
from torch.nn.utils import parametrizations

import tether
from step import interleave, ratio


def deep(width: int, layers: int, inputs: int, outputs: int) -> nn.Sequential:
    sizes = [inputs, *[width] * (layers + 1), outputs]
    stack: list[nn.Module] = []
    for a, b in pairwise(sizes):
        stack += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*stack[:-1])


def conv() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 64, 10),
    )  # fmt: skip


Workload = tuple[Callable[[], nn.Sequential], torch.Tensor, torch.Tensor, list[str]]


def workloads() -> dict[str, Workload]:
    """Model, batch, and the names of the modules that are constrained: all but the first and last linear layers."""
    torch.manual_seed(0)
    return {
        "W1": (
            lambda: deep(100, 6, 2, 2),
            torch.randn(25, 2),
            torch.randint(0, 2, (25,)),
            [str(2 * i) for i in range(1, 7)],
        ),
        "W2": (
            lambda: deep(1024, 4, 784, 10),
            torch.randn(128, 784),
            torch.randint(0, 10, (128,)),
            ["2", "4", "6", "8"],
        ),
        "W3": (conv, torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,)), ["0", "2", "4"]),
    }


def matrices(model: nn.Sequential, names: list[str]) -> list[torch.Tensor]:
    weights = [model.get_submodule(name).weight.detach().flatten(1) for name in names]
    return [w if w.shape[0] >= w.shape[1] else w.T for w in weights]


def violation(model: nn.Sequential, names: list[str]) -> float:
    return max(float((q.T @ q - torch.eye(q.shape[1])).abs().max()) for q in matrices(model, names))


def candidates(work: Workload, lr: float, peers: bool = True) -> dict[str, tuple[nn.Sequential, torch.optim.Optimizer]]:
    build, _, _, names = work
    base = build()
    for name in names:
        nn.init.orthogonal_(base.get_submodule(name).weight)
    where = "|".join(f"{name}.weight" for name in names)
    found: dict[str, tuple[nn.Sequential, torch.optim.Optimizer]] = {}

    def add(label: str, make: Callable[[nn.Sequential], torch.optim.Optimizer]) -> None:
        model = copy.deepcopy(base)
        found[label] = (model, make(model))

    def sgd(params: object, momentum: float = 0.9) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=lr, momentum=momentum, foreach=True)  # type: ignore[arg-type]

    def ours(**fields: object) -> Callable[[nn.Sequential], torch.optim.Optimizer]:
        parts = [tether.Part(where, on=tether.Orthogonal()), tether.Part("*")]
        return lambda m: tether.Optimizer(m, parts, **fields)  # type: ignore[arg-type]

    add("SGD momentum", lambda m: sgd(m.parameters()))
    add("tether od", ours(lr=lr, word="X"))
    h = lr**0.5  # OBA moves by h² per gradient
    add("tether ud", ours(lr=h, word="OBA", friction=0.105 / h))

    if not peers:
        return found

    def parametrized(kind: str) -> Callable[[nn.Sequential], torch.optim.Optimizer]:
        def make(model: nn.Sequential) -> torch.optim.Optimizer:
            for name in names:
                module = model.get_submodule(name)
                if module.weight.dim() > 2:
                    flat_conv(module)
                parametrizations.orthogonal(module, orthogonal_map=kind)
            return sgd(model.parameters())

        return make

    linear = all(base.get_submodule(name).weight.dim() == 2 for name in names)
    if linear:  # torch and geotorch constrain conv weights kernel by kernel, which is another thing
        for kind in ("matrix_exp", "cayley", "householder"):
            add(f"torch {kind}", parametrized(kind))
        try:
            import geotorch

            def geo(model: nn.Sequential) -> torch.optim.Optimizer:
                for name in names:
                    geotorch.orthogonal(model.get_submodule(name), "weight", triv="expm")
                return sgd(model.parameters())

            add("geotorch expm", geo)
        except ImportError:
            print("geotorch is not installed: left out")
    try:
        import geoopt

        def riemannian(canonical: bool) -> Callable[[nn.Sequential], torch.optim.Optimizer]:
            def make(model: nn.Sequential) -> torch.optim.Optimizer:
                manifold = geoopt.CanonicalStiefel() if canonical else geoopt.EuclideanStiefel()
                for name in names:
                    module = model.get_submodule(name)
                    if module.weight.dim() > 2:
                        flat_conv(module)
                    w = module.weight.detach()
                    module.wide = w.shape[0] < w.shape[1]
                    q = geoopt.ManifoldParameter(w.T.contiguous() if module.wide else w.clone(), manifold=manifold)
                    del module.weight
                    module.q = q
                    module.register_forward_pre_hook(lambda m, _: setattr(m, "weight", m.q.T if m.wide else m.q))
                    module.weight = q.T if module.wide else q
                return geoopt.optim.RiemannianSGD(model.parameters(), lr=lr, momentum=0.9)

            return make

        add("geoopt canonical", riemannian(True))
        add("geoopt euclidean", riemannian(False))
    except ImportError:
        print("geoopt is not installed: left out")
    return found


def flat_conv(module: nn.Module) -> None:
    """Let a conv layer hold its weight as a matrix, which is what the peers can constrain."""
    shape = tuple(module.weight.shape)
    module.weight = nn.Parameter(module.weight.detach().flatten(1))
    settings = (module.stride, module.padding)
    module.forward = lambda x: nn.functional.conv2d(x, module.weight.reshape(shape), module.bias, *settings)


def compare(name: str, work: Workload, rounds: int, lr: float, peers: bool) -> None:
    _, x, y, names = work
    found = candidates(work, lr, peers)
    whole, alone = {}, {}
    for label, (model, opt) in found.items():

        def step(model: nn.Module = model, opt: torch.optim.Optimizer = opt) -> None:
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()

        whole[label], alone[label] = step, opt.step
    times = interleave(whole, rounds, f"{name} lr={lr}")
    for step in whole.values():
        step()
    updates = interleave(alone, max(5, rounds // 4), f"{name} update")
    for label, series in times.items():
        model = found[label][0]
        model(x)
        gap = violation(model, names)
        cells = [ratio(series, times["SGD momentum"]), ratio(updates[label], updates["SGD momentum"])]
        row = f"{name:<3} {lr:<5} {label:<18} {1e3 * statistics.median(series):>9.2f} {cells[0]:>9.2f} {cells[1]:>9.2f}"
        print(f"{row} {gap:>10.1e}" if label != "SGD momentum" else row, flush=True)


def bounded(rounds: int) -> None:
    """Circle and sphere, update alone, 784-1000-10."""
    print(f"\n{'update alone, 784-1000-10':<30} {'µs':>9} {'× SGD':>7} {'violation':>10}")
    models = {}

    def net() -> nn.Sequential:
        model = nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 10))
        for param in model.parameters():
            param.grad = 1e-3 * torch.randn_like(param)
        return model

    calls = {"SGD momentum": torch.optim.SGD(net().parameters(), lr=1e-3, momentum=0.9, foreach=True).step}
    for surface in ("circle", "sphere"):
        for kind in ("od", "ud"):
            for temperature in (0.0, 1e-6):
                label = f"{surface} {kind}{' τ>0' if temperature else ''}"
                method = getattr(tether.methods, f"{surface}_cola_{kind}")
                models[label] = opt = method(net(), lr=1e-2, radius=1.0, temperature=temperature)
                calls[label] = opt.step
    times = interleave(calls, rounds, "bounded")
    for label, series in times.items():
        gap = f"{models[label].violation():>10.1e}" if label in models else ""
        print(f"{label:<30} {1e6 * statistics.median(series):>9.0f} {ratio(series, times['SGD momentum']):>7.2f} {gap}")


def level(rounds: int) -> None:
    """Level beside Sphere, which knows its surface: rows of norm 1, update alone."""
    print(f"\n{'update alone, rows of norm 1':<30} {'Sphere µs':>9} {'Level µs':>9} {'× Sphere':>9}")
    for shape in ((1, 3), (64, 50), (256, 50), (1024, 50)):
        for word in ("X", "BAOAB"):
            torch.manual_seed(0)
            calls = {}
            for on in (tether.Sphere(slack=False), tether.Level(lambda w: w.square().sum(-1) - 1)):
                w = nn.Parameter(nn.functional.normalize(torch.randn(shape), dim=-1))
                w.grad = torch.randn(shape)
                opt = tether.Optimizer([("w", w)], lr=0.05, word=word, temperature=1e-3, on=on)
                calls[type(on).__name__] = opt.step
            times = interleave(calls, rounds, f"rows {shape} {word}")
            medians = [f"{1e6 * statistics.median(series):>9.0f}" for series in times.values()]
            label = f"{shape[0]} × {shape[1]}, {word}"
            print(f"{label:<30} {' '.join(medians)} {ratio(times['Level'], times['Sphere']):>9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--only", nargs="*", default=["W1", "W2", "W3", "bounded", "level"])
    parser.add_argument("--no-peers", action="store_true", help="tether and SGD alone")
    parser.add_argument("--lr", type=float, nargs="*", default=[0.01, 0.1])
    arguments = parser.parse_args()
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        print(f"\n=== torch {torch.__version__}, {threads} thread(s), {arguments.rounds} rounds ===")
        print(f"{'':<3} {'lr':<5} {'':<18} {'step ms':>9} {'× SGD':>9} {'update ×':>9} {'violation':>10}")
        for name, work in workloads().items():
            if name in arguments.only:
                for lr in arguments.lr:
                    compare(
                        name, work, max(5, arguments.rounds // (10 if name == "W2" else 1)), lr, not arguments.no_peers
                    )
        if "bounded" in arguments.only:
            bounded(arguments.rounds)
        if "level" in arguments.only:
            level(arguments.rounds)


if __name__ == "__main__":
    main()
