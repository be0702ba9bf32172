"""Two threads with an optimizer each, or a build each: the numbers are those of one thread after the other."""

import copy
import pickle
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import tether
from tether import Replicas, measure, noise
from tether.ensemble.private import private_stream
from tether.ensemble.stacking import build_one

F = nn.functional


def at_once(jobs):
    """Run the jobs in a thread each, started together."""
    gate = threading.Barrier(len(jobs))

    def run(job):
        gate.wait()
        return job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result() for future in [pool.submit(run, job) for job in jobs]]


def walk(seed, on, steps=60, shape=(90, 90)):
    """A few steps with gradients that depend on nothing but the seed."""

    def job():
        generator = torch.Generator().manual_seed(seed)
        layers = nn.Sequential(*[nn.Linear(*shape, bias=False) for _ in range(3)])
        with torch.no_grad():
            for p in layers.parameters():
                p.copy_(torch.randn(p.shape, generator=generator) / 10)
        opt = tether.Optimizer(layers, lr=0.05, word="BAOAB", temperature=1e-3, on=on, seed=seed)
        for _ in range(steps):
            for p in layers.parameters():
                p.grad = torch.randn(p.shape, generator=generator)
            opt.step()
        return torch.cat([p.detach().flatten() for p in layers.parameters()])

    return job


@pytest.mark.parametrize("on", [None, tether.Circle(1.0), tether.Sphere(1.0), tether.Orthogonal()], ids=repr)
def test_optimizers_in_two_threads_do_not_meet(on):
    jobs = [walk(seed, tether.Free() if on is None else on, 40 if on else 200) for seed in (1, 2)]
    alone = [job() for job in jobs]
    for _ in range(3):
        together = at_once(jobs)
        assert all(torch.equal(x, y) for x, y in zip(alone, together, strict=True))


def test_compiled_training_in_two_threads():
    x, y = tether.data.spiral(200)

    def train(seed):
        def job():
            ens = Replicas(lambda: nn.Sequential(nn.Linear(2, 100), nn.Tanh(), nn.Linear(100, 1)), 8, seed=seed)
            opt = tether.methods.sgd(ens, lr=0.5)
            tether.train(ens, opt, (x, y), F.binary_cross_entropy_with_logits, steps=150, batch=20, seed=seed)
            return torch.cat([p.detach().flatten() for p in ens.parameters()])

        return job

    jobs = [train(1), train(2)]
    alone = [job() for job in jobs]
    assert all(torch.equal(a, b) for a, b in zip(alone, at_once(jobs), strict=True))


def test_first_use_in_many_threads_compiles_once(monkeypatch):
    calls, built = [], tether.native._built()
    monkeypatch.setattr(tether.native.build, "kernel", lambda: calls.append(1) or built)
    fresh = tether.native.lru_cache(maxsize=1)(tether.native._build_once.__wrapped__)
    monkeypatch.setattr(tether.native, "_build_once", fresh)
    found = at_once([tether.native.library] * 4)
    assert len(calls) == 1
    assert len({id(x) for x in found}) == 1


# replicas: a stream for each, without the global generator


def seeded(factory, seed):
    """The module as it was built when the global generator was seeded."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return factory()


class Odd(nn.Module):
    """Draws in every way that initialisations do."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.randn(5, 3))
        self.b = nn.Parameter(torch.rand(7) + torch.rand_like(self.a[0, :1]))
        self.c = nn.Parameter(torch.normal(0.0, 1.0, (17,)))
        self.d = nn.Parameter(torch.empty(33).exponential_())
        self.e = nn.Parameter(nn.init.trunc_normal_(torch.empty(9, 9)))
        self.f = nn.Parameter(nn.init.orthogonal_(torch.empty(6, 4)))
        self.g = nn.Parameter(torch.bernoulli(torch.full((8,), 0.5)) + torch.randint(10, (8,)) + torch.randperm(8))
        self.h = nn.Parameter(F.dropout(torch.ones(40), 0.5) + torch.multinomial(torch.ones(50), 40))
        self.i = nn.Parameter(F.alpha_dropout(torch.ones(10), 0.5, training=True) + torch.randint(3, 9, (10,)))
        self.j = nn.Parameter(torch.poisson(torch.full((5,), 3.0)) + torch.randn_like(torch.ones(5)))


