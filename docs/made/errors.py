"""Every message that the library raises, read from its source."""

import ast
from functools import cache
from pathlib import Path

__all__ = ["listed", "messages", "texts"]

SOURCE = Path(__file__).resolve().parents[2] / "src" / "tether"
INSIDE = ("window", "native")  # settings of the page, and the kernel's own checks


@cache
def texts() -> str:
    """All text of the source, f-strings with … for what they fill in, so that a message can be looked for."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr | ast.Constant):
                found.append(_text(node))
    return "\n".join(found)


@cache
def messages() -> dict[str, list[tuple[str, str]]]:
    """File → (class of the error, message) in their order."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if name.startswith(INSIDE):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                text = " ".join(_text(node.exc.args[0]).split())
                if len(text) > 12:
                    found.setdefault(name, []).append((ast.unparse(node.exc.func), text))
    return found


def listed(_: str) -> str:
    """A table for each package."""
    packages: dict[str, list[str]] = {}
    for name, pairs in messages().items():
        package = name.partition("/")[0].removesuffix(".py")
        rows = [f"| `{kind}` | {_cell(text)} |" for kind, text in dict.fromkeys(pairs)]
        packages.setdefault(package, []).extend(rows)
    return "\n\n".join(
        f"### {name}\n\n| error | message |\n|---|---|\n" + "\n".join(rows) for name, rows in packages.items()
    )


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else "…"
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "…"


def _cell(text: str) -> str:
    """Text of a message in a cell: as code, with what would end the code replaced."""
    return "`" + text.replace("`", "'").replace("|", r"\|") + "`"
