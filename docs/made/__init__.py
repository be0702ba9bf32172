"""What the site makes from the code and its results, so that no page is a copy.

A line `<!-- made: NAME ARGUMENTS -->` of a page is replaced by what `MAKERS[NAME](ARGUMENTS)` returns; in pages of
reStructuredText, which are the recipes, the line is `.. made: NAME ARGUMENTS`.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util.logging import getLogger

from made import api, benchmarks, bibliography, errors, links, mathematics, papers, pictures, recording

__all__ = ["MAKERS", "filled", "setup"]

MAKERS: dict[str, Callable[[str], str]] = {
    "animation": recording.animation,
    "api": api.listed,
    "picture": pictures.picture,
    "api_by_file": api.by_file,
    "api_index": api.index,
    "benchmarks": benchmarks.tables,
    "bibliography": bibliography.listed,
    "errors": errors.listed,
    "letters": api.letters,
    "papers": papers.summary,
    "studies": papers.studies,
}
LOG = getLogger(__name__)
MARK = re.compile(r"^(?:<!--|\.\.) made: (\w+)(?: (?!-->)(.*?))?(?: -->)?$", re.MULTILINE)


def filled(text: str) -> str:
    """A page with what is made in its place."""
    return MARK.sub(lambda found: MAKERS[found[1]](found[2] or ""), text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's entry point."""
    app.connect("source-read", _fill)
    app.connect("env-get-outdated", _outdated)
    app.connect("autodoc-process-docstring", api.completed)
    app.connect("autodoc-process-signature", api.shown_signature)
    app.connect("env-check-consistency", _check_names)
    app.connect("build-finished", _check_links)
    app.add_html_math_renderer("mathml", (mathematics.inline, None), (mathematics.block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _fill(app: Sphinx, name: str, source: list[str]) -> None:
    source[0] = filled(source[0])


def _outdated(app: Sphinx, env: object, added: Iterable[str], changed: object, removed: object) -> list[str]:
    """Pages with something made depend on files that Sphinx does not know: they are read every time."""
    paths = {name: Path(app.srcdir) / app.project.doc2path(name, absolute=False) for name in app.project.docnames}
    return [name for name, path in paths.items() if MARK.search(path.read_text(encoding="utf-8"))]


def _check_names(app: Sphinx, env: BuildEnvironment) -> None:
    for name in api.undocumented(set(env.domains["py"].data["objects"])):
        LOG.warning("%s is public and not documented", name)


def _check_links(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.name == "html":
        broken = links.broken(Path(app.outdir))
        if broken:
            raise ExtensionError("\n".join(["broken links:", *broken]))
