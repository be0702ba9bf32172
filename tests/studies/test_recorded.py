"""Published results are judged again from their pieces, without a run."""

import json
from importlib import import_module

import numpy as np
import pytest

from tether.cli import main
from tether_studies.experiment import Experiment, study
from tether_studies.judges import more
from tether_studies.quantities import of_key
from tether_studies.recorded import NotRecorded, Recorded, pieces_of_run, read_pieces, write_pieces
from tether_studies.study import at

SIZE = of_key("size", "size")


def declared(known, judge, published="Figure 1: more"):
    """A study of two pieces by name, with this judge and this text."""
    experiment = import_module("tether_studies.experiment")

    class Dice(Experiment):
        """dice fall

        Two throws.

        There is no paper.
        """

        says = f"large dice fall farther | {published}"
        runs: int = at(4, quick=2, long=8)

        def run(self, lab):
            return lab.runs([("large", "a/b"), "small"], self.runs, self.piece)

        def piece(self, name, seed):
            assert not known.get("done"), "nothing is run again"
            return {"size": (5.0 if name != "small" else 1.0) + seed % 7 / 10, "text": "six"}

        def claims(self, results):
            ours, other = (SIZE.take(one) for one in results.values())
            yield f"{ours.mean():.1f}", judge(ours, other)

    study("dice", "nobody")(Dice)
    return experiment.KNOWN.pop("dice")


@pytest.fixture
def known(monkeypatch):
    found = {}
    for module in ("tether_studies", "tether_studies.report.results", "tether_studies.report.publish"):
        monkeypatch.setattr(import_module(module), "studies", lambda: {"dice": found["dice"]})
    return found


def verdict(folder):
    (claim,) = json.loads((folder / "dice.json").read_text())["claims"]
    return claim["verdict"], claim["published"]


def test_a_result_is_judged_again_without_a_run(tmp_path, known, capsys):
    known["dice"] = declared(known, more)
    out, docs = ["--out", str(tmp_path / "out")], tmp_path / "docs"
    assert main(["run", "dice", *out]) == 0
    assert main(["report", *out, "--publish", str(docs)]) == 0
    assert verdict(docs) == ("held", "Figure 1: more")
    known |= {"done": True, "dice": declared(known, lambda a, b: more(b, a), "Figure 2: more")}
    assert main(["report", "--out", str(tmp_path / "none"), "--publish", str(docs)]) == 0
    assert verdict(docs) == ("not held", "Figure 2: more")
    assert "| dice | large dice fall farther | Figure 2: more | 5." in (docs / "README.md").read_text()
    (docs / "pieces/dice.npz").unlink()  # without its pieces it keeps its verdict, and has the texts of now
    known["dice"] = declared(known, more, "Figure 3: more")
    assert main(["report", "--out", str(tmp_path / "none"), "--publish", str(docs)]) == 0
    assert verdict(docs) == ("not held", "Figure 3: more")


def test_a_piece_that_was_never_done_is_named(tmp_path, known, capsys):
    known["dice"] = declared(known, more)
    lab = Recorded(known["dice"], known["dice"].at("default"), 0, {})
    with pytest.raises(NotRecorded, match="dice: the piece 'large, a/b, run 0' is not recorded: run the study again"):
        known["dice"].run(lab.config, lab)
    out, docs = ["--out", str(tmp_path / "out")], tmp_path / "docs"
    assert main(["run", "dice", *out]) == 0
    next((tmp_path / "out").rglob("small*run 3.npz")).unlink()
    assert main(["report", *out, "--publish", str(docs)]) == 0
    assert "dice stays as it was judged: dice: the piece 'small, run 3' is not recorded" in capsys.readouterr().err
    assert verdict(docs)[0] == "held"


def test_a_larger_run_is_published_in_place_of_a_smaller_one(tmp_path, known):
    known["dice"] = declared(known, more)
    out, docs = ["--out", str(tmp_path / "out")], tmp_path / "docs"
    for scale in (["--long"], []):
        assert main(["run", "dice", *scale, *out]) == 0
        assert main(["report", *out, "--publish", str(docs)]) == 0
        found = json.loads((docs / "dice.json").read_text())
        assert (found["scale"], found["config"], found["changes"]) == ("long", {"runs": 8}, {})
        assert "over 8 pairs of runs" in found["claims"][0]["evidence"]
    assert "| dice --long |" in (docs / "README.md").read_text()


def test_pieces_come_back_as_they_were(tmp_path):
    pieces = {
        "a, b/c": {"x y: z": np.arange(3), "text": np.array("six")},
        "d": {"e/f": np.float32(1.5) * np.ones((2, 0))},
    }
    write_pieces(tmp_path / "all.npz", pieces)
    back = read_pieces(tmp_path / "all.npz")
    assert {name: list(one) for name, one in back.items()} == {name: list(one) for name, one in pieces.items()}
    for name, one in pieces.items():
        for key, x in one.items():
            assert back[name][key].dtype == x.dtype
            np.testing.assert_array_equal(back[name][key], x)
    assert pieces_of_run(tmp_path) == {}
