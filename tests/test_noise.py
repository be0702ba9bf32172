"""Noise: the numbers are those of the definition, they are normal, and no two names share any."""

from math import erfc, factorial, pi, sqrt

import numpy as np
import pytest
import torch
from scipy import stats

from tether import native, noise
from tether.noise import BLOCK, CHUNK, Normals, reference

CPU = torch.device("cpu")
SIZES = [0, 1, 2, 3, 17, CHUNK - 1, CHUNK, CHUNK + 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + CHUNK + 5]
ROUNDING = {torch.float32: 3e-6, torch.float64: 1e-14}  # some units in the last place of numbers below 7


def normals(sizes, dtype, seed=0, step=0, draw=0, gap=16):
    """What `Normals` gives for tensors named t0, t1, … of these sizes."""
    names = [f"t{i}" for i in range(len(sizes))]
    offsets, total = [], 0
    for size in sizes:
        offsets.append(total)
        total += -(-size // gap) * gap
    flat = Normals(names, sizes, offsets, total, dtype, CPU).draw(seed, step, draw)
    return [flat[at : at + size] for at, size in zip(offsets, sizes, strict=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_the_numbers_are_the_definitions(size, dtype):
    (got,) = normals([size], dtype, seed=3, step=5, draw=1)
    want = reference(size, 3, 5, 1, "t0", dtype)
    assert got.dtype is dtype
    assert got.shape == want.shape == (size,)
    torch.testing.assert_close(got, want, rtol=0, atol=ROUNDING[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_several_tensors_at_once_have_each_their_own(dtype):
    for i, got in enumerate(normals(SIZES, dtype, seed=1, step=2)):
        want = reference(SIZES[i], 1, 2, 0, f"t{i}", dtype)
        torch.testing.assert_close(got, want, rtol=0, atol=ROUNDING[dtype])


def test_without_a_compiler_they_are_the_definitions_exactly(monkeypatch):
    monkeypatch.setattr(native, "serves", lambda dtype, device: False)
    for i, got in enumerate(normals(SIZES, torch.float32, seed=1, step=2)):
        assert torch.equal(got, reference(SIZES[i], 1, 2, 0, f"t{i}", torch.float32))


def test_the_definition_by_hand():
    # (r cos φ, r sin φ), r = √(−2 log u), u = (|i| + ¼)/2³¹, φ = πj/2³¹ from the first words of the stream
    words = np.random.SFC64(0)
    key = np.frombuffer(noise.key(7, 8, 9, "w", 0) + (1).to_bytes(8, "little"), dtype="<u8")
    words.state = {"bit_generator": "SFC64", "state": {"state": key}, "has_uint32": 0, "uinteger": 0}
    i, j = words.random_raw(2).view(np.int32).astype(float).reshape(2, 2)
    r, φ = np.sqrt(-2 * np.log((abs(i) + 0.25) / 2**31)), pi * j / 2**31
    want = torch.from_numpy(np.concatenate((r * np.cos(φ), r * np.sin(φ))))
    torch.testing.assert_close(reference(4, 7, 8, 9, "w", torch.float32).double(), want, rtol=0, atol=3e-6)


def test_the_stream_is_a_file_format():
    # Checkpoints name their noise by it: these numbers are never to change.
    at = [0, 1, CHUNK - 1, CHUNK, BLOCK - 1, BLOCK]
    single, double = (reference(BLOCK + 1, 0, 0, 0, "0.weight", dtype)[at] for dtype in (torch.float32, torch.float64))
    stored = [
        0.276036320225454,
        -0.095700286922278,
        -1.552583605593960,
        1.403107039888575,
        -0.073712691254451,
        -1.383658158653788,
    ]
    torch.testing.assert_close(double, torch.tensor(stored, dtype=torch.float64), rtol=0, atol=1e-13)
    stored = [-1.1982461, -0.6769613, -1.2491183, -0.2825307, -0.3992986, 1.0814075]
    torch.testing.assert_close(single, torch.tensor(stored), rtol=0, atol=3e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_rounded_from_single(dtype):
    sizes = [3, BLOCK + 1]
    for half, single in zip(normals(sizes, dtype), normals(sizes, torch.float32), strict=True):
        assert half.dtype is dtype
        assert torch.equal(half, single.to(dtype))


def test_the_gaps_between_tensors_stay_zero():
    flat = Normals(["a", "b"], [3, 5], [0, 16], 32, torch.float32, CPU).draw(0, 0, 0)
    assert flat[:3].all()
    assert flat[16:21].all()
    assert not flat[3:16].any()
    assert not flat[21:].any()


def test_a_stream_does_not_depend_on_its_neighbours_or_on_what_was_drawn_before():
    alone = normals([1000], torch.float32, step=4)[0].clone()
    together = normals([1000, 70_000, 5], torch.float32, step=4)[0]
    assert torch.equal(alone, together)
    many = Normals(["t0"], [1000], [0], 1000, torch.float32, CPU)
    many.draw(9, 9, 9)
    assert torch.equal(many.draw(0, 4, 0), alone)


def test_a_longer_tensor_starts_with_the_same_blocks():
    long, short = reference(3 * BLOCK, 0, 0, 0, "w", torch.float32), reference(BLOCK, 0, 0, 0, "w", torch.float32)
    assert torch.equal(long[:BLOCK], short)
    assert not torch.equal(long[BLOCK : 2 * BLOCK], short)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_numbers_do_not_depend_on_the_number_of_threads(dtype):
    sizes = [5 * BLOCK + 3, 100]
    one = [x.clone() for x in normals(sizes, dtype)]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        two = normals(sizes, dtype)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(x, y) for x, y in zip(one, two, strict=True))


# independence: correlations of n independent pairs have standard deviation 1/√n

N = 200_000
BASE = {"seed": 0, "step": 0, "draw": 0, "name": "0.weight"}


def correlation(x, y):
    return float((x.double() * y.double()).mean())


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"seed": -1},
        {"seed": 2**32},  # torch's own CPU generator takes this for 0
        {"seed": 2**64},
        {"step": 1},
        {"step": 2},
        {"step": 10},
        {"draw": 1},
        {"name": "0.bias"},
        {"name": "1.weight"},
        {"name": "0.weigh"},
    ],
    ids=str,
)
def test_another_name_is_another_independent_stream(other):
    x = reference(N, dtype=torch.float32, **BASE)
    y = reference(N, dtype=torch.float32, **{**BASE, **other})
    assert not (x == y).float().mean() > 1e-4  # float32 numbers may coincide by chance
    assert abs(correlation(x, y)) < 4 / sqrt(N)
    assert abs(correlation(x.square() - 1, y.square() - 1)) < 4 * 2 / sqrt(N)


def test_names_do_not_run_together():
    # step 1, draw 11 and step 11, draw 1 write the same digits
    keys = [
        noise.key(*name) for name in [(1, 1, 11, "a", 1), (1, 11, 1, "a", 1), (11, 1, 1, "a", 1), (1, 1, 1, "1a", 1)]
    ]
    keys += [noise.key(1, 1, 1, "a", 11), noise.key(1, 1, 1, "a", 1), noise.key(1, 1, 1, "1/a", 1)]
    assert len(set(keys)) == 7
    assert {len(key) for key in keys} == {24}


def test_blocks_and_chunks_are_independent():
    x = reference(4 * BLOCK, 0, 0, 0, "w", torch.float32)
    blocks, chunks = x.view(4, BLOCK), x.view(-1, CHUNK)
    for i in range(3):
        assert abs(correlation(blocks[i], blocks[i + 1])) < 4 / sqrt(BLOCK)
    assert abs(correlation(chunks[:-1], chunks[1:])) < 4 / sqrt(chunks[1:].numel())


# the distribution

MANY = 4_000_000


@pytest.fixture(scope="module", params=[torch.float32, torch.float64], ids=str)
def sample(request):
    """Four million numbers, as the optimizer gets them."""
    return normals([MANY], request.param, seed=11)[0].clone()


def test_moments(sample):
    x = sample.double()
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
        error = sqrt((even_moment(2 * power) - moment**2) / MANY)
        assert abs(float((x**power).mean()) - moment) < 4 * error, power


def even_moment(n):
    """E xⁿ of a standard normal for even n: n!/(2^{n/2} (n/2)!)."""
    return factorial(n) / (2 ** (n // 2) * factorial(n // 2))


def test_distribution_function(sample):
    # Kolmogorov–Smirnov: p-values below 1e-4 would be a wrong distribution, not bad luck.
    assert stats.kstest(sample[: MANY // 4].double().numpy(), "norm").pvalue > 1e-4


def test_equally_likely_bins(sample):
    edges = torch.from_numpy(stats.norm.ppf([i / 100 for i in range(1, 100)]))
    counts = torch.bucketize(sample.double(), edges).bincount(minlength=100)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4


@pytest.mark.parametrize("sigma", [3, 4, 5])
def test_tails(sample, sigma):
    # the count beyond σ on either side is Poisson to a good approximation; 1e-4 on either end
    expected = MANY * erfc(sigma / sqrt(2)) / 2
    low, high = stats.poisson.ppf([1e-4, 1 - 1e-4], expected)
    assert low <= int((sample > sigma).sum()) <= high
    assert low <= int((sample < -sigma).sum()) <= high


def test_the_far_tail_is_there():
    # Box–Muller on 31 bits reaches √(−2 log 2⁻³³) = 6.76; beyond 4.75 expect 40.7 of 40 million
    count = sum(int((normals([MANY], torch.float32, seed=s)[0].abs() > 4.75).sum()) for s in range(10))
    expected = 10 * MANY * erfc(4.75 / sqrt(2))
    low, high = stats.poisson.ppf([1e-4, 1 - 1e-4], expected)
    assert low <= count <= high


def test_cosines_and_sines_are_independent(sample):
    chunks = sample[: MANY // CHUNK * CHUNK].view(-1, CHUNK)
    cosine, sine = chunks[:, : CHUNK // 2], chunks[:, CHUNK // 2 :]
    n = cosine.numel()
    assert abs(correlation(cosine, sine)) < 4 / sqrt(n)
    assert abs(correlation(cosine.square() - 1, sine.square() - 1)) < 4 * 2 / sqrt(n)
    assert abs(correlation(cosine, sine.square() - 1)) < 4 * sqrt(2 / n)


@pytest.mark.parametrize("lag", [1, 2, 3, 16, CHUNK // 2 - 1, CHUNK, BLOCK])
def test_no_autocorrelation(sample, lag):
    n = MANY - lag
    assert abs(correlation(sample[:-lag], sample[lag:])) < 4 / sqrt(n)
    squares = sample.square() - 1
    assert abs(correlation(squares[:-lag], squares[lag:])) < 4 * 2 / sqrt(n)


def test_one_number_over_many_steps():
    # A parameter of three numbers lives on the start of many streams: they must be as good as one long stream.
    steps = 20_000
    source = Normals(["bias"], [3], [0], 3, torch.float32, CPU)
    x = torch.stack([source.draw(0, step, 0).double() for step in range(steps)])
    assert ((x.mean(0) * sqrt(steps)).abs() < 4).all()
    assert (((x.square().mean(0) - 1) / sqrt(2 / steps)).abs() < 4).all()
    assert (((x[1:] * x[:-1]).mean(0) * sqrt(steps)).abs() < 4).all()
    assert abs(correlation(x[:, 0], x[:, 1])) < 4 / sqrt(steps)
    assert stats.kstest(x[:, 0].numpy(), "norm").pvalue > 1e-4


# other devices, tried on the CPU


def test_by_device_fills_each_tensor_from_its_own_name():
    def fill(*names):
        pieces = [torch.zeros(1000) for _ in names]
        [noise.by_device(x, noise.key(0, 0, 0, name, 0)) for x, name in zip(pieces, names, strict=True)]
        return pieces

    before = torch.get_rng_state()
    a, b = fill("a", "b")
    (alone,) = fill("b")
    assert torch.equal(b, alone)
    assert abs(correlation(a, b)) < 4 / sqrt(1000)
    assert abs(float(a.mean())) < 4 / sqrt(1000)
    assert abs(float(a.var()) - 1) < 4 * sqrt(2 / 1000)
    assert torch.equal(torch.get_rng_state(), before)
