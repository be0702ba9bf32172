"""The README: short, and every line of Python in it runs, in one session from top to bottom."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_it_is_short():
    assert README.count("\n") <= 180


def test_its_code_runs_and_keeps_its_promise(capsys):
    session: dict = {}
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(block, session)
    first, *_ = said = capsys.readouterr().out.splitlines()
    loss, violation = map(float, re.findall(r"[\d.e-]+(?=,|$)", first))
    assert loss < 0.35
    assert violation < 2e-6
    assert "BAOAB: B(½h′ + ½h) A(½h) O(h) A(½h); one gradient per step" in said
    for link in re.findall(r"\]\(([^)#]+)", README):
        assert (Path(__file__).parents[1] / link).exists(), link
