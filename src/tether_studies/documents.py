"""Documents: every numbered thing of the five documents, what implements it, what shows it, or why nothing does.

The table is ``documents.txt``, a line for each: number | what it is | names of `tether` | studies and tests | why not.
A name is looked up below `tether`, a test is FILE::FUNCTION below ``tests``, anything else is a study. The page
``docs/documents.md`` is made from it by ``tether report --documents docs/documents.md``.
"""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Item", "items", "page"]

TABLE = Path(__file__).with_name("documents.txt")
HEAD = """# The documents, item by item

Every numbered algorithm, theorem, figure and table of the five documents, and what they state without a number: the
names of `tether` that implement it, the studies (`tether run NAME`) and tests that show it, or why nothing does.
Whether the claims hold is in [results](results/README.md).

Made from the table `src/tether_studies/documents.txt` by `tether report --documents docs/documents.md`; a test fails
when a name, a study or a test of this page does not exist.
"""


@dataclass(frozen=True)
class Item:
    """One numbered thing of a document."""

    document: str
    number: str
    what: str
    names: tuple[str, ...]  # below `tether`
    shown: tuple[str, ...]  # studies, and tests as FILE::FUNCTION
    why: str  # not, or not wholly

    @property
    def tests(self) -> tuple[str, ...]:
        return tuple(one for one in self.shown if "::" in one)

    @property
    def studies(self) -> tuple[str, ...]:
        return tuple(one for one in self.shown if "::" not in one)


def items(text: str | None = None) -> list[Item]:
    r"""The table, in the order of the documents.

    >>> (item,) = items("# thesis | a PhD thesis\nTable 4.2 | a transformer | Circle | table-4.2 |")
    >>> item.number, item.names, item.studies
    ('Table 4.2', ('Circle',), ('table-4.2',))
    """
    found, document = [], ""
    for line in (TABLE.read_text(encoding="utf-8") if text is None else text).splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if line.startswith("#"):
            document = cells[0].removeprefix("#").strip()
        elif len(cells) == 5 and document:
            number, what, names, shown, why = cells
            found.append(Item(document, number, what, _listed(names), _listed(shown), why))
        elif line.strip():
            rule = "a line is number | what it is | names | studies and tests | why not, below a '# document | source'"
            raise ValueError(f"{TABLE.name}: {line!r} has {len(cells)} cells: {rule}")
    return found


def page() -> str:
    """The table as Markdown, a section for each document."""
    lines = [HEAD]
    sources = (line[1:] for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
    for document, source in (map(str.strip, line.split("|")) for line in sources):
        lines += [f"## {document[0].upper()}{document[1:]}\n", f"{source}.\n"]
        lines += ["| | what it is | by | shown by |", "|---|---|---|---|"]
        lines += [_row(item) for item in items() if item.document == document] + [""]
    return "\n".join(lines)


def _row(item: Item) -> str:
    shown = [f"`{one}`" for one in item.studies] + [_link(one) for one in item.tests]
    last = "; ".join([", ".join(shown)] * bool(shown) + [item.why] * bool(item.why))
    return f"| {item.number} | {item.what} | {', '.join(f'`{name}`' for name in item.names)} | {last} |"


def _link(test: str) -> str:
    file, _, function = test.partition("::")
    return f"[{function.removeprefix('test_').replace('_', ' ')}](../tests/{file}.py)"


def _listed(cell: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in cell.split(",") if one.strip())