FACTORIES = {
    "perceptron": lambda: nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 1)),
    "convolutions": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Embedding(10, 4)),
    "recurrent": lambda: nn.LSTM(3, 5, num_layers=2, dropout=0.3),
    "attention": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    "odd": Odd,
}


@pytest.mark.parametrize("name", FACTORIES)
def test_a_stream_has_the_numbers_of_the_seed(name):
    want = seeded(FACTORIES[name], 12345).state_dict()
    before = torch.get_rng_state()
    with private_stream(12345):
        got = FACTORIES[name]().state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(got[key], want[key]) for key in want)


def test_replicas_keep_their_numbers():
    # blake2b(b"0/1"), 63 bits of it: written down once and for all
    want = seeded(FACTORIES["perceptron"], 7359998640416684799).state_dict()
    got = build_one(FACTORIES["perceptron"], 0, 1).state_dict()
    assert all(torch.equal(got[key], want[key]) for key in want)


def test_an_operation_without_a_generator_is_lent_the_state():
    def factory():
        x = torch.randn(3)
        return torch.cat((x, torch.ops.aten.native_dropout(torch.ones(20), 0.5, True)[0], torch.randn(3)))

    before = torch.get_rng_state()
    with private_stream(5):
        got = factory()
    assert torch.equal(got, seeded(factory, 5))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_factory_that_seeds_torch_has_what_it_asked_for():
    def factory():
        torch.manual_seed(7)
        return nn.Linear(3, 2)

    torch.manual_seed(7)  # the case that comparing states would miss
    before = torch.get_rng_state()
    ens = Replicas(factory, 3)
    want = seeded(factory, 0)
    assert all(torch.equal(ens[i].weight, want.weight) for i in range(3))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.random.default_generator is torch.default_generator


def test_a_factory_that_forks_goes_on_with_its_own_stream():
    def factory():
        a = torch.randn(2)
        with torch.random.fork_rng():
            torch.manual_seed(3)
            b = torch.randn(2)
        return torch.cat((a, b, torch.randn(2)))

    with private_stream(11):
        got = factory()
    assert torch.equal(got, seeded(factory, 11))


def test_streams_nest():
    with private_stream(1):
        a = torch.randn(2)
        with private_stream(2):
            b = torch.randn(2)
        c = torch.randn(2)
    assert torch.equal(torch.cat((a, c)), torch.randn(4, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(b, torch.randn(2, generator=torch.Generator().manual_seed(2)))


def test_a_factory_that_fails_leaves_no_stream():
    def factory():
        raise ZeroDivisionError

    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        Replicas(factory, 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.random.default_generator is torch.default_generator


def test_replicas_built_in_threads_are_those_of_one_thread():
    def job(seed):
        return lambda: Replicas(FACTORIES["perceptron"], 20, seed=seed).state_dict()

    alone = [job(seed)() for seed in range(3)]
    for _ in range(3):
        for want, got in zip(alone, at_once([job(seed) for seed in range(3)]), strict=True):
            assert all(torch.equal(got[key], want[key]) for key in want)


def test_a_build_neither_disturbs_nor_hears_another_threads_draws():
    def draws():
        return torch.cat([torch.rand(5) for _ in range(5000)])

    want = Replicas(FACTORIES["perceptron"], 20, seed=4).state_dict()
    torch.manual_seed(8)
    alone = draws()
    torch.manual_seed(8)
    got, together = at_once([lambda: Replicas(FACTORIES["perceptron"], 20, seed=4).state_dict(), draws])
    assert torch.equal(together, alone)
    assert all(torch.equal(got[key], want[key]) for key in want)


def test_permutations_and_normals_in_threads():
    def job():
        source = noise.Normals(["w"], [5000], [0], 5000, torch.float32, torch.device("cpu"))
        return torch.stack([source.draw(random.Random(0).randrange(9), step, 0).clone() for step in range(50)])

    want = job()
    assert all(torch.equal(got, want) for got in at_once([job] * 3))


def test_a_lock_that_an_interrupt_has_left_closed_does_not_stop_a_step():
    """Ctrl-C between the last line of a `with` and its end leaves the lock closed (CPython's issue 29988)."""
    tether.native.library()
    held = threading.Thread(target=tether.native._lock.acquire)  # a thread that has ended never opens it again
    held.start()
    held.join()
    try:
        asking = threading.Thread(target=tether.native.library, daemon=True)
        asking.start()
        asking.join(10)
        assert not asking.is_alive()
    finally:
        tether.native._lock = threading.RLock()


NETWORKS = {
    "under vmap": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 2)), {}, (1, 8, 8)),
    "in turn": (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 2)), {"vmap": False}, (1, 8, 8)),
    "recurrent": (lambda: nn.Sequential(nn.RNN(3, 4), nn.Identity()), {}, (5, 3)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), {}, (5, 8)),
}


