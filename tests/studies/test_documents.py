"""The page of the documents: complete, up to date, and without a name that does not exist."""

import ast
from functools import cache
from pathlib import Path

import pytest

import tether
from tether_studies import studies
from tether_studies.documents import items, page

TESTS = Path(__file__).parent.parent
# The last number of each kind in each chapter, or in the whole document: counted in the documents themselves.
LAST = {
    "thesis": {
        "Figure": {"1.": 17, "3.": 19, "4.": 11, "5.": 12, "6.": 23},
        "Table": {"4.": 5, "5.": 3, "6.": 9},
        "Algorithm": {"1.": 4, "2.": 3, "4.": 2, "5.": 3},
        "Example": {"1.2.": 5, "1.3.": 1, "2.1.": 1, "2.2.": 1},
        "statement": {"2.1.": 1, "4.4.": 2, "4.7.": 8, "5.3.": 3, "5.9.": 5},
    },
    "ICML paper": {
        "Figure": {"": 7, "D": 3},
        "Table": {"": 2},
        "Algorithm": {"": 2},
        "statement": {"4.": 2},
    },
    "CoLA poster": {},
    "Path-SGD slides": {"Figure": {"": 1}, "Table": {"": 1}, "Algorithm": {"": 1}},
    "GD-dynamics slides": {"statement": {"": 1}},
}
STATEMENTS = ("Theorem", "Lemma", "Corollary", "Assumption")  # share their numbers


@pytest.mark.parametrize("document", LAST)
def test_every_number_is_there_once(document):
    numbers = [item.number for item in items() if item.document == document]
    assert len(set(numbers)) == len(numbers) > 0
    for kind, chapters in LAST[document].items():
        words = STATEMENTS if kind == "statement" else (kind,)
        found = [number.partition(" ")[2] for number in numbers if number.partition(" ")[0] in words]
        expected = {f"{chapter}{i + 1}" for chapter, last in chapters.items() for i in range(last)}
        assert expected - set(found) == set(), f"{document} has {kind}s that are missing here"
        assert kind != "Figure" or set(found) - expected == set()


def test_nothing_is_from_another_document():
    assert {item.document for item in items()} == set(LAST)


def test_every_name_exists():
    for item in items():
        for name in item.names:
            found = tether
            for part in name.split("."):
                assert hasattr(found, part), f"{item.document}, {item.number}: tether.{name} does not exist"
                found = getattr(found, part)


@cache
def functions(file):
    path = TESTS / f"{file}.py"
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_study_and_test_exists():
    for item in items():
        where = f"{item.document}, {item.number}"
        for name in item.studies:
            assert name in studies(), f"{where}: there is no study {name!r}"
        for name in item.tests:
            file, _, function = name.partition("::")
            assert function in functions(file), f"{where}: there is no test {name!r}"


def test_every_item_is_shown_or_says_why_not():
    for item in items():
        assert item.what, f"{item.document}, {item.number} says not what it is"
        assert item.shown or item.why, f"{item.document}, {item.number} is not shown and says not why"


def test_the_page_is_up_to_date(pytestconfig):
    written = pytestconfig.rootpath / "docs" / "documents.md"
    assert written.read_text(encoding="utf-8") == page(), "run `tether report --documents docs/documents.md`"


def test_a_line_that_lacks_a_cell_is_named():
    with pytest.raises(ValueError, match=r"'Figure 1 \| a picture' has 2 cells: a line is number \|"):
        items("# thesis | a thesis\nFigure 1 | a picture")
