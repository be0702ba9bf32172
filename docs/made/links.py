"""Every link of the built pages: inside the site it leads to a file and a place in it, outside it is well formed."""

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["broken"]


class Page(HTMLParser):
    """The links of a page and the places in it that a link can name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Take what a tag links to, and what it is called."""
        for key, value in attributes:
            if key in ("href", "src") and value is not None:
                self.links.append(value)
            elif key in ("id", "name") and value:
                self.places.add(value)


def broken(site: Path) -> list[str]:
    """A line for each link that leads nowhere."""
    read = cache(lambda path: Page(path.read_text(encoding="utf-8")))
    pages = sorted(path for path in site.rglob("*.html") if "_static" not in path.parts)
    return [
        f"{path.relative_to(site)}: {link}: {why}"
        for path in pages
        for link in read(path).links
        if (why := _wrong(site, path, link, read))
    ]


def _wrong(site: Path, path: Path, link: str, read) -> str:
    parts = urlsplit(link)
    if parts.scheme in ("http", "https"):
        return "" if re.fullmatch(r"[\w.-]+\.[a-z]{2,}(:\d+)?", parts.netloc) and " " not in link else "no address"
    if parts.scheme in ("mailto", "data", "javascript"):
        return ""
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return "no such file"
    place = unquote(parts.fragment)
    if place and target.suffix == ".html" and place not in read(target).places:
        return "no such place in the page"
    return ""
