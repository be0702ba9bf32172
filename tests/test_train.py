"""The loop: against one written by hand, replica against single net, compiled against autograd, killed and resumed."""

import math
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from torch import nn
from torch.nn import functional

import tether
from tether import methods, native
from tether.ensemble.losses import mean_losses
from tether.ensemble.perceptrons import Perceptrons
from tether.ensemble.replicas import Replicas, build
from tether.loop.minibatches import Minibatches, permutations

BCE = functional.binary_cross_entropy_with_logits
X, Y = tether.data.spiral(60, turns=2, seed=0)
Y = Y.float().unsqueeze(1)


def factory():
    return nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 1))


def same(a, b, tol=0.0):
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(x, y, rtol=tol, atol=tol)


# minibatches


def test_an_epoch_is_a_permutation_of_its_own():
    stream = Minibatches(10, 4, lanes=(0, 1), seed=0)
    epochs = [torch.cat([stream(3 * e + k) for k in range(3)], dim=1) for e in range(3)]
    for order in epochs:
        assert order.shape == (2, 10)
        assert torch.equal(order.sort(dim=1).values, torch.arange(10).expand(2, 10))
        assert not torch.equal(order[0], order[1])
    assert not torch.equal(epochs[0], epochs[1])
    assert stream(2).shape == (2, 2)  # what is left of the epoch
    assert torch.equal(stream(0), Minibatches(10, 4, lanes=(0, 1), seed=0)(0))
    assert not torch.equal(stream(0), Minibatches(10, 4, lanes=(0, 1), seed=1)(0))


@pytest.mark.parametrize("replacement", [True, False])
def test_the_batches_of_a_replica_do_not_depend_on_the_others(replacement):
    many, one = Minibatches(50, 7, range(5), 3, replacement), Minibatches(50, 7, (4,), 3, replacement)
    for step in (0, 3, 11, 40):
        assert torch.equal(many(step)[4], one(step)[0])


def test_all_orders_are_as_likely():
    # 24 orders of 4 points by 24,000 replicas of one epoch, and by as many epochs of one
    place = torch.tensor([64, 16, 4, 1])
    for orders in (
        permutations(4, 0, 3, 24_000, range(24_000)),
        torch.cat([permutations(4, 0, epoch) for epoch in range(24_000)]),
    ):
        counts = (orders * place).sum(1).bincount()
        counts = counts[counts > 0].double()
        assert len(counts) == 24
        assert float(((counts - 1000).square() / 1000).sum()) < 23 + 4 * math.sqrt(2 * 23)


@pytest.mark.parametrize("points", [1, 2, 33, 3000])
def test_orders_without_a_compiler_are_the_same(points, monkeypatch):
    want = permutations(points, 5, 7, 2, (0, 4))
    batches = Minibatches(points, 1, (0, 4), 5, replacement=True)(3)
    monkeypatch.setattr(native, "library", lambda: None)
    assert torch.equal(permutations(points, 5, 7, 2, (0, 4)), want)
    assert torch.equal(Minibatches(points, 1, (0, 4), 5, replacement=True)(3), batches)


def test_with_replacement_all_points_are_as_likely():
    stream = Minibatches(20, 10, None, seed=0, replacement=True)
    counts = torch.cat([stream(k)[0] for k in range(2000)]).bincount(minlength=20).double()
    χ2 = float(((counts - 1000).square() / 1000).sum())
    assert χ2 < 19 + 4 * math.sqrt(2 * 19)
    assert any(len(stream(k)[0].unique()) < 10 for k in range(20))


def test_all_points_where_no_batch_is_given():
    assert torch.equal(Minibatches(4, None, (0, 1), 0)(7), torch.arange(4).expand(2, 4))


