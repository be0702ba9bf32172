"""What a hundred runs cost: microseconds for one step of one replica, ours beside a loop, torch.func.vmap and jax.

    make bench-replicas
    python benchmarks/replicas.py --rounds 20 --only a b

Whole training steps: minibatches, forward, backward, SGD with momentum (for ours the word OBA, which is the same, and
Langevin dynamics with noise). Each round times every candidate once, in turn, over some steps; figures are medians. jax
(jit, vmap and scan over the steps) takes part where it is installed.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional

import tether
from step import interleave, mlp, ratio

# name: replicas, widths, batch
CASES = {
    "a": (100, (2, 20, 1), 25),
    "b": (100, (2, 500, 1), 20),
    "c": (100, (2, 500, 1), 2),
    "d": (16, (784, 100, 10), 128),
    "e": (50, (2, 20, 20, 1), 25),
}
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {arguments.threads} thread(s), {arguments.rounds} rounds; µs per replica-step")
    print(f"{'case':<32} {'':<28} {'µs':>8} {'loop / it':>10}")
    for name in arguments.only:
        n, widths, batch = CASES[name]
        few, many = (2, 200) if name != "d" else (2, 10)
        makers: dict[str, tuple[Run | None, int]] = {
            "loop over modules": (loop(n, widths, batch, few), few),
            "torch.func.vmap": (by_vmap(n, widths, batch, few), few),
            "Replicas: ens(x), backward": (plain(n, widths, batch, many), many),
            "tether.train": (ours(n, widths, batch, many, word="OBA"), many),
            "tether.train, BAOAB τ > 0": (ours(n, widths, batch, many, word="BAOAB", temperature=1e-4), many),
            "tether.train, LOL": (method("lol", n, widths, batch, many), many),
            "tether.train, AdLaLa": (method("adlala", n, widths, batch, many, coupling=1e-3), many),
            "tether.train, Path-SGD": (method("path_sgd", n, widths, batch, many, lr=1e-3), many),
            "jax": (by_jax(n, widths, batch, many), many),
        }
        calls = {label: run for label, (run, _) in makers.items() if run is not None}
        began = time.perf_counter()
        times = interleave(calls, arguments.rounds, name)
        scaled = {label: [t / makers[label][1] / n for t in series] for label, series in times.items()}
        title = f"({name}) {n} × [{'-'.join(map(str, widths))}], batch {batch}"
        for label, series in scaled.items():
            gain = ratio(scaled["loop over modules"], series)
            print(f"{title:<32} {label:<28} {1e6 * statistics.median(series):>8.1f} {gain:>10.1f}", flush=True)
            title = ""
        print(f"{'':<32} took {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
