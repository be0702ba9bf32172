"""What a hundred runs cost: microseconds for one step of one replica, ours beside a loop, torch.func.vmap and jax.

    make bench-replicas              # benchmarks/results/replicas.json; a minute
    python benchmarks/replicas.py --only "100 × [2-20-1], batch 25" --out out/bench

Whole training steps: minibatches, forward, backward, SGD with momentum (for ours the word OBA, which is the same, and
Langevin dynamics with noise). jax (jit, vmap and scan over the steps) takes part where it is installed. The second
table has eight small residual networks (widths 16-32-64, 32 × 32 pixels, batch 16) and eight small encoders (2 layers
of 64, 32 tokens, batch 16), each with batches of its own; "products" is the share of a step that
torch's profiler finds in convolutions, products of matrices and attention. The third
table has the convolutions of these residual networks alone.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable

import torch
from torch.nn import functional

import tether
from nets import Encoder, ResNet, mlp
from timing import Run as Report
from timing import arguments, interleave

CASES = {  # replicas, widths, batch, steps of a round
    "100 × [2-20-1], batch 25": (100, (2, 20, 1), 25, 200),
    "100 × [2-500-1], batch 20": (100, (2, 500, 1), 20, 100),
    "100 × [2-500-1], batch 2": (100, (2, 500, 1), 2, 200),
    "16 × [784-100-10], batch 128": (16, (784, 100, 10), 128, 10),
    "50 × [2-20-20-1], batch 25": (50, (2, 20, 20, 1), 25, 200),
}
FEW = 2  # steps of a round for those that are slow
TRAIN = "tether.train"
DEEP = ("8 × ResNet 16-32-64, batch 16", "8 × encoder 2 × 64, batch 16")
EIGHT, BATCH = 8, 16
POINTS, H, MOMENTUM = 500, 0.1, 0.9
Run = Callable[[], object]


def data(widths: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor, Callable[..., torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(POINTS, widths[0], generator=generator)
    if widths[-1] == 1:
        return x, (x[:, :1] * x[:, 1:2] > 0).float(), functional.binary_cross_entropy_with_logits
    return x, torch.randint(0, widths[-1], (POINTS,), generator=generator), functional.cross_entropy


def loop(n: int, widths: tuple[int, ...], batch: int, steps: int) -> Run:
    """n modules and n optimizers, one after the other."""
    x, y, loss = data(widths)
    nets = [mlp(*widths) for _ in range(n)]
    opts = [torch.optim.SGD(net.parameters(), lr=H**2, momentum=MOMENTUM) for net in nets]

    def run() -> None:
        for _ in range(steps):
            for net, opt in zip(nets, opts, strict=True):
                rows = torch.randint(0, POINTS, (batch,))
                opt.zero_grad()
                loss(net(x[rows]), y[rows]).backward()
                opt.step()

    return run


def by_vmap(n: int, widths: tuple[int, ...], batch: int, steps: int) -> Run:
    """torch.func: vmap of grad, on stacked parameters."""
    x, y, loss = data(widths)
    nets = [mlp(*widths) for _ in range(n)]
    params, _ = torch.func.stack_module_state(nets)
    params = {name: value.detach() for name, value in params.items()}
    momenta = {name: torch.zeros_like(value) for name, value in params.items()}

    def energy(p: dict[str, torch.Tensor], xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
        return loss(torch.func.functional_call(nets[0], p, (xs,)), ys)

    gradient = torch.func.vmap(torch.func.grad(energy))

    def run() -> None:
        for _ in range(steps):
            rows = torch.randint(0, POINTS, (n, batch))
            grads = gradient(params, x[rows], y[rows])
            for name, g in grads.items():
                momenta[name].mul_(MOMENTUM).add_(g)
                params[name].add_(momenta[name], alpha=-(H**2))

    return run


def plain(n: int, widths: tuple[int, ...], batch: int, steps: int) -> Run:
    """Replicas in a loop of one's own: ens(x), backward, step."""
    x, y, loss = data(widths)
    ens = tether.Replicas(lambda: mlp(*widths), n)
    opt = tether.Optimizer(ens, lr=H, word="OBA", friction=1.0)

    def run() -> None:
        for _ in range(steps):
            rows = torch.randint(0, POINTS, (n, batch))
            opt.zero_grad()
            out, target = ens(x[rows], each=True), y[rows]
            flat = (out.flatten(0, 1), target.flatten(0, 1))
            (n * loss(*flat)).backward()
            opt.step()

    return run


def ours(n: int, widths: tuple[int, ...], batch: int, steps: int, **fields: object) -> Run:
    """tether.train."""
    x, y, loss = data(widths)
    ens = tether.Replicas(lambda: mlp(*widths), n)
    opt = tether.Optimizer(ens, lr=H, friction=1.0, **fields)  # type: ignore[arg-type]
    return lambda: tether.train(ens, opt, (x, y), loss, steps, batch, steps, progress=False)


