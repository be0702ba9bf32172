"""The report of files that somebody else has written, or broken."""

import json
import re
from importlib import import_module

import pytest

from tether.cli import main
from tether_studies.report import every_claim, html, publish, results, update_readme
from tether_studies.report.tables import by_study, what_holds

PNG = b"\x89PNG\r\n\x1a\n"
EVIL = '"><script>alert(1)</script>'


def record(**changes):
    """A result as the runner writes it."""
    claim = {"text": "it holds", "published": "1", "measured": "2", "verdict": "held", "evidence": "seen"}
    whole = {
        "name": "one",
        "title": "a title",
        "source": "a paper",
        "notes": "",
        "scale": "default",
        "seed": 0,
        "date": "2026-11-16T10:00:00+00:00",
        "seconds": 1.5,
        "config": {"steps": 3},
        "changes": {},
        "environment": {"python": "3.11", "versions": {"torch": "2.13"}, "processor": "one", "system": "two"},
        "claims": [claim],
        "tables": [{"head": ["a"], "rows": [[1.0]], "caption": ""}],
        "figures": ["p.png"],
    }
    return {**whole, **changes}


@pytest.fixture
def lay(tmp_path):
    """Lay a result, with its picture, where runs are kept."""

    def write(content, name="one", scale="default"):
        folder = tmp_path / "out" / name / scale
        folder.mkdir(parents=True)
        (folder / "p.png").write_bytes(PNG)
        (folder / "result.json").write_text(content if isinstance(content, str) else json.dumps(content))
        return tmp_path / "out"

    return write


def poisoned(value):
    """Every text in it, and every key that is shown, with markup at its end; the same in place of numbers of tables."""
    if isinstance(value, dict):
        return {key: poisoned(x) for key, x in value.items()}
    if isinstance(value, list):
        return [poisoned(x) for x in value]
    return value + EVIL if isinstance(value, str) else value


def test_nothing_from_a_file_is_taken_for_markup(lay):
    evil = poisoned(record())
    evil |= {"name": 'one"><script>alert(1)<script>', "scale": "default", "figures": ["p.png"], "notes": EVIL}
    evil["environment"]["versions"] = {EVIL: EVIL}
    evil["environment"]["commit"] = EVIL
    evil["config"] = evil["changes"] = {EVIL: EVIL}
    (found,) = results(lay(evil))
    page = html([found])
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r'class="[^"]*script', page)
    assert not re.search(r'="[^"]*"&gt;&lt;script', page)  # no attribute is closed early
    missed = [{**claim, "verdict": "not held"} for claim in found["claims"]]
    evil = {**found, "changes": {}, "claims": missed}
    for table in (every_claim([evil]), by_study([evil]), what_holds([evil])):
        assert "<script" not in table
        assert "&lt;script" in table


def test_a_table_of_markdown_keeps_its_rows_and_its_end(lay, tmp_path):
    claims = [{**record()["claims"][0], "text": "a\n\n<!-- end -->\n| b |", "measured": "|x| < 0.1 <b>"}]
    found = results(lay(record(claims=claims, title="<!-- end -->")))
    assert every_claim(found).splitlines()[2:] == [
        "| one | a &lt;!-- end --> \\| b \\| | 1 | \\|x\\| < 0.1 &lt;b> | **held** |"
    ]
    readme = tmp_path / "README.md"
    readme.write_text("<!-- what holds -->\n\n<!-- end -->\n<!-- methods -->\n\n<!-- end -->\nthe rest\n")
    for _ in range(2):
        update_readme(found, readme)
    assert readme.read_text().count("<!-- end -->") == 2


@pytest.mark.parametrize(
    "figure",
    ["../../../secret.png", "/etc/hostname", "link.png", "missing.png", "", 3, None, ["p.png"], ".p.png", "p.json"],
)
def test_figures_are_those_of_the_folder(lay, tmp_path, figure, capsys):
    out = lay(record(figures=["p.png", figure]))
    (tmp_path / "secret.png").write_bytes(b"secret")
    (out / "one/default/link.png").symlink_to(tmp_path / "secret.png")
    (found,) = results(out)
    assert found["figures"] == ["p.png"]
    assert f"left out the figure {figure!r}" in capsys.readouterr().err
    publish([found], tmp_path / "docs")
    assert {path.name for path in (tmp_path / "docs").iterdir()} == {"one.json", "one-p.png", "README.md"}


