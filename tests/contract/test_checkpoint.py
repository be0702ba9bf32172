"""Every method, stopped and resumed in every way torch has: the run goes on bit for bit, noise included."""

import copy
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from rows import ROWS, assert_same, closure_for, every_method, network, snapshot, train
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # one process is the intent

PLAIN = (str, int, float, bool, type(None))


def values(tree):
    """The leaves of nested dicts, lists and tuples."""
    if type(tree) is dict:
        for key, value in tree.items():
            assert type(key) in PLAIN
            yield from values(value)
    elif type(tree) in (list, tuple):
        for value in tree:
            yield from values(value)
    else:
        yield tree


@every_method
def test_the_state_is_plain_values_and_tensors(name):
    model = network(name)
    opt = ROWS[name].build(model)
    train(model, opt, 3)
    for value in values(opt.state_dict()):
        assert type(value) in (*PLAIN, torch.Tensor)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """For each method: where 100 steps lead without a stop, and with one at 50 and a new process."""
    folder = tmp_path_factory.mktemp("resume")
    saved, straight = {}, {}
    for name, row in ROWS.items():
        model = network(name)
        opt = row.build(model, seed=7)
        train(model, opt, 50)
        saved[name] = copy.deepcopy({"model": model.state_dict(), "optimizer": opt.state_dict()})
        train(model, opt, 50, start=50)
        straight[name] = snapshot(model, opt)
    torch.save(saved, folder / "saved.pt")
    script = Path(__file__).with_name("resume.py")
    environment = {**os.environ, "PYTHONHASHSEED": "4321", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, script, folder / "saved.pt", folder / "resumed.pt"]
    subprocess.run(command, check=True, env=environment, timeout=300)
    return straight, torch.load(folder / "resumed.pt")


@every_method
def test_save_at_50_load_in_a_new_process_and_go_on_to_100(name, resumed):
    straight, new_process = resumed
    assert_same(straight[name], new_process[name])
    assert int(straight[name]["step of group 0"]) == 100


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_loading_does_not_tie_two_runs_together(name, dtype):
    # torch casts the state to the parameters' dtype when it loads, so a state in another one would be cut short
    model, twin = network(name, dtype=dtype), network(name, dtype=dtype)
    opt, other = ROWS[name].build(model), ROWS[name].build(twin)
    train(model, opt, 3)
    state = opt.state_dict()
    twin.load_state_dict(model.state_dict())
    other.load_state_dict(state)
    before = snapshot(model, opt)
    train(twin, other, 3, start=3)
    assert_same(before, snapshot(model, opt))
    train(model, opt, 3, start=3)
    assert_same(snapshot(model, opt), snapshot(twin, other))


@every_method
def test_loading_into_a_run_that_has_gone_elsewhere(name):
    model = network(name)
    opt = ROWS[name].build(model)
    train(model, opt, 3)
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, buffer)
    train(model, opt, 4, start=3)
    there = snapshot(model, opt)
    train(model, opt, 2, start=70)
    buffer.seek(0)
    saved = torch.load(buffer)
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["optimizer"])
    train(model, opt, 4, start=3)
    assert_same(there, snapshot(model, opt))


@every_method
@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_a_copy_mid_run_goes_on_alike_and_alone(name, way):
    model = network(name)
    opt = ROWS[name].build(model, on_nonfinite="skip")
    train(model, opt, 4)
    run = (model, opt)
    twin, other = copy.deepcopy(run) if way == "deepcopy" else pickle.loads(pickle.dumps(run))
    before = snapshot(model, opt)
    train(twin, other, 4, start=4)
    assert_same(before, snapshot(model, opt))
    train(model, opt, 4, start=4)
    assert_same(snapshot(model, opt), snapshot(twin, other))
    assert other.describe() == opt.describe()
    other.step(lambda: _ruin(twin))  # on_nonfinite went along
    assert "1 skipped" in other.describe()


def _ruin(model):
    for param in model.parameters():
        param.grad = torch.full_like(param, float("nan"))


@every_method
def test_a_copy_of_a_fresh_optimizer(name):
    model = network(name)
    opt = ROWS[name].build(model)
    twin, other = copy.deepcopy((model, opt))
    for m, o in ((model, opt), (twin, other)):
        train(m, o, 3)
    assert_same(snapshot(model, opt), snapshot(twin, other))


# torch.distributed.checkpoint, on one process

flat_or_nested = pytest.mark.parametrize("flatten", [False, True], ids=["nested", "flat"])


def distributed_state(model, opt, flatten):
    options = StateDictOptions(flatten_optimizer_state_dict=flatten)
    return {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, opt, options=options)}


@every_method
@flat_or_nested
@pytest.mark.parametrize("steps", [0, 4])
def test_a_distributed_save_does_not_change_the_run(name, flatten, steps, tmp_path):
    model, twin = network(name), network(name)
    opt, other = ROWS[name].build(model), ROWS[name].build(twin)
    train(model, opt, steps)
    train(twin, other, steps)
    for o in (opt, other):
        o.zero_grad()  # what is left then makes torch step at lr = 0 where there is no state
    before = snapshot(model, opt)
    dcp.save(distributed_state(model, opt, flatten), checkpoint_id=tmp_path, no_dist=True)
    after = snapshot(model, opt)
    assert_same(before, {key: after[key] for key in before})
    train(model, opt, 4, start=steps)
    train(twin, other, 4, start=steps)
    assert_same(snapshot(model, opt), snapshot(twin, other))


@every_method
@flat_or_nested
def test_a_distributed_load_goes_on_bit_for_bit(name, flatten, tmp_path):
    model, twin = network(name), network(name, seed=99)
    opt, other = ROWS[name].build(model, seed=7), ROWS[name].build(twin, seed=99)
    train(model, opt, 4)
    dcp.save(distributed_state(model, opt, flatten), checkpoint_id=tmp_path, no_dist=True)
    state = distributed_state(twin, other, flatten)
    try:
        dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
    except dcp.api.CheckpointException as error:  # no Exception: it would end the whole test run
        pytest.fail(str(error)[-300:])
    set_model_state_dict(twin, state["model"])
    options = StateDictOptions(flatten_optimizer_state_dict=flatten)
    set_optimizer_state_dict(twin, other, state["optimizer"], options=options)
    train(model, opt, 4, start=4)
    train(twin, other, 4, start=4)
    assert_same(snapshot(model, opt), snapshot(twin, other))


@every_method
def test_saving_with_gradients_at_hand(name):
    model, twin = network(name), network(name)
    opt, other = ROWS[name].build(model), ROWS[name].build(twin)
    closure_for(model, opt, 0)()
    grads = [param.grad.clone() for param in model.parameters()]
    get_optimizer_state_dict(model, opt)
    opt.state_dict()
    assert all(torch.equal(param.grad, grad) for param, grad in zip(model.parameters(), grads, strict=True))
    train(model, opt, 2)
    train(twin, other, 2)
    assert_same(snapshot(model, opt), snapshot(twin, other))


@pytest.mark.parametrize("saved", [None, 1, 3])
def test_the_noise_of_another_generator_is_refused(saved):
    net = network("langevin")
    opt = ROWS["langevin"].build(net)
    train(net, opt, 3)
    state, before = opt.state_dict(), snapshot(net, opt)
    for group in state["param_groups"]:
        assert group.pop("stream") == 2
        if saved is not None:
            group["stream"] = saved
    with pytest.raises(ValueError, match=f"version {saved or 1} of the generator, this tether by version 2.*saved it"):
        opt.load_state_dict(state)
    assert_same(snapshot(net, opt), before)