def method(name: str, n: int, widths: tuple[int, ...], batch: int, steps: int, **options: float) -> Run:
    """tether.train by a published method."""
    x, y, loss = data(widths)
    ens = tether.Replicas(lambda: mlp(*widths), n)
    opt = getattr(tether.methods, name)(ens, **options)
    return lambda: tether.train(ens, opt, (x, y), loss, steps, batch, steps, progress=False)


def by_jax(n: int, widths: tuple[int, ...], batch: int, steps: int) -> Run | None:
    """jit, vmap, and a scan over all steps."""
    try:
        import jax
        from jax import numpy as jnp
    except ImportError:
        return None
    tx, ty, _ = data(widths)
    x, y = jnp.asarray(tx.numpy()), jnp.asarray(ty.numpy())
    key = jax.random.PRNGKey(0)
    params = []
    for a, b in itertools.pairwise(widths):
        key, k = jax.random.split(key)
        params.append((jax.random.uniform(k, (n, a, b), minval=-(a**-0.5), maxval=a**-0.5), jnp.zeros((n, b))))
    momenta = jax.tree.map(jnp.zeros_like, params)

    def energy(p, xs, ys):  # type: ignore[no-untyped-def]
        for w, c in p[:-1]:
            xs = jax.nn.relu(xs @ w + c)
        out = xs @ p[-1][0] + p[-1][1]
        if widths[-1] == 1:
            return jnp.mean(jnp.maximum(out, 0) - out * ys + jnp.log1p(jnp.exp(-jnp.abs(out))))
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(out), ys[:, None], axis=1))

    gradient = jax.vmap(jax.grad(energy))

    @jax.jit
    def many(state, key):  # type: ignore[no-untyped-def]
        def one(state, key):  # type: ignore[no-untyped-def]
            p, v = state
            rows = jax.random.randint(key, (n, batch), 0, POINTS)
            g = gradient(p, x[rows], y[rows])
            v = jax.tree.map(lambda a, b: MOMENTUM * a + b, v, g)
            return (jax.tree.map(lambda a, b: a - H**2 * b, p, v), v), None

        return jax.lax.scan(one, state, jax.random.split(key, steps))[0]

    state = [(params, momenta)]

    def run() -> None:
        state[0] = many(state[0], key)
        jax.block_until_ready(state[0])

    return run


def measured(case: str, rounds: int, peers: bool) -> dict[str, list[float]]:
    """Seconds for a step of one replica, round by round."""
    n, widths, batch, many = CASES[case]
    makers: dict[str, tuple[Run | None, int]] = {
        TRAIN: (ours(n, widths, batch, many, word="OBA"), many),
        "tether.train, BAOAB, τ > 0": (ours(n, widths, batch, many, word="BAOAB", temperature=1e-4), many),
        "tether.train, LOL": (method("lol", n, widths, batch, many), many),
        "tether.train, AdLaLa": (method("adlala", n, widths, batch, many, coupling=1e-3), many),
        "tether.train, Path-SGD": (method("path_sgd", n, widths, batch, many, lr=1e-3), many),
        "Replicas: ens(x), backward, step": (plain(n, widths, batch, many), many),
    }
    if peers:
        makers |= {
            "jax: jit, vmap, scan": (by_jax(n, widths, batch, many), many),
            "torch.func.vmap": (by_vmap(n, widths, batch, FEW), FEW),
            "loop over modules": (loop(n, widths, batch, FEW), FEW),
        }
    times = interleave({label: run for label, (run, _) in makers.items() if run is not None}, rounds, case, warm=1)
    return {label: [t / makers[label][1] / n for t in series] for label, series in times.items()}


def deep(case: str, peers: bool) -> dict[str, Run]:
    """A step of eight convolutional networks or encoders: all at once, one after the other, and by vmap."""
    torch.manual_seed(0)
    if case == DEEP[0]:
        build: Callable[[], torch.nn.Module] = lambda: ResNet((16, 1), (32, 1), (64, 1))  # noqa: E731
        x, y = torch.randn(EIGHT, BATCH, 3, 32, 32), torch.randint(0, 10, (EIGHT, BATCH))
    else:
        build = lambda: Encoder(1000, 64, 4, 2, dropout=0.0)  # noqa: E731
        x, y = torch.randint(0, 1000, (EIGHT, BATCH, 32)), torch.randint(0, 2, (EIGHT, BATCH))
    ens = tether.Replicas(build, EIGHT)
    opt = tether.Optimizer(ens, lr=H, word="OBA", friction=1.0)

    def at_once() -> None:
        opt.zero_grad()
        (EIGHT * functional.cross_entropy(ens(x, each=True).flatten(0, 1), y.flatten())).backward()
        opt.step()

    nets = [build() for _ in range(EIGHT)]
    opts = [torch.optim.SGD(net.parameters(), lr=H**2, momentum=MOMENTUM, foreach=True) for net in nets]

    def in_turn() -> None:
        for net, sgd, xs, ys in zip(nets, opts, x, y, strict=True):
            sgd.zero_grad()
            functional.cross_entropy(net(xs), ys).backward()
            sgd.step()

    calls: dict[str, Run] = {"Replicas: ens(x), backward, step": at_once, "loop over modules": in_turn}
    if peers:
        calls["torch.func.vmap"] = own_vmap([build() for _ in range(EIGHT)], x, y)
    return calls


