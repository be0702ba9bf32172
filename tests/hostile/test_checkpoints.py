"""Checkpoints in real hands: of another run, cut, damaged, foreign, killed in the middle of being written."""

import os
import random
import resource
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset

import tether
from tether import methods
from tether.loop import resume

F = nn.functional
X = torch.linspace(-1, 1, 40).unsqueeze(1)
Y = (3 * X).sin()


def net(activation=nn.Tanh, width=6):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, width), activation(), nn.Linear(width, 1))


def replicas(activation=nn.Tanh, seed=0):
    return tether.Replicas(partial(net, activation), 2, seed=seed)


def langevin(model, **fields):
    return tether.Optimizer(model, **{"lr": 0.1, "word": "BAOAB", "temperature": 1e-4, **fields})


def values(model):
    return [p.detach().clone() for p in model.parameters()]


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def finished(path, steps=10, **options):
    """A run that has been made."""
    model = net()
    arguments = {"data": (X, Y), "loss": F.mse_loss, "batch": 10, **options}
    record = tether.train(model, langevin(model), steps=steps, checkpoint=path, **arguments)
    return model, record


# whose checkpoint it is


def penalised(strength):
    return lambda out, y: F.mse_loss(out, y) + strength * out.square().mean()


CHANGES = {
    "lr": ({"opt": {"lr": 0.2}}, "lr=0.2 instead of 0.1"),
    "temperature": ({"opt": {"temperature": 1e-3}}, "temperature=0.001 instead of 0.0001"),
    "word": ({"opt": {"word": "OBABO"}}, "word='OBABO' instead of 'BAOAB'"),
    "friction": ({"opt": {"friction": 2.0}}, "friction=2.0 instead of 1.0"),
    "surface": ({"opt": {"on": tether.Circle(5.0)}}, r"on='Circle\(.*instead of 'Free\(\)'"),
    "noise": ({"opt": {"seed": 1}}, "seed=1 instead of 0"),
    "inputs": ({"data": (X + 1e-6, Y)}, r"inputs=\(40, 1\) float32 #\w+ instead of \(40, 1\) float32 #\w+"),
    "one target": ({"data": (X, Y + torch.eye(40)[:, :1])}, "targets="),
    "points": ({"data": (X[:30], Y[:30])}, r"inputs=\(30, 1\)"),
    "loss": ({"loss": F.l1_loss}, "loss='l1_loss #.* instead of 'mse_loss #"),
    "batch": ({"batch": 20}, "batch=20 instead of 10"),
    "replacement": ({"replacement": True}, "replacement=True instead of False"),
    "log_every": ({"log_every": 7}, "log_every=7 instead of 1"),
    "activation": ({"model": partial(net, nn.ReLU)}, "layers="),
    "width": ({"model": partial(net, width=7)}, r"shape of '0.weight'=\(7, 1\) torch.float32 instead of \(6, 1\)"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_checkpoint_of_another_run_is_refused_by_the_difference(change, tmp_path):
    path = tmp_path / "run.pt"
    finished(path)
    given, message = CHANGES[change]
    given = dict(given)
    model = given.pop("model", net)()
    opt = langevin(model, **given.pop("opt", {}))
    before, memory = values(model), path.read_bytes()
    arguments = {"data": (X, Y), "loss": F.mse_loss, "batch": 10, **given}
    for steps in (10, 20):
        with pytest.raises(ValueError, match=rf"run\.pt is the checkpoint of another run \(.*{message}"):
            tether.train(model, opt, steps=steps, checkpoint=path, **arguments)
    assert equal(before, values(model))
    assert opt.param_groups[0]["step"] == 0
    assert path.read_bytes() == memory


def test_kinds_of_optimizers_and_losses_are_told_apart(tmp_path):
    path, model = tmp_path / "run.pt", net()
    run = partial(tether.train, model, data=(X, Y), steps=5, checkpoint=path)
    run(torch.optim.Adam(model.parameters(), lr=0.01), loss=penalised(0.1))
    with pytest.raises(ValueError, match="optimizer='SGD' instead of 'Adam'"):
        run(torch.optim.SGD(model.parameters(), lr=0.01), loss=penalised(0.1))
    with pytest.raises(ValueError, match=r"betas=\[0.8, 0.9\] instead of \[0.9, 0.999\]"):
        run(torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.8, 0.9)), loss=penalised(0.1))
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    for other in (penalised(0.2), lambda out, y: F.mse_loss(out, y), nn.SmoothL1Loss(beta=2.0), partial(F.mse_loss)):
        with pytest.raises(ValueError, match="loss="):
            run(adam, loss=other)
    assert run(adam, loss=penalised(0.1)).steps == [1, 2, 3, 4, 5]


