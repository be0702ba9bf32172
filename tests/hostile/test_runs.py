"""Runs in rough hands: wrong settings, damaged files, kills, full disks, absent packages, poor terminals."""

import errno
import fcntl
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import tether_studies
from tether.cli import main
from tether_studies.judges import yes
from tether_studies.lab import Lab
from tether_studies.runner import Job, folder_of, run_one
from tether_studies.study import Claim, Study, at

FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Config:
    steps: int = at(3, quick=2)
    rate: float = 0.5
    sizes: tuple[float, ...] = (0.1, 0.2)
    words: int | None = None
    label: str = ""
    loud: bool = False


def counted(config, lab):
    return lab.pieces({f"piece {i}": lambda i=i: {"x": np.arange(100) + i, "sum": 1.0} for i in range(config.steps)})


def judged(results, config):
    return [Claim("it counts", "always", f"γ = {len(results)}", *yes(True, "seen"))]


def drawn(results, config):
    import matplotlib.pyplot as plt

    return {"picture": plt.figure()}


def sleepy(config, lab):
    return lab.pieces({f"nap {i}": lambda: time.sleep(60) or {} for i in range(4)})


COUNT = Study("count", "γ counts", "nobody", Config, counted, judged)
DRAWN = Study("drawn", "draws", "nobody", Config, counted, judged, drawn)
SLEEPY = Study("sleepy", "sleeps", "nobody", Config, sleepy, judged)
SLEEPIER = replace(SLEEPY, name="sleepier")


@pytest.fixture(autouse=True)
def listed(monkeypatch):
    known = {study.name: study for study in (COUNT, DRAWN, SLEEPY, SLEEPIER)}
    for module in ("tether_studies", "tether_studies.report.results"):
        monkeypatch.setattr(import_module(module), "studies", lambda: known)


@pytest.fixture
def out(tmp_path):
    """A folder with a finished run of COUNT."""
    assert main(["run", "count", "--out", str(tmp_path)]) == 0
    return tmp_path


