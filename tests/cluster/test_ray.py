"""Studies on a Ray cluster: nothing is lost with a node, and every piece has the bits it has alone."""

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import tether
from tether_studies.lab import Lab
from tether_studies.study import Study

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # all of Ray on the loopback address
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (Ray spells it so; nice 15 starves on a busy machine)
ray = pytest.importorskip("ray")
from ray import cloudpickle  # noqa: E402
from ray.cluster_utils import Cluster as Machines  # noqa: E402

from tether_studies.cluster.tasks import Cluster  # noqa: E402

STEPS = 60


@dataclass(frozen=True)
class Config:
    diary: str = ""  # a folder where pieces write down which steps they made
    nap: float = 0.0  # seconds at every second step, so that there is a middle in which a node can be killed


def network():
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))


def learn(config, name, place):
    """`tether.train` as everywhere, here inside a Ray task."""

    def watch(step, nets, opt):
        with (Path(config.diary) / name).open("a") as diary:
            diary.write(f"{step} {os.getpid()}\n")
        time.sleep(config.nap)

    nets = tether.Replicas(network, 3)
    opt = tether.methods.adlala(nets, lr=0.1, seed=int(name[-1]))
    options = {"checkpoint": place, "checkpoint_seconds": 0.5, "progress": False}
    record = tether.train(nets, opt, tether.data.spiral(100), bce, STEPS, 10, 2, [watch], **options)
    weights = torch.cat([p.detach().flatten() for p in nets.parameters()])
    return {"losses": record.losses, "weights": weights, "chance": torch.randn(3), "name": name}


def trained(config, lab):
    names = [f"net {i}" for i in range(4)]
    return lab.pieces({name: lambda name=name: learn(config, name, lab.checkpoint(name)) for name in names})


STUDY = Study("trained", "networks learn", "nobody", Config, trained)
cloudpickle.register_pickle_by_value(__import__(__name__))  # the nodes do not know this file


def run(folder, where=None, nap=0.0):
    """The study in a folder, here or there; returns its pieces as they were written."""
    diary = folder / "diary"
    diary.mkdir(parents=True)
    lab = Lab(STUDY, Config(str(diary), nap), folder / "run", seed=0)
    lab.where, seen = where or lab.where, []
    lab.watch = lambda done, total, text: seen.append((done, total, text))
    lab.open()
    try:
        trained(lab.config, lab)
    finally:
        lab.close()
    assert seen[-1] == (4, 4, "")
    return {path.name: path.read_bytes() for path in (folder / "run" / "pieces").iterdir()}


def steps(folder, name):
    """The steps that each process made of a piece, in the order of their beginning."""
    made = {}
    for line in (folder / "diary" / name).read_text().splitlines():
        step, process = line.split()
        made.setdefault(process, []).append(int(step))
    return list(made.values())


@pytest.fixture(scope="module")
def machines():
    """A cluster of two nodes with a processor each, and this process connected to the first."""
    made = Machines(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    ray.init(made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def test_a_node_that_is_killed_loses_nothing(machines, tmp_path, capsys):
    """Both nodes work; the second is killed after a checkpoint. Its piece goes on from there on the other one."""
    alone = run(tmp_path / "alone")
    (lost,) = machines.worker_nodes
    killed = []

    def kill():
        pieces = tmp_path / "cluster" / "run" / "pieces"
        while len(begun := list(pieces.glob("*.checkpoint"))) < 2:
            time.sleep(0.05)
        killed.extend(path.stem for path in begun)
        machines.remove_node(lost, allow_graceful=False)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    found = run(tmp_path / "cluster", Cluster(machines.address), nap=0.2)
    thread.join(1)
    assert found == alone  # the same bits, and no checkpoint is left
    again = [name for name in alone if len(steps(tmp_path / "cluster", Path(name).stem)) > 1]
    assert len(again) == 1
    (name,) = (Path(name).stem for name in again)
    first, second = steps(tmp_path / "cluster", name)
    assert name in killed
    assert 2 < second[0] <= first[-1] + 2  # from a checkpoint, not from the start
    assert second[-1] == STEPS
    assert f"trained: {name} was lost with 127.0.0.1 and begins again on 127.0.0.1" in capsys.readouterr().err