def test_modules_of_losses_are_told_apart_by_what_is_set(tmp_path):
    path, model = tmp_path / "run.pt", net()
    run = partial(tether.train, model, data=(X, Y), steps=2, checkpoint=path)
    run(langevin(model), loss=nn.HuberLoss(delta=1.0))
    with pytest.raises(ValueError, match=r"HuberLoss\(delta=2.0.*HuberLoss\(delta=1.0"):
        run(langevin(model), loss=nn.HuberLoss(delta=2.0))


def test_a_loss_may_keep_a_diary_and_have_weights_of_its_own(tmp_path):
    path, model, diary = tmp_path / "run.pt", net(), []
    scale = nn.Parameter(torch.ones(1))

    def loss(out, y):
        diary.append(0)
        return scale * F.mse_loss(out, y)

    opt = torch.optim.SGD([*model.parameters(), scale], lr=0.1)
    for steps in (5, 9):
        tether.train(model, opt, (X, Y), loss, steps, checkpoint=path)
    assert len(diary) == 9


@dataclass
class Scaled:
    by: float

    def __call__(self, out, y):
        return self.by * F.mse_loss(out, y)


def test_losses_that_are_objects_are_told_apart(tmp_path):
    path, model = tmp_path / "run.pt", net()
    run = partial(tether.train, model, data=(X, Y), steps=5, checkpoint=path)
    run(langevin(model), loss=Scaled(1.0))
    run(langevin(model), loss=Scaled(1.0))
    with pytest.raises(ValueError, match=r"loss='Scaled\(by=2.0\)' instead of 'Scaled\(by=1.0\)'"):
        run(langevin(model), loss=Scaled(2.0))


def test_replicas_of_another_seed_and_loaders_of_other_points(tmp_path):
    first, second = replicas(), replicas(seed=1)
    tether.train(first, langevin(first), (X, Y), F.mse_loss, 5, checkpoint=tmp_path / "a.pt")
    with pytest.raises(ValueError, match="seed of the replicas=1 instead of 0"):
        tether.train(second, langevin(second), (X, Y), F.mse_loss, 5, checkpoint=tmp_path / "a.pt")
    model, path = net(), tmp_path / "b.pt"

    def loader(y, size=10, shuffle=False):
        return DataLoader(TensorDataset(X, y), batch_size=size, shuffle=shuffle)

    tether.train(model, langevin(model), loader(Y), F.mse_loss, 5, checkpoint=path)
    for other in (loader(2 * Y), loader(Y, 20), loader(Y, shuffle=True)):
        with pytest.raises(ValueError, match=r"data=.* instead of"):
            tether.train(model, langevin(model), other, F.mse_loss, 5, checkpoint=path)


def test_a_file_of_more_steps_is_refused(tmp_path):
    path = tmp_path / "run.pt"
    finished(path, steps=10)
    model = net()
    with pytest.raises(ValueError, match="has made 10 steps, more than steps=4"):
        tether.train(model, langevin(model), (X, Y), F.mse_loss, 4, 10, checkpoint=path)
    assert equal(values(model), values(net()))


@pytest.mark.parametrize("log_every", [None, 50])
def test_a_run_can_be_extended(log_every, tmp_path):
    path = tmp_path / "run.pt"
    finished(path, steps=150, log_every=log_every)
    whole, expected = net(), {}

    def note(step, model, opt):
        expected[step] = values(model)

    tether.train(whole, langevin(whole), (X, Y), F.mse_loss, 450, 10, log_every=1, callbacks=[note])
    for steps in (350, 450):
        model = net()
        record = tether.train(model, langevin(model), (X, Y), F.mse_loss, steps, 10, log_every, checkpoint=path)
        assert equal(expected[steps], values(model))
        assert record.steps == list(range(log_every or 1, steps + 1, log_every or 1))
        assert len(record.losses) == len(record.steps)