def test_symmetric_sweeps_go_forth_and_back():
    stream, plain = (Minibatches(10, 4, (0, 1), 0, order=order) for order in ("symmetric", "shuffled"))
    for cycle in range(3):
        forth = [stream(6 * cycle + k) for k in range(3)]
        back = [stream(6 * cycle + k) for k in (5, 4, 3)]
        for k in range(3):
            assert torch.equal(forth[k], back[k])
            assert torch.equal(forth[k], plain(3 * cycle + k))  # a new permutation for every cycle


ORDERS = {  # L = θ²/2 as the mean of two points (θ ∓ 1)²/2 by X: with a = 1 − h, the variance after a cycle
    "replacement": (1, lambda h, a: h**2 / (1 - a**2)),
    "shuffled": (2, lambda h, a: h**2 * (1 - a) ** 2 / (1 - a**4)),
    "symmetric": (4, lambda h, a: h**2 * ((1 - a) * (1 - a**2)) ** 2 / (1 - a**8)),
}


@pytest.mark.parametrize("order", ORDERS)
def test_symmetric_sweeps_have_the_smallest_bias(order):
    """No noise but that of the batches: the variance should be 0, and is h/2, h³/4 and h⁵/2 at leading order.

    Within 4 standard errors of 4000 replicas; a sum of independent signs has a kurtosis of at most 3.
    """
    h, n = 0.2, 4000
    cycle, variance = ORDERS[order]
    how = {"replacement": True} if order == "replacement" else {"order": order}
    stream, signs = Minibatches(2, 1, range(n), 3, **how), torch.tensor([1.0, -1.0], dtype=torch.float64)
    q = nn.Parameter(torch.zeros(n, dtype=torch.float64))
    opt = tether.Optimizer([("q", q)], lr=h)
    for step in range(48):
        q.grad = q.detach() - signs[stream(step)[:, 0]]
        opt.step()
    assert 48 % cycle == 0
    expected = variance(h, 1 - h)
    assert q.detach().square().mean().item() == pytest.approx(expected, rel=4 * math.sqrt(2 / n))
    leading = {"replacement": h / 2, "shuffled": h**3 / 4, "symmetric": h**5 / 2}[order]
    assert 0.5 < expected / leading < 2


def test_symmetric_sweeps_of_the_loop(tmp_path):
    def made(steps, **options):
        net = build(factory, 0, 2)
        tether.train(net, torch.optim.SGD(net.parameters(), lr=0.1), (X, Y), BCE, steps, batch=10, seed=5, **options)
        return net

    file = tmp_path / "run.pt"
    made(9, order="symmetric", checkpoint=file)  # ends on the way back
    same(made(24, order="symmetric", checkpoint=file), made(24, order="symmetric"))
    same(made(6, order="symmetric"), made(6))
    with pytest.raises(AssertionError):
        same(made(9, order="symmetric"), made(9))
    with pytest.raises(ValueError, match="checkpoint of another run"):
        made(30, checkpoint=file)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"order": "random"}, "order='random' must be 'shuffled' or 'symmetric'"),
        ({"order": "symmetric", "replacement": True}, "leave out one of the two"),
    ],
)
def test_orders_that_do_not_exist(options, match):
    with pytest.raises(ValueError, match=match):
        Minibatches(10, 4, None, 0, **options)
    net = build(factory, 0, 2)
    with pytest.raises(ValueError, match=match):
        tether.train(net, torch.optim.SGD(net.parameters(), lr=0.1), (X, Y), BCE, 1, batch=10, **options)


# the loop


def test_it_is_the_loop_one_would_write():
    net, twin = build(factory, 0, 2), build(factory, 0, 2)
    opt, other = (torch.optim.Adam(m.parameters(), lr=0.01) for m in (net, twin))
    record = tether.train(net, opt, (X, Y), BCE, steps=25, batch=10, log_every=1, seed=5)
    stream, losses = Minibatches(60, 10, (2,), seed=5), []
    for step in range(25):
        rows = stream(step)[0]
        other.zero_grad()
        loss = BCE(twin(X[rows]), Y[rows])
        loss.backward()
        other.step()
        losses.append(loss.detach())
    same(net, twin)
    assert torch.equal(record.losses, torch.stack(losses))
    assert record.steps == list(range(1, 26))


