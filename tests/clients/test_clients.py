"""Clients: a run that is killed and resumed ends at the bits of one that never stopped."""

import json
import os
import re
import signal
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


def launched(command, folder, seconds=300, **more):
    """Run a command in a session of its own. If it hangs, all that it has started ends with it: they hold the pipes."""
    rest = {"cwd": folder, "env": environment(folder) | more, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, start_new_session=True, **rest) as running:
        try:
            said, trouble = running.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            raise AssertionError(f"{command} hangs:\n{running.communicate()[1][-4000:]}") from None
    assert running.returncode == 0, trouble[-4000:]
    return said, trouble


@pytest.mark.parametrize(
    ("package", "modules"),
    [("peft", ["trainer_cases", "accelerate_cases", "peft_cases"]), ("lightning", ["lightning_cases"])],
)
def test_killed_and_resumed_ends_at_the_same_bits(package, modules, tmp_path):
    pytest.importorskip(package)
    command = [sys.executable, str(HERE / "killed.py"), str(tmp_path), *modules]
    _, trouble = launched(command, tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    for name in modules:
        played = report.pop(f"{name}: example")
        assert played["exit code"] == 0, trouble[-4000:]
        assert re.search(EXAMPLES[name], played["output"].strip())
    assert report
    fine = {"steps": [killed.STEPS, killed.STEPS - killed.SAVE], "other bits": []}
    assert {case: found for case, found in report.items() if found != fine} == {}, trouble[-4000:]


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
    rest = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # else restarted ranks may read the addresses of the dead ones
    launched([*launch, str(HERE / "torchrun_cases.py"), str(tmp_path)], tmp_path, **rest)
    for rank in range(2):
        report = json.loads((tmp_path / f"report {rank}.json").read_text())
        assert (report.pop("life"), report.pop("dead")) == (1, True)
        assert len(report) == 10
        assert {run: other for run, other in report.items() if other} == {}
    example = HERE.parents[1] / "examples" / "with_torchrun.py"
    said, _ = launched([*launch, str(example), str(tmp_path)], tmp_path, **rest)
    assert re.fullmatch(r"(rank [01], step 100, violation \d\.\de-\d\d\n){2}", said)