def test_lr_that_changes_on_the_way_leaves_the_checkpoint_usable(tmp_path):
    path = tmp_path / "run.pt"

    def decay(step, model, opt):
        for group in opt.param_groups:
            group["lr"] = 0.1 * 0.9**step

    def run(steps, model, opt, checkpoint=path):
        return tether.train(model, opt, (X, Y), F.mse_loss, steps, 10, 1, [decay], checkpoint=checkpoint)

    whole = net()
    run(9, whole, langevin(whole), None)
    for steps in (3, 3, 6):  # each by a new process, so to speak
        model = net()
        run(steps, model, langevin(model))
    model = net()
    opt = langevin(model)
    run(6, model, opt)
    run(9, model, opt)  # and by the optimizer that has gone so far
    assert equal(values(model), values(whole))
    with pytest.raises(ValueError, match=r"lr=0\.0387\d* instead of 0\.1"):
        run(9, model, langevin(model, lr=0.1 * 0.9**9))


def test_a_run_that_diverged_is_over(tmp_path):
    path, records = tmp_path / "run.pt", []
    for _ in range(2):
        model = net()
        opt = tether.Optimizer(model, lr=1e30)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            records.append(tether.train(model, opt, (X, Y), F.mse_loss, 50, 10, 1, checkpoint=path))
        assert bool(told) == (len(records) == 1)
    assert records[0].stopped == records[1].stopped
    assert list(records[0].stopped) == [0]
    assert torch.equal(records[0].losses.nan_to_num(), records[1].losses.nan_to_num())
    assert records[0].steps == records[1].steps


def test_samples_with_another_burn_in_are_refused(tmp_path):
    path, model = tmp_path / "run.pt", net()
    run = partial(tether.sample, model, data=(X, Y), loss=F.mse_loss, thin=2, checkpoint=path)
    assert run(langevin(model), draws=5, burn_in=4)["0.bias"].shape == (1, 5, 6)
    assert run(langevin(model), draws=8, burn_in=4)["0.bias"].shape == (1, 8, 6)
    with pytest.raises(ValueError, match="another burn_in or other quantities"):
        run(langevin(model), draws=7, burn_in=6)
    with pytest.raises(ValueError, match="another burn_in or other quantities"):
        run(langevin(model), draws=8, burn_in=4, quantities={"norm": lambda m: m[0].weight.norm()})


# shuffled loaders


class Jittered(Dataset):
    """Points that are moved a little by all the generators there are."""

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i] + 0.01 * (torch.rand(1) + random.random() + np.random.rand()).float(), Y[i]


POINTS = TensorDataset(X, Y)
LOADERS = {
    "shuffled": lambda: DataLoader(POINTS, 12, shuffle=True),
    "own generator": lambda: DataLoader(POINTS, 12, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "sampler": lambda: DataLoader(POINTS, 12, sampler=RandomSampler(POINTS, replacement=True, num_samples=50)),
    "sampler's generator": lambda: DataLoader(
        POINTS, 12, sampler=RandomSampler(POINTS, True, 50, generator=torch.Generator().manual_seed(3))
    ),
    "batch sampler": lambda: DataLoader(
        POINTS, batch_sampler=BatchSampler(RandomSampler(POINTS, generator=torch.Generator().manual_seed(1)), 12, False)
    ),
    "workers": lambda: DataLoader(Jittered(), 12, shuffle=True, num_workers=2),
    "augmented": lambda: DataLoader(Jittered(), 12, shuffle=True),
    "a list": lambda: list(DataLoader(POINTS, 12)),
    "tensors": lambda: (X, Y),
}


class Killed(BaseException):
    pass


def dropped():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 6), nn.Dropout(0.3), nn.Tanh(), nn.Linear(6, 1))


def seeded(seed):
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


