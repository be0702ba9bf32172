"""Clients: a run that is killed and resumed ends at the bits of one that never stopped."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import killed
import pytest
import small

HERE = Path(__file__).parent
EXAMPLES = {  # how the examples end
    "trainer_cases": r"step 40, violation \d\.\de-0[678]$",
    "accelerate_cases": r"step 200, largest weight [01]\.\d\d$",
    "peft_cases": r"2114 weights trained, violation \d\.\de-0[678]$",
    "lightning_cases": r"epoch 20, (\d+) % of the points are right$",
}


def environment(folder):
    """Offline, on two cores, with data."""
    data = os.environ.get("TETHER_DATA") or str(small.made_up(folder / "data"))
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    ours = {"TETHER_DATA": data, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return {**os.environ, **ours, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@pytest.mark.parametrize(
    ("package", "modules"),
    [("peft", ["trainer_cases", "accelerate_cases", "peft_cases"]), ("lightning", ["lightning_cases"])],
)
def test_killed_and_resumed_ends_at_the_same_bits(package, modules, tmp_path):
    pytest.importorskip(package)
    command = [sys.executable, str(HERE / "killed.py"), str(tmp_path), *modules]
    done = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads((tmp_path / "report.json").read_text())
    for name in modules:
        played = report.pop(f"{name}: example")
        assert played["exit code"] == 0, done.stderr[-4000:]
        assert re.search(EXAMPLES[name], played["output"].strip())
    assert report
    fine = {"steps": [killed.STEPS, killed.STEPS - killed.SAVE], "other bits": []}
    assert {case: found for case, found in report.items() if found != fine} == {}, done.stderr[-4000:]


def test_ranks_that_torchrun_starts_again_end_at_the_same_bits(tmp_path):
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
    ]
    # else restarted ranks may read the addresses of the dead ones
    rest = {"env": environment(tmp_path) | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}, "cwd": tmp_path}
    rest |= {"capture_output": True, "text": True, "timeout": 900}
    done = subprocess.run([*launch, str(HERE / "torchrun_cases.py"), str(tmp_path)], **rest)
    assert done.returncode == 0, done.stderr[-4000:]
    for rank in range(2):
        report = json.loads((tmp_path / f"report {rank}.json").read_text())
        assert (report.pop("life"), report.pop("dead")) == (1, True)
        assert len(report) == 10
        assert {run: other for run, other in report.items() if other} == {}
    example = HERE.parents[1] / "examples" / "with_torchrun.py"
    done = subprocess.run([*launch, str(example), str(tmp_path)], **rest)
    assert done.returncode == 0, done.stderr[-4000:]
    # twice if a rank did not survive the end of the other one: torchrun then starts both again
    assert re.fullmatch(r"((rank [01], step 100, violation \d\.\de-\d\d\n){2}){1,2}", done.stdout)
