"""The process that paints: the same frames as in this process, and this process takes over when it ends."""

import time

import numpy as np
import torch

from tether.window.gallery import Gallery
from tether.window.packing import arrays_of
from tether.window.problems import problem_of
from tether.window.runner import Runner
from tether.window.setting import read_setting
from tether.window.studio import Studio

VIEW = {"replica": -1, "pair": (0, 1), "shows": "weights"}


def test_frames_are_the_same_in_both_processes_and_one_takes_over_from_the_other():
    setting = read_setting({"replicas": 3, "hidden": [5], "dynamics": [{"method": "adlala"}, {"method": "adam"}]})
    problem = problem_of(setting)
    runners = [Runner(setting, problem, row) for row in setting.dynamics]
    shots = [runner.snapshot() for runner in runners]
    studio = Studio()
    there, here = Gallery(studio), Gallery(None)
    try:
        deadline = time.monotonic() + 60
        while not studio.ready and time.monotonic() < deadline:
            time.sleep(0.02)
        for full in (False, False, True):  # the first is full in any case
            one, other = (gallery.frame(shots, VIEW, (1, setting), full) for gallery in (there, here))
            assert one == other
        for runner in runners:
            runner.advance()
        shots = [runner.snapshot() for runner in runners]
        header, body = there.frame(shots, VIEW, (1, setting), True)
        assert [len(arrays_of(header, body)[f"curve{i}"]) for i in (0, 1)] == [2, 2]
        assert "first" in there.frame(shots, VIEW, (2, setting), False)[0]  # another run begins anew
        studio.close()
        header, body = there.frame(shots, VIEW, (2, setting), False)
        assert header["first"]
        histograms = arrays_of(header, body)["histograms"]
        assert np.array_equal(histograms.sum(-1), [[30, 15, 15, 3]] * 2)
        there.close()
    finally:
        studio.close()
    assert torch.equal(torch.from_numpy(shots[0].weights[:, :10]), runners[0].nets.get_parameter("0.weight").flatten(1))