# an epoch has 4 batches, or 5; workers take their time
@pytest.mark.parametrize(
    ("kind", "at"), [(kind, at) for kind in LOADERS for at in (1, 3, 4, 5, 9) if kind != "workers" or at == 5]
)
def test_a_shuffled_loader_is_resumed_exactly(kind, at, tmp_path):
    def run(seed, **options):
        model = dropped()
        opt = langevin(model)
        loader = LOADERS[kind]()
        seeded(seed)
        return model, tether.train(model, opt, loader, F.mse_loss, 11, log_every=1, **options)

    def stop(step, *_):
        if step == at + 1:
            raise Killed

    whole, record = run(7)
    file = {"checkpoint": tmp_path / "run.pt", "checkpoint_seconds": 0.0}
    with pytest.raises(Killed):
        run(7, callbacks=[stop], **file)
    assert torch.load(tmp_path / "run.pt", weights_only=True)["step"] == at
    model, again = run(8, **file)  # another seed: the file knows better
    assert torch.equal(record.losses, again.losses)
    assert equal(values(whole), values(model))
    ended = torch.rand(3), random.random(), np.random.rand()
    run(7)
    expected = torch.rand(3), random.random(), np.random.rand()
    assert torch.equal(ended[0], expected[0])
    assert ended[1:] == expected[1:]


def test_workers_that_outlive_an_epoch_are_refused(tmp_path):
    model = net()
    loader = DataLoader(POINTS, 10, num_workers=1, persistent_workers=True)
    with pytest.raises(ValueError, match="persistent_workers=False"):
        tether.train(model, langevin(model), loader, F.mse_loss, 5, checkpoint=tmp_path / "run.pt")


def test_random_subsets_and_slow_parts_are_resumed_exactly(tmp_path):
    makers = {
        "subset": lambda m: methods.random_subset(m, lr=0.1, k=3, probabilities={"*": 0.5}),
        "multirate": lambda m: methods.multirate_sgd(m, fast="2.*", k=3, lr=0.1),
    }
    for name, make in makers.items():
        path = tmp_path / name
        whole = net()
        tether.train(whole, make(whole), (X, Y), F.mse_loss, 23, 10, 1)
        for steps in range(1, 24, 2):
            model = net()
            tether.train(model, make(model), (X, Y), F.mse_loss, steps, 10, 1, checkpoint=path)
        assert equal(values(whole), values(model)), name


def killed_at(save, run):
    """Let a process of its own be killed in the middle of writing its checkpoint number `save`."""
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)
        whole, saves = torch.save, []

        def cut(state, file):
            saves.append(0)
            if len(saves) == save:
                file.write(b"half of it")
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            whole(state, file)

        torch.save = cut
        try:
            run()
        finally:
            os._exit(1)  # whatever happens, this is no second pytest
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_while_it_writes_a_checkpoint(tmp_path):
    path = tmp_path / "run.pt"

    def run(**file):
        model = dropped()
        loader, opt = DataLoader(POINTS, 12, shuffle=True), langevin(model)
        seeded(7)
        return model, tether.train(model, opt, loader, F.mse_loss, 30, log_every=1, **file).losses

    whole, losses = run()
    file = {"checkpoint": path, "checkpoint_seconds": 0.0}
    for save, reached in ((9, 8), (1, 8), (12, 19)):  # again and again
        assert killed_at(save, partial(run, **file)) == -signal.SIGKILL
        assert len(list(tmp_path.glob("run.pt.*.part"))) == 1
        assert torch.load(path, weights_only=True)["step"] == reached
    model, again = run(**file)
    assert [x.name for x in tmp_path.iterdir()] == ["run.pt"]
    assert torch.equal(losses, again)
    assert equal(values(whole), values(model))


# files


