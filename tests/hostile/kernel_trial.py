"""Every kernel across the borders of its chunks, blocks and threads, against torch; nan and inf in every input.

A trial yields what was computed element by element, which is to have the same bits in every build. `test_kernel_levels`
runs the trials in several; as a program this file runs all of them, or those named, in the build that it finds.
"""

import hashlib
import itertools
import json
import math
import sys
from array import array

import torch
from torch import nn

import tether
from tether import native, noise
from tether.ensemble.perceptrons import Perceptrons
from tether.loop import minibatches
from tether.measure import kinks
from tether.metrics import edges

F = nn.functional
DTYPES = [torch.float32, torch.float64]
BAD = [math.nan, math.inf, -math.inf]
ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-13}


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def close(got, want, times=1.0):
    torch.testing.assert_close(got, want, rtol=0, atol=times * ROUNDING[got.dtype], equal_nan=True)


def word(tensors, ops, draws, lanes=None, each=0, seed=3):
    """Take copies of (θ, p, g), lists of tensors with a row for each lane, through the ops."""
    θ, p, g = ([x.clone() for x in xs] for xs in tensors)
    rows = 1 if lanes is None else len(lanes)
    dtype, names = θ[0].dtype, [f"t{i}" for i in range(len(θ))]
    layout = native.Layout([x.numel() // rows for x in θ], rows, lanes)
    named = noise.naming(seed, 0, range(draws), tuple(names))
    at = [native.addresses(xs, dtype, layout.whole) for xs in (θ, p, g)]
    native.run(dtype, layout, ops, named, each=each, θ=at[0], p=at[1], g=at[2])
    return θ, p


def word_by_torch(tensors, tables, draws, lanes=None, seed=3):
    θ, p, g = ([x.clone() for x in xs] for xs in tensors)
    rows = 1 if lanes is None else len(lanes)
    for i, (x, v, force) in enumerate(zip(θ, p, g, strict=True)):
        count = x.numel() // rows
        for row, lane in enumerate(lanes or [0]):
            own = slice(row * count, (row + 1) * count)
            R = [noise.reference(count, seed, 0, draw, f"t{i}", x.dtype, lane) for draw in range(draws)]
            for target, draw, a, b, c, d in tables[row % len(tables)]:
                to = x if target else v
                to[own] = a * to[own] + b * v[own] + c * force[own] + (d * R[draw] if draw >= 0 else 0)
    return θ, p


KICK, DRIFT, HEAT, SHAKE = (
    (0, -1, 1.0, 0, -0.1, 0),
    (1, -1, 1.0, 0.2, 0, 0),
    (0, 0, 0.9, 0, 0, 0.3),
    (1, 1, 1.0, 0, 0, 0.1),
)


def words():
    chunk, block = native.CHUNK, native.BLOCK
    sizes = [0, 1, 3, chunk - 1, chunk, chunk + 1, block, block + chunk + 5]
    ops = [KICK, DRIFT, HEAT, SHAKE, DRIFT]
    for dtype in DTYPES:
        tensors = [[normal(n, dtype=dtype, seed=7 * n + k) for n in sizes] for k in range(3)]
        want = word_by_torch(tensors, [ops], 2)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            got = word(tensors, native.pack(ops), 2)
            for a, b in zip(itertools.chain(*got), itertools.chain(*want), strict=True):
                close(a, b)
        yield from itertools.chain(*got)
        lanes, count = [0, 4, 5], [5, chunk + 3]
        tensors = [[normal(3 * n, dtype=dtype, seed=n + k) for n in count] for k in range(3)]
        tables = [[(t, r, a, b, c * k, d) for t, r, a, b, c, d in ops] for k in (1, 2, 3)]
        table = b"".join(native.pack(rows) for rows in tables)
        want, got = word_by_torch(tensors, tables, 2, lanes), word(tensors, table, 2, lanes, each=3)
        for a, b in zip(itertools.chain(*got), itertools.chain(*want), strict=True):
            close(a, b)
        yield from itertools.chain(*got)
        for k, bad in itertools.product(range(3), BAD):
            tensors = [[normal(50, dtype=dtype, seed=i)] for i in range(3)]
            tensors[k][0][7] = bad
            got, want = word(tensors, native.pack(ops), 2), word_by_torch(tensors, [ops], 2)
            for a, b in zip(itertools.chain(*got), itertools.chain(*want), strict=True):
                assert torch.equal(a.isfinite(), b.isfinite())
                assert [native.finite([a])] == [bool(a.isfinite().all())]


def circles():
    r, ops = 1.3, [KICK, DRIFT, HEAT, (2, 1, 1.0, 0, -0.1, 0.2), KICK, DRIFT]
    packed = native.pack(ops)

    def run(q, p, g, R):
        θ, q, p = r * q.sin(), q.clone(), p.clone()
        native.bounded(native.Bounded(len(q), 0, 1, array("d", [r])), [θ, q, p, g], R, packed)
        return θ, q, p

    def by_torch(q, p, g, R):
        for target, draw, a, b, c, d in ops:
            if target == 0:
                p = a * p + c * q.cos() * g + (d * R[draw] if draw >= 0 else 0)
            elif target == 1:
                q = q + b / r * p
            else:
                pair = R[draw].view(-1, 2)
                q = torch.atan2(r * q.sin() + c * g + d * pair[:, 0], r * q.cos() + d * pair[:, 1])
        return r * q.sin(), torch.atan2(q.sin(), q.cos()), p

    for dtype in DTYPES:
        for n in (1, 511, 512, 513, 2047, 2049, native.SMALL + 700):
            q, p, g = (normal(n, dtype=dtype, seed=k) for k in range(3))
            R = [normal(n, dtype=dtype, seed=8), normal(2 * n, dtype=dtype, seed=9)]
            for threads in (1, 2):
                torch.set_num_threads(threads)
                got, want = run(q, p, g, R), by_torch(q, p, g, R)
                close(got[0], want[0])
                close(got[1].sin(), want[1].sin())
                close(got[2], want[2])
            yield from got
        for k, bad in itertools.product(range(3), BAD):
            inputs = [normal(600, dtype=dtype, seed=k) for k in range(3)]
            inputs[k][513] = bad
            θ, q, p = run(*inputs, [normal(600, dtype=dtype), normal(1200, dtype=dtype)])
            away = torch.arange(600) != 513
            assert all(x[away].isfinite().all() for x in (θ, q, p))
            assert not torch.stack((θ, q, p))[:, 513].isfinite().all(), (k, bad)
        far = run(
            *(torch.full((3,), 1e30, dtype=dtype) for _ in range(3)), [normal(3, dtype=dtype), normal(6, dtype=dtype)]
        )
        assert far[1].abs().max() < 3.2


def spheres():
    ops = [KICK, DRIFT, HEAT, (2, 1, 1.0, 0, -0.1, 0.2), KICK, DRIFT]
    packed = native.pack(ops)
    for dtype in DTYPES:
        for rows, columns in ((1, 1), (16, 7), (17, 300), (300, 230)):
            radii = (normal(rows, dtype=torch.float64).abs() + 0.5).tolist()
            surface = tether.Sphere(torch.tensor(radii, dtype=dtype))
            q = surface.place(normal(1, rows, columns, dtype=dtype) / columns)
            p = surface.tangent(q, normal(1, rows, columns + 1, dtype=dtype, seed=1))
            g, R = (
                normal(rows, columns, dtype=dtype, seed=2),
                [normal(rows, columns + 1, dtype=dtype, seed=k) for k in (3, 4)],
            )
            kind = native.Bounded(rows, columns, 1, array("d", radii))
            x, v = q.clone(), p.clone()
            force = F.pad(g, (0, 1))
            for target, draw, a, b, c, d in ops:
                push = c * force + (d * R[draw] if draw >= 0 else 0)
                if target == 0:
                    v = a * v + surface.tangent(x, push.unsqueeze(0))
                elif target == 1:
                    x, v = surface.drift(x, v, b)
                else:
                    x = surface.normalise(x + push)
            for threads in (1, 2):
                torch.set_num_threads(threads)
                θ, point, moved = q[0, :, :-1].clone(), q[0].clone(), p[0].clone()
                native.bounded(kind, [θ, point, moved, g], R, packed)
                close(point, x[0], 10)
                close(moved, v[0], 30)
                assert torch.equal(θ, point[:, :-1])
        for k, bad in itertools.product(range(3), BAD):
            inputs = [normal(20, 4, dtype=dtype, seed=i) for i in range(2)] + [normal(20, 3, dtype=dtype)]
            inputs[k][17, 1] = bad
            θ = inputs[0][:, :-1].clone()
            noises = [normal(20, 4, dtype=dtype), normal(20, 4, dtype=dtype)]
            native.bounded(native.Bounded(20, 3, 1, array("d", [1.0] * 20)), [θ, *inputs], noises, packed)
            assert not θ[17].isfinite().all()
            assert θ[:17].isfinite().all()
            assert θ[18:].isfinite().all()
    return []


def matrices():
    sizes = (3, 1), (40, 40), (257, 256), (514, 513)
    # short steps of square matrices have a closed form, and without noise between them two drifts are one
    steps = (1.0, 0.2), (0.05, 0.01), (0.05, 0.0), (1e-4, 0.0)
    for dtype, (r, s), tall, (size, heat) in itertools.product(DTYPES, sizes, (True, False), steps):
        if s > 200 and ((dtype is torch.float64) == tall or size < 1):
            continue
        torch.set_num_threads(1)
        count = 1 if s > 200 else 3
        surface = tether.Orthogonal()
        q = torch.linalg.qr(normal(count, r, s, dtype=dtype))[0].contiguous()
        p = surface.tangent(q, size * normal(count, r, s, dtype=dtype, seed=1) / math.sqrt(r))
        g, R = (scale * normal(count, r, s, dtype=dtype, seed=k) / math.sqrt(r) for k, scale in ((2, size), (3, 1.0)))
        ops = [
            (0, -1, 1.0, 0.0, -0.1, 0.0),
            (1, -1, 1.0, 0.1, 0.0, 0.0),
            (0, 0, 0.9, 0.0, 0.0, heat),
            (1, -1, 1.0, 0.1, 0.0, 0.0),
        ]
        x, v = surface.drift(q, surface.tangent(q, p - 0.1 * g), 0.1)
        x, v = surface.drift(x, surface.tangent(x, 0.9 * v + heat * R), 0.1)
        lay = (lambda y: y) if tall else (lambda y: y.mT.contiguous())
        kind = native.Stiefel(r, s, tall, surface.tolerance_for(dtype), 1.0, 60)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            out, moved = torch.empty_like(lay(q)), torch.empty_like(lay(q))
            held = moved if tall else moved.mT
            given = [lay(p)[i] if tall else lay(p)[i].mT for i in range(count)]
            hard = native.stiefel(kind, list(lay(q)), given, list(lay(g)), [lay(R)], out, held, native.pack(ops))
            assert hard == []
            close(out if tall else out.mT, x, 3)
            close(held, v, 30)
        for k, bad in itertools.product(range(3), BAD) if s < 50 else ():
            inputs = [list(lay(y).clone()) for y in (q, p, g)]
            inputs[k][0].view(-1)[0] = bad
            momenta = inputs[1] if tall else [y.mT for y in inputs[1]]
            hard = native.stiefel(kind, inputs[0], momenta, inputs[2], [lay(R)], out, held, native.pack(ops))
            assert hard == [0]
    return []


def perceptrons():
    for dtype, width, out, batch in itertools.product(DTYPES, (1, 2, 3, 4, 5), (1, 3), (1, 6)):
        ens = tether.Replicas(
            lambda w=width, o=out, d=dtype: nn.Sequential(nn.Linear(w, 9), nn.Tanh(), nn.Linear(9, o)).to(d), 5
        )
        x, y = normal(12, width, dtype=dtype), normal(12, out, dtype=dtype, seed=1)
        index = torch.randint(12, (5, batch), generator=torch.Generator().manual_seed(batch))
        for threads in (1, 2):
            torch.set_num_threads(threads)
            losses = Perceptrons.make(ens, x, y, F.mse_loss, False)(index)
            got = [p.grad.clone() for p in ens.parameters()]
            for p in ens.parameters():
                p.grad = None
            want = (ens(x[index], each=True) - y[index]).square().mean((1, 2))
            want.sum().backward()
            torch.testing.assert_close(losses, want.detach().double(), rtol=ROUNDING[dtype], atol=ROUNDING[dtype])
            for a, p in zip(got, ens.parameters(), strict=True):
                close(a, p.grad, 10)
    return []


def paths():
    for dtype, rows, columns, p in itertools.product(DTYPES, (1, 3, 4, 9, 260), (1, 5, 300), (1, 2)):
        w, b = normal(rows, columns, dtype=dtype), normal(rows, dtype=dtype, seed=1)
        x, y = normal(1, columns, dtype=torch.float64).abs(), normal(rows, dtype=torch.float64, seed=2).abs()
        for threads in (1, 2):
            torch.set_num_threads(threads)
            e = edges.power(w, p)
            torch.testing.assert_close(edges.product(x, w, b, p, None, {}), F.linear(x, e, edges.power(b, p)))
            torch.testing.assert_close(edges.back(y, w, p), e.t() @ y)
            r, c, to = (
                normal(rows, 1, dtype=dtype).abs(),
                normal(1, columns, dtype=dtype).abs(),
                normal(rows, columns, dtype=dtype),
            )
            c[0, 0] = 0
            want = 0.5 * to + torch.where(r * c > 0, 2 * w / (r * c), 0)
            torch.testing.assert_close(edges.divide(w, (r, c), to, 2.0, 0.5), want, rtol=1e-4, atol=1e-5)
    return []


def lines():
    for dtype, rows, units, outputs in itertools.product(DTYPES, (1, 5), (1, 33), (1, 10)):
        z, w = ([normal(*shape, dtype=dtype, seed=k) for k in (0, 1)] for shape in ((rows, units), (units, outputs)))
        z[1][0, 0] = z[0][0, 0]
        alphas = torch.linspace(-0.5, 1.5, 17, dtype=torch.float64).tolist()
        for threads in (1, 2):
            torch.set_num_threads(threads)
            got = kinks.through(z, w, [], alphas)
            for k, α in enumerate(alphas):
                close(got[k], ((1 - α) * z[0] + α * z[1]).relu() @ ((1 - α) * w[0] + α * w[1]), 20)
    return []


def permutations():
    for points in (0, 1, 2, 64, 65, 1000, native.CHUNK + 1):
        got = minibatches.permutations(points, 3, 5, 3, [0, 1, 9])
        words = noise.bits(points, 3, 5, "minibatches", 3, [0, 1, 9])
        assert torch.equal(got, torch.stack([minibatches.shuffled(row) for row in words]))
        yield got


TRIALS = {f.__name__: f for f in (words, circles, spheres, matrices, perceptrons, paths, lines, permutations)}


def hashed(tensors):
    total = hashlib.sha256()
    for x in tensors:
        total.update(x.numpy().tobytes())
    return total.hexdigest()[:16]


if __name__ == "__main__":
    assert native.library() is not None, native.describe()
    print(json.dumps({name: hashed(TRIALS[name]()) for name in sys.argv[1:] or TRIALS}))
