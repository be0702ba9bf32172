"""The bibliography, from src/tether/engine/references.bib, with the methods that follow each source."""

from tether.engine.references import cited, references
from tether.engine.table import CITATIONS

__all__ = ["listed"]


def listed(_: str) -> str:
    """A line for each entry, by its first author."""
    lines = []
    for key, entry in sorted(references().items(), key=lambda one: (one[1]["author"], one[1]["year"])):
        methods = [
            f"{{py:obj}}`{name} <tether.methods.{name}>`" for name in sorted(CITATIONS) if CITATIONS[name] == key
        ]
        what = f" *({entry['note']})*" if "note" in entry else ""
        lines += [f"({key})=", f"- {cited(key)}.{what}" + (f" Methods: {', '.join(methods)}." if methods else "")]
    return "\n".join(lines)