@pytest.mark.parametrize("kind", ["under a file", "a folder", "no such device"])
def test_a_path_that_cannot_be_written_is_found_out_at_the_start(kind, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    paths = {
        "under a file": tmp_path / "file" / "run.pt",
        "a folder": tmp_path / "folder",
        "no such device": "/proc/run",
    }
    model = net()
    with pytest.raises(OSError, match=r"checkpoint='.*' (cannot be written|is a folder).*: give a"):
        tether.train(model, langevin(model), (X, Y), F.mse_loss, 5, checkpoint=paths[kind])
    assert equal(values(model), values(net()))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    model = net()
    with pytest.raises(PermissionError, match="cannot be written"):
        tether.train(model, langevin(model), (X, Y), F.mse_loss, 5, checkpoint=tmp_path / "run.pt")


@pytest.mark.parametrize("width", [6, 9_000])  # torch hides what went wrong with large tensors
def test_a_full_disk_does_not_end_the_run(tmp_path, width):
    path = tmp_path / "run.pt"
    model = net(width=width)
    tether.train(model, langevin(model), (X, Y), F.mse_loss, 4, 10, checkpoint=path)
    good = path.read_bytes()
    model = net(width=width)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(good) // 2, hard))
    try:
        with pytest.warns(UserWarning, match=r"run\.pt could not be written at step 8 .*File too large"):
            record = tether.train(model, langevin(model), (X, Y), F.mse_loss, 8, 10, checkpoint=path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(record.losses) == 8
    assert path.read_bytes() == good
    assert [x.name for x in tmp_path.iterdir()] == ["run.pt"]


def test_damaged_files_are_refused_and_change_nothing(tmp_path):
    path = tmp_path / "run.pt"
    finished(path)
    good = path.read_bytes()
    damaged = [good[:k] for k in (0, 1, 100, len(good) // 2, len(good) - 1)]
    damaged += [good + b"x", b"some text", b"x" * len(good)]
    for i in range(0, len(good), 199):
        flipped = bytearray(good)
        flipped[i] ^= 1 << (i % 8)
        damaged.append(bytes(flipped))
    model = net()
    opt = langevin(model)
    before, state = values(model), torch.get_rng_state()
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"run\.pt is (cut short|damaged).*remove it to begin anew"):
            tether.train(model, opt, (X, Y), F.mse_loss, 10, 10, checkpoint=path)
        assert path.read_bytes() == content
    assert equal(before, values(model))
    assert torch.equal(state, torch.get_rng_state())
    assert opt.param_groups[0]["step"] == 0
    path.write_bytes(good)
    assert tether.train(model, opt, (X, Y), F.mse_loss, 10, 10, checkpoint=path).steps[-1] == 10


def test_the_files_of_others_are_refused(tmp_path):
    path, model = tmp_path / "run.pt", net()
    torch.save(model.state_dict(), path)
    with pytest.raises(ValueError, match=r"run\.pt is cut short, or no checkpoint of tether\.train"):
        tether.train(model, langevin(model), (X, Y), F.mse_loss, 10, checkpoint=path)
    resume.write_run(path, {"something": 1})
    with pytest.raises(ValueError, match=r"run\.pt is no checkpoint of a run"):
        tether.train(model, langevin(model), (X, Y), F.mse_loss, 10, checkpoint=path)


@pytest.mark.parametrize("kind", ["torch", "tether"])
def test_what_the_optimizer_refuses_leaves_the_model_alone(kind, tmp_path):
    path, make = tmp_path / "run.pt", langevin
    if kind == "torch":
        make = lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)  # noqa: E731
    model = net()
    tether.train(model, make(model), (X, Y), F.mse_loss, 10, checkpoint=path)
    model = net()
    opt = make(model)

    def refuse(*_):
        if not done:
            done.append(0)
            raise RuntimeError("not like this")

    done = []
    opt.register_load_state_dict_post_hook(refuse)
    before = values(model)
    with pytest.raises(ValueError, match=r"run\.pt does not fit this model and optimizer \(not like this\)"):
        tether.train(model, opt, (X, Y), F.mse_loss, 10, checkpoint=path)
    assert equal(before, values(model))
    assert not opt.state_dict()["state"]


def test_what_killed_runs_left_is_removed_and_nothing_else(tmp_path):
    path = tmp_path / "run.pt"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead, alive = f"run.pt.{gone.pid}.part", f"run.pt.{os.getppid()}.part"
    kept = {alive, "run.pt.backup", "run.pt.2024", "run.pt.old.part", f"other.pt.{gone.pid}.part"}
    for name in {dead, *kept}:
        (tmp_path / name).write_text("")
    finished(path)
    assert {x.name for x in tmp_path.iterdir()} == {"run.pt", *kept}


def test_file_and_folder_reach_the_disk(tmp_path, monkeypatch):
    order = []
    fsync, replace = os.fsync, os.replace

    def watched(handle):
        order.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        fsync(handle)

    def taking_place(self, target):
        order.append("replace")
        replace(self, target)

    monkeypatch.setattr(resume.os, "fsync", watched)
    monkeypatch.setattr(resume.Path, "replace", taking_place)
    finished(tmp_path / "run.pt")
    assert order == ["file", "replace", "folder"]