@pytest.mark.parametrize(
    "name", ["../one", "../../one", "/no/such/one", "a/b", "..", ".", "", "a\\b", "a\x00b", "a\nb", 3]
)
def test_a_name_that_leads_elsewhere_is_no_name(lay, tmp_path, name, capsys):
    out = lay(record(name=name))
    (tmp_path / "deep").mkdir()
    before = set(tmp_path.rglob("*"))
    assert main(["report", "--out", str(out), "--publish", str(tmp_path / "deep/docs")]) == 2
    assert "name" in capsys.readouterr().err
    assert set(tmp_path.rglob("*")) == before


def test_publishing_does_not_follow_links(lay, tmp_path):
    (found,) = results(lay(record()))
    (tmp_path / "docs").mkdir()
    (tmp_path / "mine.txt").write_text("mine")
    for name in ("one.json", "one-p.png"):
        (tmp_path / "docs" / name).symlink_to(tmp_path / "mine.txt")
    publish([found], tmp_path / "docs")
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert json.loads((tmp_path / "docs/one.json").read_text())["name"] == "one"


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "3", "null", '"text"', "[" * 100_000, "{}", '{"scale": "default", "seed": 0}'),
        record(scale="huge"),
        record(scale=["default"]),
        record(scale=None),
        record(seed="first"),
        record(seconds="long"),
        record(date=20261116),
        record(claims=None),
        record(claims={"a": 1}),
        record(claims=["text"]),
        record(claims=[{"text": "no verdict"}]),
        record(claims=[{**record()["claims"][0], "verdict": None}]),
        record(environment=[]),
        record(environment={"versions": [1]}),
        record(config=[1]),
        record(changes=[1]),
        record(tables=[3]),
        record(tables=[{"head": ["a"], "rows": [1], "caption": ""}]),
        record(figures="p.png"),
        record(notes=None),
        record(seconds=10**400),
        record(title="half of a character: \ud800"),
    ],
    ids=lambda content: str(content)[:20] if isinstance(content, str) else None,
)
def test_what_is_malformed_is_left_out_with_a_word(lay, content, capsys):
    lay(content, name="bad")
    out = lay(record(), name="good")
    (out / "foreign.json").write_text('{"name": "a package"}')
    (out / "bytes.json").write_bytes(b"\xff\xfe\x00")
    (out / "folder.json").mkdir()
    assert main(["list", "--out", str(out)]) == 0
    assert main(["report", "--out", str(out)]) == 0
    said = capsys.readouterr().err
    for name in ("bad/default/result.json", "foreign.json", "bytes.json", "folder.json"):
        assert f"left out {out / name}" in said
    assert str(out / "good") not in said
    assert "a title" in (out / "report.html").read_text()


def test_an_environment_of_an_older_version_is_enough(lay):
    (found,) = results(lay(record(environment={})))
    assert "a title" in html([found])


def test_verdicts_do_not_command_the_terminal(lay, monkeypatch, capsys):
    study = type("Study", (), {"title": "a title", "source": "a paper", "data": ()})()
    for module in ("tether_studies", "tether_studies.report.results"):
        monkeypatch.setattr(import_module(module), "studies", lambda: {"one": study})
    out = lay(record(claims=[{**record()["claims"][0], "verdict": "held\x1b[2J\r\n"}]))
    assert main(["list", "--out", str(out)]) == 0
    assert "[default: held?[2J??]" in capsys.readouterr().out


def test_a_changed_config_is_not_published_as_the_study(lay, tmp_path, capsys):
    out = lay(record(changes={"steps": 3, "sizes": [0.1, 0.2]}), scale="default-12345678")
    found = results(out)
    page = html(found)
    assert "tether run one --set steps=3 &#x27;sizes=(0.1, 0.2)&#x27;" in page
    publish(found, tmp_path / "docs")
    assert not (tmp_path / "docs/one.json").exists()
    assert "did not publish one: its config was changed (steps, sizes)" in capsys.readouterr().err
    assert "default, changed scale" in page
    lay(record(title="quick, but its own", scale="quick"), scale="quick")
    assert [one["title"] for one in results(out)] == ["quick, but its own"]


def test_a_report_that_cannot_be_written_is_an_error_in_a_line(lay, tmp_path, capsys):
    out = lay(record())
    assert main(["report", "--out", str(out), "--html", str(tmp_path / "no/such/folder.html")]) == 1
    said = capsys.readouterr().err
    assert "no/such/folder.html" in said
    assert len(said.splitlines()) == 1