def first(out):
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.parametrize("name", NETWORKS)
def test_replicas_that_two_threads_ask_answer_both(name):
    factory, options, shape = NETWORKS[name]
    ens = Replicas(factory, 3, **options)
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(3, 4, *shape, generator=generator) for _ in range(2)]
    held = {key: x.clone() for key, x in ens.state_dict().items()}
    want = [first(ens(x, each=True)).detach() for x in inputs]

    def asked(i):
        return lambda: [torch.equal(first(ens(inputs[i], each=True)), want[i]) for _ in range(30)]

    def reads():
        return [all(torch.equal(x, held[key]) for key, x in ens.state_dict().items()) for _ in range(30)]

    assert all(all(found) for found in at_once([asked(0), asked(1), reads]))
    assert all(torch.equal(x, held[key]) for key, x in ens.named_parameters())


def test_attention_of_two_replicas_in_threads_leaves_torch_as_it_was():
    ens = [Replicas(NETWORKS["attention"][0], 2, seed=seed) for seed in (0, 1)]
    x = torch.randn(4, 5, 8)

    def gradients(one):
        def job():
            found = []
            for _ in range(10):
                one.zero_grad()
                one(x, each=False).square().sum().backward()
                found.append(torch.cat([p.grad.flatten() for p in one.parameters()]))
            return found

        return job

    alone = [gradients(one)()[0] for one in ens]
    together = at_once([gradients(one) for one in ens])
    assert all(torch.equal(x, want) for want, found in zip(alone, together, strict=True) for x in found)
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.backends.cuda.flash_sdp_enabled()


def test_copies_of_replicas_do_not_wait_for_each_other():
    ens = Replicas(NETWORKS["in turn"][0], 2, vmap=False)
    x = torch.randn(4, 1, 8, 8)
    for other in (copy.deepcopy(ens), pickle.loads(pickle.dumps(ens))):
        with ens._turns.lock:
            (out,) = at_once([lambda other=other: other(x, each=False)])
        assert torch.equal(out, ens(x, each=False))


def test_instruments_in_two_threads_leave_the_model_its_parameters():
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Dropout(0.5), nn.Linear(20, 3))
    data = torch.randn(50, 6), torch.randint(3, (50,))
    held, values = list(net.parameters()), [p.clone() for p in net.parameters()]
    jobs = [lambda: measure.margin(net, data).margin, lambda: measure.gradient_noise(net, data, 5).noise]
    jobs = [lambda job=job: [job() for _ in range(20)] for job in jobs]
    alone, drawn = [job()[0] for job in jobs], torch.get_rng_state()
    together = at_once([*jobs, *jobs])
    assert all(x == want for want, found in zip(alone * 2, together, strict=True) for x in found)
    assert all(x is p and torch.equal(x, y) for x, p, y in zip(net.parameters(), held, values, strict=True))
    assert net.training
    assert torch.equal(torch.get_rng_state(), drawn)