def files(folder):
    """Every file that holds something, with its bytes and its age."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in found}


# 5: nothing is deleted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("steps=bad", "steps='bad' must be of type int: for example --set steps=3"),
        ("steps=2.5", "steps=2.5 must be of type int"),
        ("steps=True", "steps=True must be of type int"),
        ("rate=fast", "rate='fast' must be of type float: for example --set rate=0.5"),
        ("sizes=0.1", "sizes=0.1 must be of type tuple[float, ...]: for example --set 'sizes=(0.1, 0.2)'"),
        ("sizes=(0.1,'a')", "sizes=(0.1, 'a') must be of type tuple[float, ...]"),
        ("words=many", "words='many' must be of type int | None: for example --set words=None"),
        ("loud=1", "loud=1 must be of type bool: for example --set loud=False"),
        ("steps", "--set 'steps' must be FIELD=VALUE"),
    ],
)
def test_a_wrong_setting_touches_nothing(out, text, says, capsys):
    before = files(out)
    assert main(["run", "count", "--out", str(out), "--set", text]) == 2
    assert says in capsys.readouterr().err
    assert files(out) == before


def test_settings_are_taken_as_their_fields_declare_them(tmp_path):
    settings = ["--set", "steps=2e0", "rate=1", "--set", "sizes=[1, 2]", "label=123"]
    assert main(["run", "count", "--out", str(tmp_path), *settings]) == 0
    (found,) = tmp_path.glob("count/*/result.json")
    config = json.loads(found.read_text())["config"]
    assert config == {"steps": 2, "rate": 1.0, "sizes": [1.0, 2.0], "words": None, "label": "123", "loud": False}
    assert COUNT.at("default", steps=np.int64(4)).steps == 4


def test_another_config_has_a_folder_of_its_own(out):
    before = files(out)
    assert main(["run", "count", "--out", str(out), "--set", "steps=2"]) == 0
    changed = folder_of(Job("count", out=out, changes={"steps": 2}))
    assert len(list(changed.glob("pieces/*.npz"))) == 2
    assert {name: files(out)[name] for name in before} == before
    # The config of the scale, written out, is the config of the scale.
    assert folder_of(Job("count", out=out, changes={"steps": 3})) == out / "count" / "default"
    # Changed runs say so, and do not pass for the study's own result.
    assert json.loads((changed / "result.json").read_text())["changes"] == {"steps": 2}
    (shown,) = tether_studies.report.results(out)
    assert shown["folder"] == out / "count" / "default"


@pytest.mark.parametrize("content", ["", '{"seed": 0, "st', "[1]", '{"seed": 0, "steps": 7}', None])
def test_a_damaged_or_different_config_file_deletes_nothing(out, content, capsys):
    folder = out / "count" / "default"
    (folder / "config.json").unlink() if content is None else (folder / "config.json").write_text(content)
    before = files(out)
    assert main(["run", "count", "--out", str(out)]) == 0
    after = files(out)
    assert {name: after[name] for name in before} == before
    (other,) = {path.parent for path in out.glob("count/*/result.json")} - {folder}
    assert f"this run goes to {other}" in capsys.readouterr().err
    assert main(["run", "count", "--out", str(out)]) == 0  # and once more: the same folder
    assert len(list(out.glob("count/*"))) == 2


def test_publish_does_not_overwrite_a_readme_that_is_not_its_own(out, capsys):
    (out / "README.md").write_text("# My project\n")
    assert main(["report", "--out", str(out), "--publish", str(out)]) == 2
    assert "README.md is not made by `tether report`" in capsys.readouterr().err
    assert (out / "README.md").read_text() == "# My project\n"
    assert not (out / "count.json").exists()


# 23: exit codes, kills and locks


def begun(out, arguments, wait_for):
    """The command in a process of its own, as soon as these files are there; it ends with 99 if it leaves a worker."""

    def command():
        code = main(["run", *arguments, "--out", str(out)])
        os._exit(99 if multiprocessing.active_children() else code)

    process = FORK.Process(target=command)
    process.start()
    deadline = time.time() + 60
    while not all((out / path).exists() for path in wait_for) and time.time() < deadline:
        time.sleep(0.01)
    return process


def free(path, within):
    """Does whoever holds this lock release it within so many seconds?"""
    deadline = time.time() + within
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except OSError:
                if time.time() > deadline:
                    return False
                time.sleep(0.01)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_run_that_is_ended_leaves_no_worker_and_no_lock(tmp_path, number, code, jobs):
    process = begun(tmp_path, ["sleepy", "--jobs", jobs], ["sleepy/default/environment.json"])
    time.sleep(0.2)  # the workers begin
    os.kill(process.pid, number)
    process.join(10)
    assert process.exitcode == code
    assert free(tmp_path / "sleepy/default/lock", within=2.0 if number == signal.SIGKILL else 0.0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_studies_at_once_end_with_the_command(tmp_path, monkeypatch, number, code):
    monkeypatch.setattr("multiprocessing.get_context", lambda kind: FORK)  # which knows the studies of this file
    names = ["sleepy", "sleepier"]
    process = begun(tmp_path, [*names, "--jobs", "2"], [f"{name}/default/environment.json" for name in names])
    time.sleep(0.2)
    os.kill(process.pid, number)
    process.join(10)
    assert process.exitcode == code
    for name in names:
        assert free(tmp_path / name / "default/lock", within=0.0), name


def test_a_termination_is_not_lost_in_a_destructor(tmp_path, monkeypatch):
    """Python drops what is raised in a destructor, so that a handler that raises can be in vain."""

    class Dying:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)  # the handler runs here

    def dying(config, lab):
        Dying()
        return counted(config, lab)

    monkeypatch.setattr(tether_studies, "studies", lambda: {"dying": replace(COUNT, name="dying", run=dying)})
    process = begun(tmp_path, ["dying"], [])
    process.join(10)
    assert process.exitcode == 143


def test_studies_at_once_end_with_the_command_that_is_killed(tmp_path, monkeypatch):
    monkeypatch.undo()  # processes made anew know the real studies
    names = ["fig-1.9", "fig-3.13"]
    process = begun(tmp_path, [*names, "--jobs", "2"], [f"{name}/default/environment.json" for name in names])
    os.kill(process.pid, signal.SIGKILL)
    process.join(10)
    for name in names:
        assert free(tmp_path / name / "default/lock", within=2.0), name


def test_a_study_whose_process_is_killed_does_not_end_the_others(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("multiprocessing.get_context", lambda kind: FORK)
    killed = Study("killed", "", "", Config, lambda config, lab: os.kill(os.getpid(), signal.SIGKILL), judged)
    monkeypatch.setattr(tether_studies, "studies", lambda: {"killed": killed, "count": COUNT})
    assert main(["run", "all", "--jobs", "2", "--out", str(tmp_path)]) == 1
    assert "killed: failed: its process ended with -9" in capsys.readouterr().err
    assert (tmp_path / "count/default/result.json").exists()


def test_a_folder_in_use_is_an_error(out, capsys):
    lab = Lab(COUNT, Config(), out / "count/default", 0)
    lab.open()
    assert main(["run", "count", "--out", str(out)]) == 1
    lab.close()
    assert "not run: count is being run by another process" in capsys.readouterr().err
    assert main(["run", "count", "--out", str(out)]) == 0


def test_missing_data_is_an_error_that_comes_first(tmp_path, monkeypatch, capsys):
    hungry = Study("hungry", "", "", Config, counted, judged, data=("mnist",))
    monkeypatch.setattr(tether_studies, "studies", lambda: {"count": COUNT, "hungry": hungry})
    monkeypatch.setenv("TETHER_DATA", str(tmp_path))
    order = []
    monkeypatch.setattr("tether_studies.runner.run_one", lambda *_: order.append(capsys.readouterr().err) or "held")
    assert main(["run", "count", "hungry", "--out", str(tmp_path)]) == 1
    assert len(order) == 1  # what cannot run is not begun,
    assert "hungry: not run: it needs" in order[0]  # and said before what can is


def test_a_study_asked_for_twice_runs_once(tmp_path, capsys):
    assert main(["run", "count", "count", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("count …") == 1


def test_exit_codes_are_in_the_help(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    assert all(code in said for code in ("0 ", "1 ", "2 ", "130 ", "143 "))


# 24: damaged files, full disks


def cut(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [lambda path: path.write_bytes(b""), lambda path: cut(path, 0.5), flip, lambda path: path.write_bytes(b"text")],
    ids=["empty", "cut", "flipped", "foreign"],
)
def test_a_damaged_piece_is_done_again(out, damage, capsys):
    folder = out / "count" / "default"
    whole = {path.name: path.read_bytes() for path in folder.glob("pieces/*.npz")}
    damage(folder / "pieces" / "piece 1.npz")
    damaged = (folder / "pieces" / "piece 1.npz").read_bytes()
    assert main(["run", "count", "--out", str(out)]) == 0
    assert "piece 1.npz is damaged" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.glob("pieces/*.npz")} == whole
    assert (folder / "pieces" / "piece 1.npz.damaged").read_bytes() == damaged


@pytest.mark.parametrize("tail", [b'{"piece": "piece 2", "sec', b"\xff\xfe", b"[]\n", b'{"piece": 1}\n'])
def test_a_cut_line_of_the_metrics_does_not_end_every_later_run(out, tail, capsys):
    path = out / "count/default/metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + tail)
    (out / "count/default/pieces/piece 2.npz").unlink()
    assert main(["run", "count", "--out", str(out)]) == 0
    assert "metrics.jsonl, line 3 is damaged" in capsys.readouterr().err
    last = json.loads(path.read_bytes().splitlines()[-1])  # the new line is not glued to the cut one
    assert last["piece"] == "piece 2"


def test_a_checkpoint_that_cannot_be_gone_on_from_is_set_aside(tmp_path, capsys):
    def work():
        if lab.checkpoint("one").exists():
            raise RuntimeError("no checkpoint")
        return {"x": 1.0}

    lab = Lab(COUNT, Config(), tmp_path, 0)
    lab.open()
    lab.checkpoint("one").write_bytes(b"damaged")
    assert lab.pieces({"one": work})["one"]["x"] == 1.0
    lab.close()
    assert "one.checkpoint" in capsys.readouterr().err
    assert (tmp_path / "pieces/one.checkpoint.damaged").read_bytes() == b"damaged"


def test_a_checkpoint_that_was_not_the_fault_is_put_back(tmp_path):
    def work():
        raise RuntimeError("a fault of the study")

    lab = Lab(COUNT, Config(), tmp_path, 0)
    lab.open()
    lab.checkpoint("one").write_bytes(b"hours of work")
    with pytest.raises(RuntimeError, match="a fault of the study"):
        lab.pieces({"one": work})
    lab.close()
    assert lab.checkpoint("one").read_bytes() == b"hours of work"


def test_a_failure_without_a_checkpoint_or_after_a_new_one_is_a_failure(tmp_path):
    def work():
        calls.append(1)
        lab.checkpoint("one").write_bytes(b"new state")
        raise RuntimeError("a fault of the study")

    calls, lab = [], Lab(COUNT, Config(), tmp_path, 0)
    lab.open()
    for _ in range(2):  # the second time there is a checkpoint, which is read and then written anew
        with pytest.raises(RuntimeError, match="a fault of the study"):
            lab.pieces({"one": work})
        time.sleep(0.01)
    lab.close()
    assert len(calls) == 2


@pytest.mark.parametrize("when", [1, 2, 3, 4, 6, 9, 12])
def test_a_full_disk_loses_nothing_that_was_there(out, when, monkeypatch, capsys):
    """The n-th fsync finds the disk full; everything done before stays, and the next run completes it."""
    assert main(["run", "count", "--out", str(out), "--set", "steps=4"]) == 0
    folder = folder_of(Job("count", out=out, changes={"steps": 4}))
    whole = {path.name: path.read_bytes() for path in folder.glob("pieces/*.npz")}
    result = json.loads((folder / "result.json").read_text())
    for name in ("piece 1.npz", "piece 3.npz"):
        (folder / "pieces" / name).unlink()
    before = files(out)
    calls = []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) >= when:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        code = main(["run", "count", "--out", str(out), "--set", "steps=4"])
    assert code == (1 if len(calls) >= when else 0)
    if code:
        assert "No space left" in capsys.readouterr().err
    after = files(out)
    assert set(before) <= set(after)
    assert not [name for name in after if name.endswith(".part")]
    assert main(["run", "count", "--out", str(out), "--set", "steps=4"]) == 0
    assert {path.name: path.read_bytes() for path in folder.glob("pieces/*.npz")} == whole
    assert json.loads((folder / "result.json").read_text())["claims"] == result["claims"]


@pytest.mark.parametrize("limit", [0, 50, 150, 400, 700])
def test_files_that_the_system_cuts_are_done_again(out, limit):
    """Writes beyond so many bytes fail halfway, as on a full disk; afterwards there is room again."""
    folder = out / "count/default"
    whole = {path.name: path.read_bytes() for path in folder.glob("pieces/*.npz")}

    def cramped():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        os._exit(main(["run", "count", "--out", str(out)]))

    for name in ("piece 0.npz", "piece 2.npz"):
        (folder / "pieces" / name).unlink()
    kept = (folder / "pieces/piece 1.npz").read_bytes()
    process = FORK.Process(target=cramped)
    process.start()
    process.join(10)
    assert process.exitcode == 1
    assert (folder / "pieces/piece 1.npz").read_bytes() == kept
    assert main(["run", "count", "--out", str(out)]) == 0
    assert {path.name: path.read_bytes() for path in folder.glob("pieces/*.npz")} == whole
    assert len(list(out.glob("count/*"))) == 1  # in the same folder


def test_a_draft_left_by_a_kill_is_no_piece(out):
    folder = out / "count/default/pieces"
    (folder / "piece 0.npz").rename(folder / "piece 0.npz.part")
    assert main(["run", "count", "--out", str(out)]) == 0
    assert (folder / "piece 0.npz").exists()


# 25: no matplotlib


@pytest.mark.parametrize("gone", [("matplotlib",), ("matplotlib", "matplotlib.pyplot"), ("matplotlib.pyplot",)])
def test_without_matplotlib_a_study_that_draws_does_not_begin(tmp_path, monkeypatch, capsys, gone):
    for name in gone:
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["run", "drawn", "count", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "drawn: not run: it needs matplotlib" in said
    assert "pip install 'tether[studies]'" in said
    assert not (tmp_path / "drawn").exists()
    assert (tmp_path / "count/default/result.json").exists()  # it draws nothing


def test_pictures_need_no_screen(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "TkAgg")  # as on a desktop, but run from afar
    assert main(["run", "drawn", "--out", str(tmp_path)]) == 0
    assert os.environ["MPLBACKEND"] == "Agg"


def test_a_picture_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    run_one(Job("drawn", out=tmp_path))
    picture = tmp_path / "drawn/default/picture.png"
    before = picture.read_bytes()
    assert before.startswith(b"\x89PNG")

    def half(self, file, **options):
        file.write(before[:50])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", half)
    with pytest.raises(OSError, match="No space left"):
        run_one(Job("drawn", out=tmp_path))
    assert picture.read_bytes() == before


def test_a_file_that_a_setting_names_is_read_before_the_work_begins(tmp_path):
    study = import_module("tether_studies.people").People
    with pytest.raises(FileNotFoundError, match=r"nobody\.csv"):
        study(people=str(tmp_path / "nobody.csv")).run(None)


# E: a terminal without Greek


def test_a_terminal_that_cannot_print_greek(tmp_path):
    """All three commands, where neither the terminal nor the locale knows more than ASCII."""
    program = f"""