METHODS = {
    "sgd": lambda m: methods.sgd(m, lr=0.1),
    "langevin": lambda m: methods.langevin(m, lr=0.1, temperature=1e-4),
    "adlala": lambda m: methods.adlala(m, lr=0.1),
    "orthogonal": lambda m: methods.orthogonal_cola_ud(m, lr=0.1, temperature=1e-6),
    "heun": lambda m: methods.dhsgd_contractive(m, lr=0.1, scheme="heun"),
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    "SGD-momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01),
    "AdaGrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=0.01),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("compiled", [True, False])
def test_replica_i_is_the_net_i_trained_alone(method, compiled):
    ens = Replicas(factory, n=3, seed=1)
    record = tether.train(ens, METHODS[method](ens), (X, Y), BCE, steps=80, batch=10, compiled=compiled, log_every=20)
    assert record.losses.shape == (4, 3)
    for i in (0, 2):
        net = build(factory, 1, i)
        alone = tether.train(net, METHODS[method](net), (X, Y), BCE, steps=80, batch=10, log_every=20)
        same(ens[i], net, tol=2e-3)
        torch.testing.assert_close(record.losses[:, i].float(), alone.losses, rtol=1e-2, atol=1e-3)


ACTIVATIONS = [nn.ReLU(), nn.LeakyReLU(0.2), nn.Tanh(), nn.Sigmoid(), nn.Identity()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("kind", ["binary", "square", "classes", "classes, as a module"])
@pytest.mark.parametrize("each", [False, True])
def test_the_compiled_gradients_are_those_of_autograd(dtype, activation, kind, each):
    generator = torch.Generator().manual_seed(0)
    losses_by_kind = {"binary": BCE, "square": functional.mse_loss, "classes": functional.cross_entropy}
    loss, classes = losses_by_kind.get(kind, nn.CrossEntropyLoss()), "classes" in kind

    def net():
        middle = nn.Linear(7, 6, bias=False)
        return nn.Sequential(nn.Linear(5, 7), activation, middle, activation, nn.Linear(6, 3)).to(dtype)

    ens = Replicas(net, n=4)
    shape = (4, 30) if each else (30,)
    x = 3 * torch.randn(*shape, 5, generator=generator, dtype=dtype)
    y = torch.randn(*shape, 3, generator=generator, dtype=dtype).sigmoid()
    y = torch.randint(0, 3, shape, generator=generator) if classes else y
    fast = Perceptrons.make(ens, x, y, loss, each)
    assert fast is not None
    index = torch.randint(0, 30, (4, 9), generator=generator)
    losses = fast(index)
    found = [p.grad.clone() for p in ens.parameters()]
    ens.zero_grad()
    rows = torch.arange(4).unsqueeze(1)
    xs, ys = (x[rows, index], y[rows, index]) if each else (x[index], y[index])
    expected = mean_losses(loss, ens(xs, each=True), ys, True)
    expected.sum().backward()
    tol = 1e-6 if dtype is torch.float32 else 1e-14
    torch.testing.assert_close(losses, expected.detach().double(), rtol=10 * tol, atol=tol)
    for g, p in zip(found, ens.parameters(), strict=True):
        torch.testing.assert_close(g, p.grad, rtol=100 * tol, atol=tol)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("many", [True, False])
def test_a_penalty_is_a_term_of_the_loss_that_the_record_leaves_out(many, compiled):
    x, y = X, Y
    penalty = tether.soft(lambda w: w - 1, 0.05, where="*.weight")
    build = lambda: nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1))  # noqa: E731
    tried = tether.Replicas(build, n=3) if many else tether.Replicas(build, n=3)[0]
    record = tether.train(
        *(tried, methods.langevin(tried, lr=0.1), (x, y), BCE),
        steps=5,
        log_every=1,
        compiled=compiled,
        penalty=penalty,
    )
    plain = tether.Replicas(build, n=3)[0]
    opt, losses = methods.langevin(plain, lr=0.1), []
    for _ in range(5):
        opt.zero_grad()
        loss = BCE(plain(x), y)
        losses.append(loss.item())
        (loss + penalty(plain)).backward()
        opt.step()
    first = tried[0] if many else tried
    for a, b in zip(first.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert record.losses.reshape(5, -1)[:, 0].tolist() == pytest.approx(losses, rel=1e-5)


def test_penalties_that_are_refused(tmp_path):
    ens = tether.Replicas(lambda: nn.Linear(2, 1), n=3)
    run = (ens, methods.sgd(ens, lr=0.1), (X, Y), BCE)
    with pytest.raises(TypeError, match=r"penalty=0.1 must be a function of the model"):
        tether.train(*run, steps=2, penalty=0.1)
    with pytest.raises(ValueError, match="the penalty has 1 values, not one for each of 3"):
        tether.train(*run, steps=2, penalty=lambda ens: ens.weight.square().sum())
    path = tmp_path / "run.pt"
    tether.train(*run, steps=2, checkpoint=path, penalty=tether.soft(lambda w: w, 0.1))
    with pytest.raises(ValueError, match=r"another run .penalty="):
        tether.train(*run, steps=4, checkpoint=path, penalty=tether.soft(lambda w: w, 0.2))


def test_extreme_outputs_have_finite_compiled_losses():
    ens = Replicas(lambda: nn.Sequential(nn.Linear(1, 2), nn.Sigmoid(), nn.Linear(2, 1)), n=1)
    with torch.no_grad():
        for p in ens.parameters():
            p.fill_(500.0)
    x, y = torch.tensor([[1.0], [-3.0]]), torch.tensor([[0.0], [1.0]])
    losses = Perceptrons.make(ens, x, y, BCE, False)(torch.tensor([[0, 1]]))
    assert losses == pytest.approx(BCE(ens[0](x), y).item(), rel=1e-6)
    assert all(p.grad.isfinite().all() for p in ens.parameters())


@pytest.mark.parametrize("what", ["dropout", "layer norm", "another loss", "frozen", "float16 targets"])
def test_what_the_compiled_path_does_not_serve(what):
    layers = {"dropout": nn.Dropout(0.1), "layer norm": nn.LayerNorm(12)}
    ens = Replicas(lambda: nn.Sequential(nn.Linear(2, 12), layers.get(what, nn.ReLU()), nn.Linear(12, 1)), n=2)
    if what == "frozen":
        next(iter(ens.parameters())).requires_grad_(False)
    loss = functional.soft_margin_loss if what == "another loss" else BCE
    y = Y.half() if what == "float16 targets" else Y
    assert Perceptrons.make(ens, X, y, loss, False) is None


def test_batches_that_come_ready_made():
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=20)
    ens = Replicas(factory, n=2)
    record = tether.train(ens, methods.sgd(ens, lr=0.1), loader, BCE, steps=7, log_every=1)  # two epochs and one batch
    assert record.losses.shape == (7, 2)
    net, opt = build(factory, 0, 1), None
    opt = methods.sgd(net, lr=0.1)
    for x, y in [*loader, *loader, next(iter(loader))]:
        opt.zero_grad()
        BCE(net(x), y).backward()
        opt.step()
    same(ens[1], net, tol=1e-6)


