"""Noise: the numbers are those of the definition in every shard and build, and normal; no two names share any."""

import math
from math import erfc, factorial, log, pi, sqrt

import pytest
import torch
from scipy import stats

from tether import native, noise
from tether.noise import Normals, at, bits, entries, key, philox, reference, words

CPU = torch.device("cpu")
CHUNK, BLOCK = native.CHUNK, native.BLOCK
SIZES = [0, 1, 2, 3, 8, 17, 31, 32, 33, CHUNK - 1, CHUNK, CHUNK + 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + CHUNK + 5]
ROUNDING = {torch.float32: 3e-6, torch.float64: 1e-14}  # some units in the last place of numbers below 7
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
compiled = pytest.mark.skipif(native.library() is None, reason="no C compiler")


def normals(sizes, dtype, seed=0, step=0, draw=0, gap=16, **rest):
    """What `Normals` gives for tensors named t0, t1, … of these sizes."""
    names = [f"t{i}" for i in range(len(sizes))]
    offsets, total = [], 0
    for size in sizes:
        offsets.append(total)
        total += -(-size // gap) * gap
    flat = Normals(names, sizes, offsets, total, dtype, CPU, **rest).draw(seed, step, draw)
    return [flat[at : at + size] for at, size in zip(offsets, sizes, strict=True)]


def close(got, want):
    torch.testing.assert_close(got, want, rtol=0, atol=ROUNDING[want.dtype])


# the generator

KNOWN = [  # of Random123
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize("case", KNOWN)
@pytest.mark.parametrize("kind", [int, torch.tensor])
def test_known_answers(case, kind):
    counter, k, answer = ([int(x, 16) for x in text.split()] for text in case)
    found = philox([kind(x) for x in counter], [kind(x) for x in k])
    assert [int(x) for x in found] == answer


def by_hand(e, seed, step, draw, name, replica=0):
    """Entry e, in Python's own numbers."""
    n = 8 * (e // 32) + e % 8
    k = key(seed, name)
    words = philox([n % 2**32, step, draw, replica + (n >> 32) * 2**24], [k % 2**32, k >> 32])
    row = e % 32 // 8
    i, j = words[row // 2 * 2 : row // 2 * 2 + 2]
    r, φ = sqrt(-2 * log((i // 2 + 0.5) / 2**31)), pi * (j - 2**32 * (j >= 2**31)) / 2**31
    return words[row], r * (math.sin(φ) if row % 2 else math.cos(φ))


def test_the_definition_by_hand():
    far = [0, 1, 7, 8, 15, 16, 24, 31, 32, 1000, 2**32, 2**34 - 1, 2**34, 2**35 + 9, 2**42 - 1]
    for name in [(3, 0, 0, "w", 0), (-1, 2**32 - 1, 2**32 - 1, "0.weight", 2**24 - 1)]:
        seed, step, draw, label, replica = name
        index, k = torch.tensor(far), key(seed, label)
        integers, want = zip(*(by_hand(e, *name) for e in far), strict=True)
        assert words(index, k, step, draw, replica).tolist() == list(integers)
        torch.testing.assert_close(at(index, k, step, draw, torch.float64, replica).tolist(), list(want))
        assert reference(9, seed, step, draw, label, torch.float64, replica)[8] == pytest.approx(want[3], abs=1e-14)


def test_the_stream_is_a_file_format():
    # Checkpoints name their noise by it: these numbers never change while STREAM is 2.
    assert noise.STREAM == 2
    assert key(0, "0.weight") == 0x2F96E463851935F1
    found = at(torch.tensor([0, 8, 16, 24, 33, BLOCK]), key(0, "0.weight"), 5, 1, torch.float64, 2)
    torch.testing.assert_close(
        found.tolist(),
        [0.988206040610, -0.265269562787, -1.027615767679, 0.161649439429, -0.378288419282, 1.163661473882],
    )


def test_the_largest_and_the_smallest_radius():
    largest, smallest = torch.tensor([0, 2**32 - 1]).unbind()
    for dtype in (torch.float32, torch.float64):
        r, _ = noise.radius_and_angle(torch.stack((largest, smallest)), torch.zeros(2, dtype=torch.int64), dtype)
        assert float(r[0]) == pytest.approx(sqrt(64 * log(2)), rel=1e-6)
        assert 0 <= float(r[1]) < 1e-4


def test_single_and_double_precision_are_the_same_noise():
    single, double = (reference(100_000, 1, 2, 3, "w", dtype) for dtype in (torch.float32, torch.float64))
    difference = (single - double).abs()
    assert difference.max() < 2e-5  # a u of float32 next to 1 has an error of 3e-8, r = √(2(1 − u)) one of 3e-8/r
    assert difference.mean() < 2e-7


# limits


@pytest.mark.parametrize(
    ("what", "value"),
    [("step", 2**32), ("step", -1), ("draw", 2**32), ("draw", -1), ("replica", 2**24), ("replica", -1)],
)
def test_what_has_no_room_in_the_counter_is_refused(what, value):
    numbers = {"seed": 0, "step": 0, "draw": 0, what: value}
    with pytest.raises(ValueError, match=f"{what}={value} has no noise.*below 2"):
        reference(3, name="w", dtype=torch.float32, **numbers)
    replica = numbers.pop("replica", 0)
    with pytest.raises(ValueError, match=f"{what}={value} has no noise"):
        Normals(["w"], [3], [0], 3, torch.float32, CPU, 1, [replica]).draw(**numbers)


def test_a_shard_beyond_the_last_index_is_refused():
    with pytest.raises(ValueError, match="entries 4398046511103 to 4398046511106 have no noise"):
        Normals(["w"], [3], [0], 3, torch.float32, CPU, first=[2**42 - 1])


# what the optimizer gets


@every_dtype
@pytest.mark.parametrize("kernel", [True, False])
def test_several_tensors_at_once_have_each_their_own(dtype, kernel, monkeypatch):
    if not kernel:
        monkeypatch.setattr(native, "serves", lambda dtype, device: False)
    for i, got in enumerate(normals(SIZES, dtype, seed=1, step=2, draw=3)):
        assert got.dtype is dtype
        want = reference(SIZES[i], 1, 2, 3, f"t{i}", dtype)
        close(got, want)


@every_dtype
@pytest.mark.parametrize("kernel", [True, False])
def test_every_replica_has_its_own(dtype, kernel, monkeypatch):
    if not kernel:
        monkeypatch.setattr(native, "serves", lambda dtype, device: False)
    lanes, counts = [0, 7, 2**24 - 1], [1, 3, 20, 40, CHUNK + 1]
    for i, got in enumerate(normals([3 * n for n in counts], dtype, step=4, rows=3, lanes=lanes)):
        for row, lane in zip(got.view(3, -1), lanes, strict=True):
            close(row, reference(counts[i], 0, 4, 0, f"t{i}", dtype, lane))


@every_dtype
@pytest.mark.parametrize("kernel", [True, False])
def test_a_tensor_that_begins_inside_its_parameter(dtype, kernel, monkeypatch):
    if not kernel:
        monkeypatch.setattr(native, "serves", lambda dtype, device: False)
    first = [0, 1, 31, 32, 50, CHUNK + 7, BLOCK + 3, 2**34 - 5, 2**42 - 5000]
    sizes = [3, 40, 1, 0, CHUNK + 9, 70, 2 * BLOCK + 1, 100, 50]
    for i, got in enumerate(normals(sizes, dtype, step=4, first=first)):
        index = torch.arange(first[i], first[i] + sizes[i])
        close(got, at(index, key(0, f"t{i}"), 4, 0, dtype))


@compiled
@pytest.mark.parametrize("level", [0, 1, 2])
def test_the_kernel_makes_the_same_integers_with_every_set_of_instructions(level):
    first, counts, lanes = [0, 5, 2**35 - 40], [700, 33, 300], [0, 3]
    layout = native.Layout(counts, 2, lanes, first)
    names = ("a", "b", "c")
    try:
        found = native.words(layout, noise.naming(9, 2**32 - 1, [2**31 + 5], names), level)
    except native.KernelError:
        pytest.skip(f"this machine has no instructions of level {level}")
    for made, name, start, count in zip(found, names, first, counts, strict=True):
        for row, lane in zip(made, lanes, strict=True):
            want = words(torch.arange(start, start + count), key(9, name), 2**32 - 1, 2**31 + 5, lane)
            assert torch.equal(row.long() & 0xFFFFFFFF, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_rounded_from_single(dtype):
    sizes = [3, BLOCK + 1]
    for half, single in zip(normals(sizes, dtype), normals(sizes, torch.float32), strict=True):
        assert half.dtype is dtype
        assert torch.equal(half, single.to(dtype))


@pytest.mark.parametrize("kernel", [True, False])
def test_the_gaps_between_tensors_stay_zero(kernel, monkeypatch):
    if not kernel:
        monkeypatch.setattr(native, "serves", lambda dtype, device: False)
    flat = Normals(["a", "b"], [3, 5], [0, 16], 32, torch.float32, CPU).draw(0, 0, 0)
    assert flat[:3].all()
    assert flat[16:21].all()
    assert not flat[3:16].any()
    assert not flat[21:].any()


def test_a_number_does_not_depend_on_its_neighbours_or_on_what_was_drawn_before():
    alone = normals([1000], torch.float32, step=4)[0].clone()
    together = normals([1000, 70_000, 5], torch.float32, step=4)[0]
    assert torch.equal(alone, together)
    many = Normals(["t0"], [1000], [0], 1000, torch.float32, CPU)
    many.draw(9, 9, 9)
    assert torch.equal(many.draw(0, 4, 0), alone)
    longer = Normals(["t0"], [1003], [0], 1003, torch.float32, CPU)
    assert torch.equal(longer.draw(0, 4, 0)[:1000], alone)


@every_dtype
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


# shards

SHARDS = {
    "rows": [((0, 0), (3, 6)), ((3, 0), (4, 6))],
    "uneven columns": [((0, 0), (7, 4)), ((0, 4), (7, 1)), ((0, 5), (7, 1))],
    "both": [((2, 1), (3, 2))],
    "empty": [((7, 0), (0, 6)), ((0, 6), (7, 0))],
}


@pytest.mark.parametrize("kind", SHARDS)
def test_a_shard_has_the_numbers_of_its_entries(kind):
    whole = reference(42, 0, 3, 1, "w", torch.float32).view(7, 6)
    for offset, sizes in SHARDS[kind]:
        found = at(entries((7, 6), offset, sizes), key(0, "w"), 3, 1, torch.float32)
        block = whole[tuple(slice(a, a + n) for a, n in zip(offset, sizes, strict=True))]
        assert found.shape == block.shape
        assert torch.equal(found, block)


@pytest.mark.parametrize("kernel", [True, False])
def test_a_shard_of_columns_in_one_draw(kernel, monkeypatch):
    # each of its rows is a range of entries, and all of them have the name of the parameter
    if not kernel:
        monkeypatch.setattr(native, "serves", lambda dtype, device: False)
    rows, columns, offset, width = 9, 50, 13, 21
    first = [columns * row + offset for row in range(rows)]
    places = [width] * rows, range(0, rows * width, width), rows * width
    found = Normals(["w"] * rows, *places, torch.float64, CPU, first=first).draw(0, 3, 1).view(rows, width)
    whole = reference(rows * columns, 0, 3, 1, "w", torch.float64).view(rows, columns)
    close(found, whole[:, offset : offset + width])


def test_entries_that_lie_apart():
    whole = reference(600, 0, 0, 0, "w", torch.float64)
    assert torch.equal(at(torch.arange(600)[5::7], key(0, "w"), 0, 0, torch.float64), whole[5::7])
    assert entries((4, 5, 6), (1, 2, 3), (2, 1, 2)).tolist() == [[[45, 46]], [[75, 76]]]


def test_of_several_replicas_at_once():
    index, lanes = torch.arange(40), torch.tensor([[2], [5]])
    found = at(index, key(0, "w"), 0, 0, torch.float64, lanes)
    for row, lane in zip(found, (2, 5), strict=True):
        assert torch.equal(row, reference(40, 0, 0, 0, "w", torch.float64, lane))


# other devices, and tracing


def test_nothing_is_asked_of_the_device():
    # the meta device has no numbers: whoever looks at one gets an error
    meta = torch.device("meta")
    source = Normals(["a", "b"], [100, 33], [0, 112], 160, torch.bfloat16, meta, first=[5, 0])
    assert source.draw(0, torch.tensor(3, device=meta), 0).is_meta
    index = entries((4, 5), (0, 1), (4, 2), meta)
    assert at(index, key(0, "w"), torch.tensor(3, device=meta), 0, torch.float32).shape == (4, 2)


def test_one_graph_serves_all_steps():
    source = Normals(["a", "b"], [100, 2 * 33], [0, 112], 192, torch.float32, CPU, first=[5, 0])
    source.tables(0)  # hashed before
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    drawn = torch.compile(lambda step: source.draw(0, step, 0) * 1, backend=count, fullgraph=True)
    for step in (0, 1, 2**32 - 1):
        found = drawn(torch.tensor(step)).clone()
        close(found, source.draw(0, step, 0))
    assert len(graphs) == 1


def test_inductor_makes_the_same_integers():
    # products of 64 bits wrap around in its code as they do in torch
    index, k = torch.arange(100, 164), noise.halves(key(0, "w"))
    found = torch.compile(lambda step: words(index, k, step, 0), fullgraph=True)(torch.tensor(2**32 - 7))
    assert torch.equal(found, words(index, k, 2**32 - 7, 0))


# bits for orders and subsets


def test_bits_are_the_words_of_the_definition(monkeypatch):
    found = bits(100, 4, 6, "x", 2, [1, 9])
    for row, lane in zip(found, (1, 9), strict=True):
        assert torch.equal(row, words(torch.arange(100), key(4, "x"), 6, 0, lane))
    monkeypatch.setattr(native, "library", lambda: None)
    assert torch.equal(bits(100, 4, 6, "x", 2, [1, 9]), found)
    assert torch.equal(bits(7, 4, 6, "x"), words(torch.arange(7), key(4, "x"), 6, 0).view(1, 7))


def test_bits_are_uniform():
    found = bits(400_000, 0, 0, "x")[0]
    for shift in (0, 8, 16, 24):
        assert stats.chisquare((found >> shift & 255).bincount(minlength=256).numpy()).pvalue > 1e-4


# independence: correlations of n independent pairs have standard deviation 1/√n

N = 200_000
BASE = {"seed": 0, "step": 0, "draw": 0, "name": "0.weight", "replica": 0}


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
        {"step": 2**31},
        {"draw": 1},
        {"name": "0.bias"},
        {"name": "0.weigh"},
        {"replica": 1},
        {"replica": 2**23},
        {"step": 1, "draw": 1},
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
    names = [(1, 1, 11, "a"), (1, 11, 1, "a"), (11, 1, 1, "a"), (1, 1, 1, "1a"), (1, 1, 1, "1/a"), (1, 1, 1, "a")]
    found = {reference(1, *name, torch.float64).item() for name in names}
    assert len(found) == len(names)


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


def test_the_rows_of_a_tile_are_independent(sample):
    # rows 0 and 1 are cosine and sine of one angle; lanes are neighbouring counters
    rows = sample.view(-1, 4, 8).transpose(0, 1).flatten(1)
    n = rows.shape[1]
    for a in range(4):
        for b in range(a):
            assert abs(correlation(rows[a], rows[b])) < 4 / sqrt(n), (a, b)
            assert abs(correlation(rows[a].square() - 1, rows[b].square() - 1)) < 4 * 2 / sqrt(n), (a, b)
            assert abs(correlation(rows[a], rows[b].square() - 1)) < 4 * sqrt(2 / n), (a, b)


@pytest.mark.parametrize("lag", [1, 2, 7, 8, 9, 16, 24, 32, 256, CHUNK, BLOCK])
def test_no_autocorrelation(sample, lag):
    n = MANY - lag
    assert abs(correlation(sample[:-lag], sample[lag:])) < 4 / sqrt(n)
    squares = sample.square() - 1
    assert abs(correlation(squares[:-lag], squares[lag:])) < 4 * 2 / sqrt(n)


def test_one_number_over_many_steps():
    # A parameter of three numbers lives on neighbouring counters: they must be as good as a long stream.
    steps = 20_000
    source = Normals(["bias"], [3], [0], 3, torch.float32, CPU)
    x = torch.stack([source.draw(0, step, 0).double() for step in range(steps)])
    assert ((x.mean(0) * sqrt(steps)).abs() < 4).all()
    assert (((x.square().mean(0) - 1) / sqrt(2 / steps)).abs() < 4).all()
    assert (((x[1:] * x[:-1]).mean(0) * sqrt(steps)).abs() < 4).all()
    assert abs(correlation(x[:, 0], x[:, 1])) < 4 / sqrt(steps)
    assert stats.kstest(x[:, 0].numpy(), "norm").pvalue > 1e-4


def test_one_number_over_many_replicas():
    lanes = list(range(20_000))
    x = normals([20_000], torch.float64, rows=20_000, lanes=lanes)[0]
    assert stats.kstest(x.numpy(), "norm").pvalue > 1e-4
    assert abs(correlation(x[1:], x[:-1])) < 4 / sqrt(20_000)
