"""Every Python block of the pages is executed: as a doctest, as lines of an example that tests run, or here."""

import re
from pathlib import Path

import pytest
import torch

import tether

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"]  # tests/test_readme.py runs the README
EXCERPTS = {  # page → the programs whose lines it shows
    "docs/clients.md": sorted((ROOT / "examples").glob("with_*.py")),
    "docs/sharded.md": [ROOT / "examples/gallery/ranks_fully_shard.py"],
}
plain = {
    path.relative_to(ROOT).as_posix(): blocks
    for path in PAGES
    if (
        blocks := [
            x for x in re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL) if ">>>" not in x
        ]
    )
}


@pytest.mark.parametrize("page", sorted(EXCERPTS))
def test_an_excerpt_is_made_of_lines_of_a_program(page):
    programs = "\n".join(path.read_text(encoding="utf-8") for path in EXCERPTS[page])
    there = {line.strip() for line in programs.splitlines()}
    assert [line for block in plain[page] for line in block.splitlines() if line.strip() not in there] == []


@pytest.mark.parametrize("page", sorted(set(plain) - set(EXCERPTS)))
def test_the_plain_blocks_of_a_page_run_one_after_the_other(page):
    torch.manual_seed(0)
    names = {"torch": torch, "nn": torch.nn, "tether": tether, "model": torch.nn.Linear(2, 1)}
    for block in plain[page]:
        exec(compile(block, page, "exec"), names)