import sys
from tests.hostile.test_runs import COUNT, DRAWN
import tether_studies.report.results, tether_studies
tether_studies.studies = tether_studies.report.results.studies = lambda: {{"count": COUNT, "drawn": DRAWN}}
from tether.cli import main
out = ["--out", {str(tmp_path)!r}]
readme = {str(tmp_path / "README.md")!r}
open(readme, "w").write("<!-- what holds -->\\n<!-- end --><!-- methods -->\\n\\n<!-- end -->")
codes = [main(["run", "count", *out]), main(["list", *out])]
codes.append(main(["report", *out, "--publish", {str(tmp_path / "docs")!r}]))
sys.exit(max(codes))
"""
    poor = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii:strict"}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, env={**os.environ, **poor}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "\\u03b3 counts" in done.stdout
    assert "γ = 3" in (tmp_path / "docs/README.md").read_text(encoding="utf-8")


def test_a_reader_that_goes_away_is_no_crash(out):
    reader, writer = os.pipe()
    os.close(reader)  # as `tether list | head` does

    def listing():
        os.dup2(writer, 1)
        sys.stdout = open(1, "w")  # noqa: SIM115
        os._exit(main(["list", "--out", str(out)]))

    process = FORK.Process(target=listing)
    process.start()
    process.join(10)
    os.close(writer)
    assert process.exitcode == 1