def test_callbacks_are_recorded_row_by_row():
    ens = Replicas(factory, n=3)

    def accuracy(step, model, opt):
        with torch.no_grad():
            return {"accuracy": ((model(X) > 0) == (Y > 0.5)).float().mean((1, 2)), "step": step}

    record = tether.train(ens, methods.sgd(ens, lr=0.1), (X, Y), BCE, 30, 10, 10, [accuracy])
    assert record.metrics["accuracy"].shape == (3, 3)
    assert record.metrics["step"].tolist() == [10, 20, 30]
    assert "30 steps, loss" in str(record)


def test_targets_may_be_labels_for_the_binary_loss():
    nets = [build(factory, 0, 0) for _ in range(2)]
    for net, y in zip(nets, (Y, Y[:, 0].long()), strict=True):
        tether.train(net, methods.sgd(net, lr=0.1), (X, y), BCE, steps=5, batch=10)
    same(*nets)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_replica_that_diverges_is_stopped_and_named(compiled):
    lr = torch.tensor([0.1, 1e30, 0.1])
    ens, calm = Replicas(factory, n=3), Replicas(factory, n=3)
    with pytest.warns(UserWarning, match=r"replica 1 has .* not finite at step \d+ and is stopped: lower lr"):
        record = tether.train(ens, methods.sgd(ens, lr=lr), (X, Y), functional.mse_loss, 30, 10, 1, compiled=compiled)
    assert list(record.stopped) == [1]
    tether.train(calm, methods.sgd(calm, lr=0.1), (X, Y), functional.mse_loss, 30, 10, 1, compiled=compiled)
    for i in (0, 2):
        same(ens[i], calm[i], tol=1e-6)
    assert record.losses[:, [0, 2]].isfinite().all()


