"""What a page may ask for: every wrong value is refused with its place, and every scene works."""

import math

import numpy as np
import pytest
import torch

from tether.window.catalogue import about_word, catalogue
from tether.window.dynamics import adjust, named_methods, optimizer_of, parts_of, same_kind
from tether.window.packing import arrays_of, finite_values, message
from tether.window.painter import Painter
from tether.window.problems import problem_of
from tether.window.runner import Runner
from tether.window.scenes import SCENES
from tether.window.script import script
from tether.window.setting import SettingError, as_values, read_setting


def network(**given):
    setting = read_setting({"replicas": 2, **given})
    return problem_of(setting).replicas(setting)


def test_a_setting_survives_its_way_to_the_page_and_back():
    for scene in SCENES:
        setting = read_setting(scene["setting"])
        assert read_setting(as_values(setting)) == setting


@pytest.mark.parametrize(
    ("given", "at"),
    [
        ({"replicas": 51}, ["replicas"]),
        ({"replicas": 2.5}, ["replicas"]),
        ({"replicas": True}, ["replicas"]),
        ({"seed": -1}, ["seed"]),
        ({"hidden": [20, "x"]}, ["hidden"]),
        ({"hidden": [1] * 9}, ["hidden"]),
        ({"hidden": "__import__('os')"}, ["hidden"]),
        ({"activation": "eval"}, ["activation"]),
        ({"batch": 0}, ["batch"]),
        ({"problem": {"kind": "os"}}, ["problem", "kind"]),
        ({"problem": {"kind": "spiral", "turns": math.nan}}, ["problem", "turns"]),
        ({"problem": {"kind": "spiral", "turms": 2}}, ["problem", "turms"]),
        ({"dynamics": []}, ["dynamics"]),
        ({"dynamics": [{}] * 5}, ["dynamics"]),
        ({"dynamics": [3]}, ["dynamics", 0]),
        ([], []),
    ],
)
def test_values_out_of_range_are_refused_with_their_place(given, at):
    with pytest.raises(SettingError) as caught:
        read_setting(given)
    assert caught.value.at == at


@pytest.mark.parametrize(
    ("row", "at", "caret"),
    [
        ({"parts": [{"word": "BAQAB"}]}, ["parts", 0, "word"], 2),
        ({"parts": [{"word": "AO"}]}, ["parts", 0, "word"], 2),
        ({"parts": [{"where": "7.*"}, {}]}, ["parts", 0, "where"], None),
        ({"parts": [{"temperature": -1}]}, ["parts", 0, "temperature"], None),
        ({"parts": [{"on": {"kind": "Circle", "radius": -1}}]}, ["parts", 0, "on"], None),
        ({"parts": [{"on": {"kind": "Level", "g": "print"}}]}, ["parts", 0, "on"], None),
        ({"parts": [{"rhythm": {"kind": "Every", "k": 0}}]}, ["parts", 0, "rhythm"], None),
        ({"parts": [{"metric": "os"}]}, ["parts", 0, "metric"], None),
        ({"parts": [{"params": []}]}, ["parts", 0, "params"], None),
        ({"parts": []}, ["parts"], None),
        ({"method": "citation"}, ["method"], None),
        ({"method": "__class__"}, ["method"], None),
        ({"method": "adlala", "fields": {"friction": -1}}, ["fields", "friction"], None),
        ({"method": "adlala", "fields": {"friction": "x"}}, ["fields", "friction"], None),
        ({"method": "adlala", "fields": {"seed": 3}}, ["fields", "seed"], None),
        ({"lr": 3}, ["lr"], None),
    ],
)
def test_dynamics_are_refused_by_the_library_with_the_place_in_the_row(row, at, caret):
    with pytest.raises(SettingError) as caught:
        optimizer_of(row, network(), seed=0)
    assert (caught.value.at, caught.value.caret) == (at, caret)


def test_every_published_method_can_be_opened_as_a_table_that_is_the_same_method():
    for name in named_methods():
        nets = network(hidden=[6])
        opt = optimizer_of({"method": name, "fields": {}}, nets, seed=0)
        table = parts_of(opt)
        getattr(opt, "release", lambda: None)()
        if name != "adam":
            again = optimizer_of({"parts": table}, network(hidden=[6]), seed=0)
            assert same_kind(opt, again), name
            assert adjust(opt, again) == [], name


