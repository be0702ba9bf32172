"""What a hard constraint costs, beside plain SGD with momentum and the peers, interleaved in one run.

    make bench-constraints           # benchmarks/results/constraints.json; two minutes
    python benchmarks/constraints.py --only W1 --out out/bench

W1: 6 hidden layers of 100², batch 25. W2: 4 of 1024², batch 128. W3: convolutions 16-32-64, batch 64. "replicas": ten
networks at once with 5 hidden layers of 100², batch 25. The violation is the largest |QᵀQ − I| of constrained weights
after the run. `torch.optim.Muon` has no constraint; it is here because its users look for the same thing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

import tether
from nets import mlp
from orthogonal_peers import geoopt_stiefel, geotorch_expm, muon, pogo, torch_parametrized
from timing import Candidates, Run, Table, arguments, interleave

SGD, ALONE = "SGD, momentum", "the optimizer alone"
LR = 0.1
CASES = ("W1", "W2", "W3", "replicas", "bounded", "level")
TEN, POINTS = 10, 500
Work = tuple[Callable[[], nn.Sequential], torch.Tensor, torch.Tensor, list[str]]
Make = Callable[[nn.Sequential, list[str], float], torch.optim.Optimizer]


def conv() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 64, 10),
    )  # fmt: skip


def workloads() -> dict[str, Work]:
    """Model, batch, and the names of the modules that are constrained: all but the first and last linear layers."""
    torch.manual_seed(0)
    deep = [str(2 * i) for i in range(1, 7)]
    w1, w2 = lambda: mlp(2, *[100] * 7, 2), lambda: mlp(784, *[1024] * 5, 10)
    return {
        "W1": (w1, torch.randn(25, 2), torch.randint(0, 2, (25,)), deep),
        "W2": (w2, torch.randn(128, 784), torch.randint(0, 10, (128,)), deep[:4]),
        "W3": (conv, torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,)), ["0", "2", "4"]),
    }


def ours(word: str) -> Make:
    """A word on orthogonal weights; words with momenta move by h² for a gradient."""

    def make(model: nn.Sequential, names: list[str], lr: float) -> torch.optim.Optimizer:
        where = "|".join(f"{name}.weight" for name in names)
        parts = [tether.Part(where, on=tether.Orthogonal()), tether.Part("*")]
        h = lr if word == "X" else lr**0.5
        return tether.Optimizer(model, parts, lr=h, word=word, friction=0.105 / h)

    return make


def sgd(model: nn.Sequential, names: list[str], lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, foreach=True)


def adamw(model: nn.Sequential, names: list[str], lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.named_parameters(), lr=lr / 100, foreach=True)


def constrained_adamw(model: nn.Sequential, names: list[str], lr: float) -> torch.optim.Optimizer:
    surfaces = {f"{name}.weight": tether.Orthogonal() for name in names}
    return tether.constrain(adamw(model, names, lr), surfaces)


OURS: dict[str, Make] = {
    SGD: sgd, "o-CoLA-od (X)": ours("X"), "o-CoLA-ud (OBA)": ours("OBA"), "BAOAB": ours("BAOAB"),
    "AdamW": adamw, "constrain(AdamW)": constrained_adamw,
}  # fmt: skip
PEERS: dict[str, Make] = {
    "POGO": pogo, "geoopt, Euclidean Stiefel": geoopt_stiefel("EuclideanStiefel"),
    "geoopt, canonical Stiefel": geoopt_stiefel("CanonicalStiefel"), "torch.optim.Muon, no constraint": muon,
    "torch orthogonal, cayley": torch_parametrized("cayley"), "geotorch, expm": geotorch_expm,
    "torch orthogonal, matrix_exp": torch_parametrized("matrix_exp"),
    "torch orthogonal, householder": torch_parametrized("householder"),
}  # fmt: skip
SKIPPED = {  # peers that are not in a case
    "W2": ["torch orthogonal, householder", "geotorch, expm"],  # 300 times a step of SGD; as torch's matrix_exp
    "W3": [name for name in PEERS if name.startswith(("torch", "geotorch"))],  # not for flattened convolutions
}
if not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
    SKIPPED["W2"].append("torch.optim.Muon, no constraint")  # its products in bfloat16 would take minutes


def violation(model: nn.Sequential, names: list[str]) -> float:
    weights = [model.get_submodule(name).weight.detach().flatten(1) for name in names]
    tall = [w if w.shape[0] >= w.shape[1] else w.T for w in weights]
    return max(float((q.T @ q - torch.eye(q.shape[1])).abs().max()) for q in tall)


def orthogonal(whole: Table, alone: Table, case: str, work: Work, rounds: int, peers: bool) -> None:
    """Whole steps of every candidate, and the update alone of those that are no parametrization."""
    build, x, y, names = work
    models: dict[str, nn.Sequential] = {}
    steps: Candidates = {}
    updates: Candidates = {}
    for label, make in (OURS | (PEERS if peers else {})).items():
        if label in SKIPPED.get(case, []):
            continue
        torch.manual_seed(1)
        model = build()
        for name in names:
            nn.init.orthogonal_(model.get_submodule(name).weight)
        try:
            opt = make(model, names, LR)
        except ImportError as missing:
            print(f"{label}: {missing}; left out")
            continue

        def step(model: nn.Module = model, opt: torch.optim.Optimizer = opt) -> None:
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()

        models[label], steps[label] = model, step
        if "orthogonal," not in label and "geotorch" not in label:
            updates[label] = opt.step
    times = interleave(steps, rounds, case, warm=1 if case == "W2" else 3)
    for model in models.values():
        model(x)  # parametrized weights are made by a forward pass
    gaps = {label: violation(model, names) for label, model in models.items() if not label.startswith((SGD, "AdamW"))}
    whole.add(case, times, violation={k: v for k, v in gaps.items() if "Muon" not in k})
    alone.add(case, interleave(updates, max(3, rounds // 2), f"{case} update", warm=1))


def replicas(table: Table, rounds: int) -> None:
    """Whole steps of ten networks, each with minibatches of its own."""
    torch.manual_seed(0)
    x, y, names = torch.randn(POINTS, 2), torch.randint(0, 2, (POINTS,)), [str(2 * i) for i in range(1, 6)]
    calls: Candidates = {}
    for label in (SGD, "o-CoLA-od (X)", "o-CoLA-ud (OBA)", "BAOAB"):
        ens = tether.Replicas(lambda: mlp(2, *[100] * 6, 2), TEN)
        opt = OURS[label](ens, names, LR)  # type: ignore[arg-type]

        def step(ens: tether.Replicas = ens, opt: torch.optim.Optimizer = opt) -> None:
            rows = torch.randint(0, POINTS, (TEN, 25))
            opt.zero_grad()
            out = ens(x[rows], each=True).flatten(0, 1)
            (TEN * nn.functional.cross_entropy(out, y[rows].flatten())).backward()
            opt.step()

        calls[label] = step
    table.add("10 × [2-100⁶-2]", interleave(calls, 3 * rounds, "replicas"))


def large() -> nn.Sequential:
    """795,000 parameters, with gradients."""
    model = mlp(784, 1000, 10)
    for param in model.parameters():
        param.grad = 1e-3 * torch.randn_like(param)
    return model


def bounded(table: Table, rounds: int) -> None:
    """Circle and sphere on the 795,000 parameters of 784-1000-10."""
    opts: dict[str, tether.Optimizer] = {}
    calls: Candidates = {SGD: torch.optim.SGD(large().parameters(), lr=1e-3, momentum=0.9, foreach=True).step}
    for surface in ("circle", "sphere"):
        for kind in ("od", "ud"):
            for temperature in (0.0, 1e-6):
                label = f"{surface}, {kind}, τ {'>' if temperature else '='} 0"
                method = getattr(tether.methods, f"{surface}_cola_{kind}")
                opts[label] = method(large(), lr=1e-2, radius=1.0, temperature=temperature)
                calls[label] = opts[label].step
    times = interleave(calls, rounds, "bounded")
    table.add("784-1000-10", times, violation={label: float(opt.violation()) for label, opt in opts.items()})


def around(table: Table, rounds: int) -> None:
    """`tether.constrain` around optimizers of torch, on the same parameters."""
    bases: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "AdamW": torch.optim.AdamW,
        SGD: partial(torch.optim.SGD, momentum=0.9),
        "SGD": torch.optim.SGD,
    }
    for base, make in bases.items():
        calls: Candidates = {ALONE: make(large().named_parameters(), lr=1e-3, foreach=True).step}
        opts: dict[str, torch.optim.Optimizer] = {}
        for label, on in (("circle", tether.Circle()), ("sphere", tether.Sphere())):
            opts[label] = tether.constrain(make(large().named_parameters(), lr=1e-3, foreach=True), {"*.weight": on})
            calls[label] = opts[label].step
        times = interleave(calls, rounds, base)
        table.add(base, times, violation={label: tether.violation(opt) for label, opt in opts.items()})


def level(table: Table, rounds: int) -> None:
    """Level beside Sphere, which knows its surface: rows of norm 1."""
    for shape in ((1, 3), (64, 50), (1024, 50)):
        for word in ("X", "BAOAB"):
            torch.manual_seed(0)
            calls = {}
            for on in (tether.Sphere(slack=False), tether.Level(lambda w: w.square().sum(-1) - 1)):
                w = nn.Parameter(nn.functional.normalize(torch.randn(shape), dim=-1))
                w.grad = torch.randn(shape)
                opt = tether.Optimizer([("w", w)], lr=0.05, word=word, temperature=1e-3, on=on)
                calls[type(on).__name__] = opt.step
            case = f"{shape[0]} × {shape[1]}, {word}"
            table.add(case, interleave(calls, rounds, case))


def main() -> None:
    options = arguments(__doc__, rounds=40, quick=10, threads=(1, 2), cases=CASES)
    run = Run("constraints", "What a constraint costs", options, ("geoopt", "geotorch", "pogo-torch"))
    works = {case: work for case, work in workloads().items() if case in options.only}
    for _ in run.threads():
        if works:
            whole = run.table("orthogonal weights, whole training step", SGD)
            alone = run.table("orthogonal weights, update alone", SGD)
        for case, work in works.items():
            few = {
                "W1": options.rounds,
                "W2": 3 if options.quick else 5,
                "W3": options.rounds // (4 if options.quick else 2),
            }
            rounds = few[case]
            orthogonal(whole, alone, case, work, rounds, options.peers)
        if "replicas" in options.only:
            replicas(run.table("ten networks with orthogonal weights, whole training step", SGD), options.rounds)
        if "bounded" in options.only:
            bounded(run.table("bounded weights, update alone", SGD, "µs"), options.rounds)
            around(run.table("bounded weights by tether.constrain, update alone", ALONE, "µs"), options.rounds)
        if "level" in options.only:
            level(run.table("rows of norm 1, update alone", "Sphere", "µs"), options.rounds)
    run.write()


if __name__ == "__main__":
    main()