def test_a_single_net_that_diverges_ends_the_run():
    net = build(factory, 0, 0)
    with pytest.warns(UserWarning, match="not finite at step"):
        record = tether.train(net, methods.sgd(net, lr=1e30), (X, Y), functional.mse_loss, 50, 10, 1)
    assert list(record.stopped) == [0]
    assert record.steps[-1] < 50


# checkpoints

PROGRAM = """
import sys, torch, tether
from torch import nn
torch.manual_seed(0)
x, y = tether.data.spiral(200, turns=2, seed=0)
ens = tether.Replicas(
    lambda: nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1)), n=4)
opt = tether.methods.adlala(ens, lr=0.1, temperature=1e-4)
loss = nn.functional.binary_cross_entropy_with_logits
steps = int(sys.argv[2])
def slow(step, model, opt):
    print(step, flush=True)
record = tether.train(ens, opt, (x, y), loss, steps, 20, 20, [slow], checkpoint=sys.argv[1], checkpoint_seconds=0.05)
torch.save([record.losses, record.steps, *[p.data for p in ens.parameters()]], sys.argv[1] + ".end")
"""


def test_killed_at_any_moment_and_resumed_the_numbers_are_the_same(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    whole, parts = tmp_path / "whole.pt", tmp_path / "parts.pt"
    command = [sys.executable, str(program)]
    subprocess.run([*command, str(whole), "400"], check=True, capture_output=True, timeout=120)
    process = subprocess.Popen([*command, str(parts), "400"], stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if int(line) >= 100 and parts.exists():
            os.kill(process.pid, signal.SIGKILL)
            break
    process.stdout.close()
    process.wait(timeout=60)
    assert not (tmp_path / "parts.pt.end").exists()
    assert 0 < torch.load(parts, weights_only=True)["step"] < 400
    again = subprocess.run([*command, str(parts), "400"], check=True, capture_output=True, timeout=120, text=True)
    assert int(again.stdout.split()[0]) > 20  # it did not begin anew
    ends = [torch.load(f"{path}.end", weights_only=True) for path in (whole, parts)]
    assert ends[0][1] == ends[1][1]
    for a, b in zip(ends[0][2:] + ends[0][:1], ends[1][2:] + ends[1][:1], strict=True):
        assert torch.equal(a, b)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    ens = Replicas(factory, n=2)
    tether.train(ens, methods.sgd(ens, lr=0.1), (X, Y), BCE, 10, 10, checkpoint=tmp_path / "run.pt")
    with pytest.raises(ValueError, match="another run \\(batch=20 instead of 10"):
        tether.train(ens, methods.sgd(ens, lr=0.1), (X, Y), BCE, 10, 20, checkpoint=tmp_path / "run.pt")


def test_a_finished_run_is_not_run_again(tmp_path):
    path = tmp_path / "run.pt"
    ens = Replicas(factory, n=2)
    first = tether.train(ens, methods.sgd(ens, lr=0.1), (X, Y), BCE, 10, 10, 5, checkpoint=path)
    began = time.perf_counter()
    again = tether.train(ens, methods.sgd(ens, lr=0.1), (X, Y), BCE, 10, 10, 5, checkpoint=path)
    assert time.perf_counter() - began < 5
    assert torch.equal(first.losses, again.losses)
    longer = tether.train(ens, methods.sgd(ens, lr=0.1), (X, Y), BCE, 20, 10, 5, checkpoint=path)
    assert longer.steps == [5, 10, 15, 20]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"steps": -1}, "steps=-1 must be 0 or more"),
        ({"batch": 0}, "batch=0 must be between 1 and the number of points, 60"),
        ({"batch": 61}, "batch=61 must be between 1 and the number of points, 60"),
        ({"log_every": 0}, "log_every=0 must be 1 or more"),
        ({"each": True}, "must be tether.Replicas"),
        ({"data": (X, Y[:5])}, r"60 inputs but targets of shape \(5, 1\)"),
        ({"data": [(X, Y)], "batch": 5}, "taken as they are"),
        ({"data": []}, "the data hold no batch"),
    ],
)
def test_what_is_refused(options, match):
    net = build(factory, 0, 0)
    arguments = {"data": (X, Y), "loss": BCE, "steps": 2, **options}
    with pytest.raises(ValueError, match=match):
        tether.train(net, methods.sgd(net), **arguments)