def test_numbers_are_changed_in_place_and_structure_is_not():
    opt = optimizer_of({"method": "langevin", "fields": {"friction": 1.0}}, network(), 0)
    hotter = optimizer_of({"method": "langevin", "fields": {"friction": 1.0, "temperature": 0.5}}, network(), 0)
    assert same_kind(opt, hotter)
    assert adjust(opt, hotter) == [(0, "temperature", 0.5)]
    assert opt.param_groups[0]["temperature"] == 0.5
    assert not same_kind(opt, optimizer_of({"method": "sgd"}, network(), 0))
    assert not same_kind(opt, optimizer_of({"parts": [{"word": "BAOAB", "on": {"kind": "Circle"}}]}, network(), 0))


def test_a_csv_is_read_and_its_errors_name_the_line():
    text = "x,y,class\n" + "".join(f"{i},{-i},{i % 3}\n" for i in range(9))
    problem = problem_of(read_setting({"problem": {"kind": "csv", "text": text}, "batch": None}))
    assert problem.classes == 3
    assert problem.train[0].tolist()[4] == [4.0, -4.0]
    for bad, word in (("1,2,3\n" * 2 + "1,2\n" * 3, "line 3"), ("1,2,3\n", "1 lines"), ("1,2,0\n" * 5, "1 classes")):
        with pytest.raises(SettingError, match=word):
            problem_of(read_setting({"problem": {"kind": "csv", "text": bad}}))


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene["name"])
def test_every_scene_runs_and_is_painted(scene):
    setting = read_setting({**scene["setting"], "replicas": 2})
    problem = problem_of(setting)
    runners = [Runner(setting, problem, row) for row in setting.dynamics]
    for runner in runners:
        for _ in range(3):
            runner.advance()
            runner.note()
        assert (runner.step, runner.word) == (3, "")
    painter = Painter(setting, problem)
    with torch.no_grad():
        header, body = painter.frame(
            [runner.snapshot() for runner in runners], {"replica": -1, "pair": (0, 1), "shows": "trail"}
        )
    arrays = arrays_of(header, body)
    for i in range(len(runners)):
        assert arrays[f"trail{i}"].shape == (3, 2)
        assert np.isfinite(arrays[f"slice{i}"]).all()
    assert message(header, body)[4:5] == b"{"
    ends: list[list[float]] = []
    exec(script(setting, runners).replace("print(", "ends.append("), {"ends": ends})  # the shown code, run alone
    for runner, end in zip(runners, ends, strict=True):
        with runner.run.shown():
            assert end == [float(x.detach().double().sum()) for x in runner.nets.parameters()]


def test_the_field_and_the_scores_are_those_of_the_networks():
    setting = read_setting({"hidden": [7, 5], "activation": "tanh", "replicas": 3})
    problem = problem_of(setting)
    runner = Runner(setting, problem, {"method": "sgd"})
    header, body = Painter(setting, problem).frame([runner.snapshot()], {"replica": 1, "pair": (0, 1), "shows": "heat"})
    field = arrays_of(header, body)["fields"][0]
    left, right, low, high = problem.frame
    corner = torch.tensor([[left, low], [right, low], [left, high]])
    want = runner.nets[1](corner).sigmoid().flatten()
    assert [field[0, 0], field[0, -1], field[-1, 0]] == [int(255 * float(x)) for x in want]
    x, y = problem.test
    right_ones = (runner.nets(x[:500], each=False) > 0) == (y[:500] > 0.5)
    assert header["rows"][0]["scores"][6] == pytest.approx(100 * float(right_ones.float().mean()), abs=1e-3)


def test_facts_hold_every_letter_and_plain_values_only():
    import json

    known = catalogue()
    json.dumps(known, allow_nan=False)
    assert known["letters"]["A"] == "Drift (2.53a): θ ← θ + h p/m."
    assert about_word("BAOAB")["about"].startswith("BAOAB: B(½h′ + ½h)")
    assert about_word("BAQ") == {
        "error": "unknown letter 'Q' in the word 'BAQ': letters are ABCDEFHLMOSUVX",
        "caret": 2,
    }
    assert finite_values({"a": [math.nan, 1.0], "b": math.inf}) == {"a": [None, 1.0], "b": None}
