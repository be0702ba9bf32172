"""A run that is killed and resumed, beside one that never stopped; each in a process of its own.

`python killed.py FOLDER MODULE...` imports a client once. Then each case of the modules' CASES is forked three times: a
whole run, one that SIGKILLs itself between two checkpoints, and one that resumes it. FOLDER/report.json says how they
compare. A case is a function of the folder of its checkpoints and of the step at which to die, or None; it resumes
where the folder holds a checkpoint, and returns the model and the optimizer. EXAMPLE is a program, run in the same way.
"""

import contextlib
import importlib
import json
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path

import torch

STEPS, SAVE, DIE = 10, 4, 6  # all of them; a checkpoint at each of; the step that is the last


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(folder, job, *arguments):
    """How a job ends in a forked process: its exit code, or minus the signal that killed it. It prints to a file."""
    folder.mkdir(parents=True, exist_ok=True)
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        with open(folder / "output.txt", "a") as file, contextlib.redirect_stdout(file):
            job(*arguments)
            code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def bits(model, opt):
    """Everything that a run leaves behind, by name."""
    found = {name: x.detach().clone() for name, x in model.named_parameters()}
    packed = opt.state_dict()
    for i, own in packed["state"].items():
        found |= {f"state {i} {key}": value for key, value in own.items()}
    for i, group in enumerate(packed["param_groups"]):
        found |= {f"group {i} {key}": torch.as_tensor(group[key]) for key in ("step", "lr", "thermostat")}
    return found


def counted(opt, saved):
    """Count the steps of this process."""
    saved["steps"] = 0
    opt.register_step_post_hook(lambda *_: saved.update(steps=saved["steps"] + 1))
    return opt


def ended(case, folder, at):
    saved = {}
    model, opt = case(folder, at, lambda opt: counted(opt, saved))
    torch.save(saved | {"bits": bits(model, opt)}, folder / "end.pt")


def compared(case, folder):
    """How a killed and resumed run ends, beside a whole one."""
    codes = [
        in_child(folder / name, ended, case, folder / name, at)
        for name, at in (("whole", None), ("killed", DIE), ("killed", None))
    ]
    if codes != [0, -signal.SIGKILL, 0]:
        return {"exit codes": codes}
    whole, resumed = (torch.load(folder / name / "end.pt") for name in ("whole", "killed"))
    a, b = whole["bits"], resumed["bits"]
    other = [key for key in a | b if key not in a or key not in b or not torch.equal(a[key], b[key])]
    return {"steps": [whole["steps"], resumed["steps"]], "other bits": other}


def played(example, folder):
    """How an example ends, and what it prints."""

    def play():
        sys.argv = [str(example), str(folder)]
        runpy.run_path(str(example), run_name="__main__")

    code = in_child(folder, play)
    return {"exit code": code, "output": (folder / "output.txt").read_text()}


def main():
    folder, report = Path(sys.argv[1]), {}
    torch.set_num_threads(1)
    for name in sys.argv[2:]:
        module = importlib.import_module(name)
        for label, case in module.CASES.items():
            report[f"{name}: {label}"] = compared(case, folder / f"{name}, {label}")
        report[f"{name}: example"] = played(module.EXAMPLE, folder / name)
    (folder / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