# memory

MEMORY = """
import sys, torch, tether
from torch import nn
torch.set_num_threads(1)
n, widths, batch = 24, (784, 400, 10), 32
x, y = torch.randn(200, 784), torch.randint(0, 10, (200,))
small = tether.Replicas(lambda: nn.Sequential(nn.Linear(784, 5), nn.ReLU(), nn.Linear(5, 10)), 2)
loss = nn.functional.cross_entropy
compiled = sys.argv[1] == "True"
opt = tether.methods.langevin(small, lr=0.01, temperature=1e-6)
tether.train(small, opt, (x, y), loss, 3, batch, compiled=compiled)
def high_water():
    return 1024 * int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
before = high_water()
ens = tether.Replicas(lambda: nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 10)), n)
opt = tether.methods.langevin(ens, lr=0.01, temperature=1e-6)
tether.train(ens, opt, (x, y), loss, 5, batch, compiled=compiled)
peak = high_water() - before
parameters = sum(p.numel() for p in ens.parameters())
activations = n * batch * (784 + 2 * 400 + 10)
print(peak / (4 * (3 * parameters + activations)))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads the high-water mark from /proc")
@pytest.mark.parametrize("compiled", [True, False])
def test_the_peak_memory_is_that_of_what_must_be_held(compiled):
    # parameters, momenta, gradients and the activations of one batch, of all replicas
    command = [sys.executable, "-c", MEMORY, str(compiled)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1048576"}  # else glibc keeps some of what has been freed
    options = {"check": True, "capture_output": True, "text": True, "timeout": 120, "env": environment}
    ratio = float(subprocess.run(command, **options).stdout)
    assert 0.7 < ratio <= 1.5


@pytest.mark.parametrize("many", [False, True])
def test_lbfgs_takes_the_sum_of_all_losses(many):
    """Its closure must return one number, which its line search compares."""
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    model = Replicas(lambda: nn.Linear(2, 1), 3) if many else nn.Linear(2, 1)
    opt = torch.optim.LBFGS(model.parameters(), lr=0.5)
    record = tether.train(model, opt, (x, x.sum(1, keepdim=True)), functional.mse_loss, 5, progress=False)
    assert record.losses[-1].max() < 1e-6 * record.losses[0].min()