def own_vmap(nets: list[torch.nn.Module], x: torch.Tensor, y: torch.Tensor) -> Run:
    """vmap of grad, on stacked parameters; BatchNorm without running statistics, as vmap wants it."""
    for net in nets:
        torch.func.replace_all_batch_norm_modules_(net)
    params, buffers = torch.func.stack_module_state(nets)
    params = {name: value.detach() for name, value in params.items()}
    momenta = {name: torch.zeros_like(value) for name, value in params.items()}

    def energy(p: dict, b: dict, xs: torch.Tensor, ys: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(torch.func.functional_call(nets[0], (p, b), (xs,)), ys)

    gradient = torch.func.vmap(torch.func.grad(energy))

    def run() -> None:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the others have no rule for vmap
            grads = gradient(params, buffers, x, y)
        for name, g in grads.items():
            momenta[name].mul_(MOMENTUM).add_(g)
            params[name].add_(momenta[name], alpha=-(H**2))

    return run


def convolved(width: int, size: int) -> tuple[dict[str, Run], float]:
    """Forward and backward passes of a 3 × 3 convolution in eight networks, and how many operations they are."""
    torch.manual_seed(0)
    calls: dict[str, Run] = {}
    for order, layout in (("", torch.contiguous_format), (", channels last", torch.channels_last)):
        inputs = torch.randn(BATCH, EIGHT * width, size, size).contiguous(memory_format=layout).requires_grad_()
        weights = torch.randn(EIGHT * width, width, 3, 3, requires_grad=True)
        own = [x.detach().contiguous(memory_format=layout).requires_grad_() for x in inputs.chunk(EIGHT, 1)]
        pairs = [(x, w.detach().requires_grad_()) for x, w in zip(own, weights.chunk(EIGHT), strict=True)]

        def run(pairs: list[tuple[torch.Tensor, torch.Tensor]], groups: int) -> None:
            for x, w in pairs:
                out = functional.conv2d(x, w, padding=1, groups=groups)
                torch.autograd.grad(out, (x, w), torch.ones_like(out))

        calls[f"one after the other{order}"] = lambda pairs=pairs, run=run: run(pairs, 1)  # type: ignore[misc]
        both = [(inputs, weights)]
        calls[f"one convolution of eight groups{order}"] = lambda both=both, run=run: run(both, EIGHT)  # type: ignore[misc]
    return calls, 3 * 2 * EIGHT * BATCH * 9 * (width * size) ** 2


def products(call: Run) -> float:
    """The share of a step that is convolutions, products of matrices and attention."""
    call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        call()
    spent = {event.key: event.self_cpu_time_total for event in found.key_averages()}
    heavy = sum(time for key, time in spent.items() if any(word in key for word in ("conv", "mm", "attention")))
    return heavy / sum(spent.values())


def main() -> None:
    options = arguments(__doc__, rounds=11, quick=4, threads=(2,), cases=(*CASES, *DEEP))
    run = Report("replicas", "What a hundred runs cost", options, ("jax",))
    for _ in run.threads():
        table = run.table("whole training step of one replica", TRAIN, "µs", shows="time")
        for case in options.only:
            if case in CASES:
                table.add(case, measured(case, options.rounds, options.peers))
        table = run.table("convolutions and attention, whole training step of eight", "loop over modules")
        for case in options.only:
            if case in DEEP:
                calls = deep(case, options.peers)
                times = interleave(calls, options.rounds, case, warm=1)
                table.add(case, times, products={label: products(call) for label, call in calls.items()})
        if DEEP[0] in options.only:
            table = run.table("a 3 × 3 convolution in eight networks, forward and backward", "one after the other")
            for width, size in ((16, 32), (32, 16), (64, 8)):
                calls, operations = convolved(width, size)
                times = interleave(calls, options.rounds, "convolutions", warm=1)
                rate = {label: operations / statistics.median(series) / 1e9 for label, series in times.items()}
                table.add(f"{width} channels, {size} × {size}", times, GFlop_per_second=rate)
    run.write()


if __name__ == "__main__":
    main()
