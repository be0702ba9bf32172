"""One bibliography: references.bib, what methods cite, and CITATION.cff agree."""

import re
from pathlib import Path

from tether.engine.references import FILE, cited, references
from tether.engine.table import CITATIONS

ROOT = Path(__file__).parents[2]


def test_every_entry_of_the_file_is_read():
    assert len(references()) == FILE.read_text(encoding="utf-8").count("\n@") + 1
    for key, entry in references().items():
        assert {"author", "title", "year"} <= set(entry), key
        assert "{" not in cited(key), key


def test_every_method_cites_an_entry():
    assert set(CITATIONS.values()) <= set(references())


def test_citation_cff_has_the_papers_of_the_bibliography_and_the_version():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert f"\nversion: {version[1]}\n" in text
    blocks = text.partition("references:\n")[2].split("  - type:")[1:]
    assert len(blocks) == 4
    by_title = {entry["title"]: entry for entry in references().values()}
    for block in blocks:
        entry = by_title[re.search(r'title: "(.*)"', block)[1]]
        assert re.search(r"year: (\d+)", block)[1] == entry["year"]
        families = re.findall(r"family-names: (\w+)", block)
        assert families == [name.partition(",")[0] for name in entry["author"].split(" and ")]
