"""The examples of lines and surfaces do what they say, on a few made-up images."""

import re
import sys
from pathlib import Path

import pytest
import torch

import tether

EXAMPLES = Path(__file__).parents[1] / "examples"


def images(train=True, root=None):
    generator = torch.Generator().manual_seed(int(train))
    return torch.randint(256, (300, 28, 28), generator=generator).byte(), torch.arange(300) % 10


@pytest.mark.parametrize(("script", "rows"), [("linear_paths", 12), ("loss_surface", 6)])
def test_a_row_per_line_and_a_picture(script, rows, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(tether.data, "mnist", images)
    module = __import__(script)
    picture = tmp_path / "new" / "picture.png"
    options = ["--runs", "2", "--steps", "3", "--points", "4", "--threads", "1", "--out", str(picture)]
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *options])
    module.main()
    header, *found = [re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines()[: rows + 1]]
    assert header[0] == "data"
    column = header.index("shapes")
    for row in found:
        shapes = re.findall(r"(\d+) (monotone|barrier|plateau)", row[column])
        assert sum(int(count) for count, _ in shapes) == 2, row
    assert picture.read_bytes().startswith(b"\x89PNG")
