"""The API pages have every public name, and every name that one calls has an example which is executed."""

import inspect
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
api = pytest.importorskip("made.api")

FILES = ("mnist", "fashion_mnist", "cifar10", "cifar100", "svhn", "sst2", "ptb", "wikitext2", "krkopt", "poker_hand")
SHOWN = {"tether.Free", "tether.Draws", "tether.Record", "tether.explore", "tether.temper"}  # made by others, or a page


def test_every_public_name_has_a_page():
    assert {page for name, value in api.public().items() if (page := api.page_of(name, value))} == set(api.PAGES)
    for page in api.PAGES:
        text = (api.DOCS / "api" / f"{page}.md").read_text(encoding="utf-8")
        assert f"<!-- made: api {page} -->" in text or f"<!-- made: api_by_file {page} -->" in text


def test_a_name_of_a_package_without_a_page_is_an_error():
    def stranger(): ...

    stranger.__module__ = "tether.nowhere.file"
    with pytest.raises(LookupError, match=r"tether.stranger is defined in tether.nowhere.file, which no page"):
        api.page_of("tether.stranger", stranger)


def test_what_no_page_documents_is_found():
    names = set(api.public())
    assert api.undocumented(names) == []
    assert api.undocumented(names - {"tether.Part"}) == ["tether.Part"]


def test_what_one_calls_has_an_executed_example():
    called = {
        name: value
        for name, value in api.public().items()
        if name.count(".") == 1 or name.startswith(("tether.measure.", "tether.data."))
        if callable(value) and name not in SHOWN and name.rpartition(".")[2] not in FILES
        if not (isinstance(value, type) and (name.startswith("tether.measure.") or issubclass(value, Exception)))
    }
    without = [name for name, value in called.items() if ">>>" not in (inspect.getdoc(value) or "")]
    assert [name for name in without if not api.uses().get(name)] == []


def test_a_method_shows_the_table_that_it_makes():
    lines = api.example("sgd")
    assert "   >>> print(tether.methods.sgd(model).describe())" in lines
    assert lines[-2].split() == ["*", "501", "X", "0.1"]
