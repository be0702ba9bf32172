"""The API pages: every public name, found in `__all__`, with signature, docstring, fields, source and examples."""

import dataclasses
import importlib
import inspect
import re
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import tether
from tether.engine.references import cited
from tether.engine.table import CITATIONS
from tether.letters import LETTERS

__all__ = [
    "by_file",
    "completed",
    "example",
    "index",
    "letters",
    "listed",
    "page_of",
    "public",
    "shown_signature",
    "undocumented",
    "uses",
]

DOCS = Path(__file__).resolve().parents[1]
BESIDE = (
    "tether.rhythms",
    "tether.metrics",
    "tether.metrics.metric",
    "tether.sharded",
)  # public, too
PAGES = {  # page → the packages whose names it has
    "optimizer": ("tether.optimizer", "tether.part", "tether.schedule", "tether.constrain", "tether.engine"),
    "words": ("tether.words", "tether.letters", "tether.hamiltonian"),
    "surfaces": ("tether.surfaces",),
    "metrics": ("tether.metrics",),
    "rhythms": ("tether.rhythms",),
    "methods": ("tether.methods",),
    "replicas": ("tether.ensemble", "tether.replicas"),
    "loop": ("tether.loop",),
    "measure": ("tether.measure",),
    "data": ("tether.data",),
    "noise": ("tether.noise",),
    "sharded": ("tether.sharded",),
    "explore": ("tether.window",),
}
ARGUMENTS = {"multirate_sgd": {"fast": "4.*", "k": 5}, "composite_sgd": {"k": 5}}  # what a call needs beside the model
RESULTS = ("tether.measure", "tether.loop", "tether.sharded", "tether.words", "tether.letters")  # made by functions


@cache
def public() -> dict[str, Any]:
    """Every public name and what it is; what has two names is listed under the shorter one."""
    found = {}
    modules = [("tether", tether)]
    modules += [(f"tether.{name}", x) for name in tether.__all__ if isinstance(x := getattr(tether, name), ModuleType)]
    modules += [(name, importlib.import_module(name)) for name in BESIDE]
    for path, module in modules:
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if not isinstance(value, ModuleType) and not any(value is other for other in found.values()):
                found[f"{path}.{name}"] = value
    return found


def page_of(name: str, value: Any) -> str:
    """The page of a name: that of the package in which it is defined."""
    home = name.rpartition(".")[0] if home_of(value) is None else home_of(value)
    for page, packages in PAGES.items():
        if any(f"{home}.".startswith(f"{package}.") for package in packages):
            return page
    raise LookupError(f"{name} is defined in {home}, which no page of docs/api has: see PAGES in docs/made/api.py")


def home_of(value: Any) -> str | None:
    """The module in which a class or a function is defined; numbers and tables do not say."""
    return value.__module__ if callable(value) and hasattr(value, "__module__") else None


def listed(page: str) -> str:
    """Markdown for the names of a page, functions and what they return side by side."""
    names = {name: value for name, value in public().items() if page_of(name, value) == page}
    return "\n".join(_entry(name, value) for name, value in sorted(names.items(), key=_order))


def by_file(page: str) -> str:
    """The same, under a heading for each file, which is one idea."""
    names = {name: value for name, value in public().items() if page_of(name, value) == page}
    homes: dict[str, list[tuple[str, Any]]] = {}
    for name, value in names.items():
        homes.setdefault(home_of(value) or name.rpartition(".")[0], []).append((name, value))
    text = []
    for home, found in sorted(homes.items()):
        about = (inspect.getdoc(importlib.import_module(home)) or "").partition("\n\n")[0].replace("\n", " ")
        text += [f"## {home.rpartition('.')[2].replace('_', ' ').capitalize()}\n", f"{_markdown(about)}\n"]
        text += [_entry(name, value) for name, value in sorted(found, key=_order)]
    return "\n".join(text)


def index(_: str) -> str:
    """A table of all public names with the first sentence of each."""
    rows = ["| name | |", "|---|---|"]
    for name, value in sorted(public().items(), key=lambda one: one[0].lower()):
        first = _first_sentence(value) if callable(value) else _comment(name)
        rows.append(f"| {{py:obj}}`{name.removeprefix('tether.')} <{name}>` | {_markdown(first)} |")
    return "\n".join(rows)


def letters(_: str) -> str:
    """Every letter with its equation and what its docstring says of it."""
    lines = ["```{eval-rst}"]
    for one in LETTERS.values():
        lines += [f".. py:function:: tether.letters.{one.name}({', '.join((*one.needs, *one.options))})", ""]
        lines += [f"   {line}" for line in _roles((inspect.getdoc(one.map) or "").splitlines(), "tether.letters")]
        lines += [""]
    return "\n".join([*lines, "```"])


def completed(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """A docstring as Sphinx shows it: names are links; fields, source and pages with examples follow."""
    lines[:] = _roles(lines, name.rpartition(".")[0])
    if what not in ("class", "function", "exception"):
        return
    if dataclasses.is_dataclass(value) and isinstance(value, type):
        lines += ["", *_fields(value)]
    if value in tether.methods.__dict__.values() and getattr(value, "__name__", "") in CITATIONS:
        lines += [
            "",
            *example(value.__name__),
            f"*Source*: {cited(CITATIONS[value.__name__])} (:doc:`/bibliography`).",
            "",
        ]
    pages = [f":doc:`/{page}`" for page in uses().get(name, ())]
    if pages:
        lines += ["", f"*Executed examples*: {', '.join(pages)}.", ""]


def shown_signature(app: Any, what: str, name: str, value: Any, options: Any, signature: str, returns: str) -> Any:
    """Results are made by functions: their fields are a list, their constructor is not shown."""
    if dataclasses.is_dataclass(value) and value.__module__.startswith(RESULTS):
        return "", ""
    return None


def undocumented(documented: set[str]) -> list[str]:
    """Public names that no page documents, or that have nothing to say about themselves."""
    silent = [name for name, value in public().items() if callable(value) and not _own_doc(value)]
    return sorted([*(name for name in public() if name not in documented), *silent])


def _own_doc(value: Any) -> str:
    return (vars(value).get("__doc__") if isinstance(value, type) else getattr(value, "__doc__", "")) or ""


def _order(one: tuple[str, Any]) -> tuple[int, str, int, str]:
    """By package in the order of PAGES, then by file: functions before what they return, constants last."""
    name, value = one
    home = home_of(value) or name.rpartition(".")[0]
    place = next(i for i, package in enumerate(PAGES[page_of(name, value)]) if f"{home}.".startswith(f"{package}."))
    return place, home, 2 if not callable(value) else int(isinstance(value, type)), name


def _entry(name: str, value: Any) -> str:
    if not callable(value):
        shown = repr(value) if len(repr(value)) < 80 else "…"
        lines = [f".. py:data:: {name}", f"   :value: {shown}", "", f"   {_comment(name)}"]
    elif isinstance(value, type):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        lines = [f".. {kind}:: {name}", *(["   :members:"] if _stands_alone(value) else [])]
    else:
        lines = [f".. autofunction:: {name}"]
    return "\n".join(["```{eval-rst}", *lines, "```", ""])


def _stands_alone(value: type) -> bool:
    """Is it no form of a public class? The maps of a surface are documented once, with `Surface`."""
    return not any(base is other for base in value.__mro__[1:] for other in public().values())


def _first_sentence(value: Any) -> str:
    text = (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")
    return re.split(r"(?<=[.:?])\s", text)[0].rstrip(":")


def _markdown(text: str) -> str:
    return text.replace("``", "`").replace("|", r"\|")


def _comment(name: str) -> str:
    """The comment beside the definition of a constant."""
    path, _, short = name.rpartition(".")
    found = re.search(rf"^{short}\b.*?#\s*(.*)$", inspect.getsource(importlib.import_module(path)), re.MULTILINE)
    return found[1] if found else ""


def _fields(value: type) -> list[str]:
    """The fields of a dataclass with the comments behind them."""
    source = inspect.getsource(value)
    lines = []
    for field in dataclasses.fields(value):
        found = re.search(rf"^    {field.name}:.*?(?:#\s*(.*))?$", source, re.MULTILINE)
        if not field.name.startswith("_"):
            lines.append(f"- ``{field.name}``{': ' + found[1] if found and found[1] else ''}")
    return _roles(lines, value.__module__)


@cache
def example(method: str) -> list[str]:
    """A call of a method and the table that it makes, from a run of now."""
    layers = [f"torch.nn.{x}" for x in ("Linear(2, 20)", "ReLU()", "Linear(20, 20)", "ReLU()", "Linear(20, 1)")]
    model = torch.nn.Sequential(*[eval(layer) for layer in layers])
    more = ARGUMENTS.get(method, {})
    shown = ", ".join(["model", *(f"{key}={value!r}" for key, value in more.items())])
    table = getattr(tether.methods, method)(model, **more).describe().splitlines()
    end = next(i for i, line in enumerate(table) if line.startswith("step "))
    lines = [">>> model = torch.nn.Sequential(", *(f"...     {layer}," for layer in layers), "... )"]
    lines += [f">>> print(tether.methods.{method}({shown}).describe())", *table[:end]]
    return [".. code-block:: pycon", "", *(f"   {line}" for line in lines), ""]


@cache
def _short() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in public():
        found.setdefault(name.rpartition(".")[2], []).append(name)
    return found


def _roles(lines: list[str], home: str) -> list[str]:
    """`name` as a link if it is public, else as code."""

    def role(found: re.Match[str]) -> str:
        text = found[1]
        path = next((x for x in (f"tether.{text}", f"{home}.{text}", text) if x in public()), "")
        known = _short().get(text, [])
        if not path and len(known) == 1 and text not in ("at", "key", "words", "bits", "line"):
            path = known[0]
        return f":py:obj:`{text} <{path}>`" if path else f"``{text}``"

    plain = [re.sub(r"(?<![`:\w])`([^`]+)`(?![`_])", role, line) for line in lines]
    return [line if line.lstrip().startswith((">>>", "...", "|")) else _bars(line) for line in plain]


def _bars(line: str) -> str:
    """|x| is an absolute value here, not a substitution of reStructuredText."""
    return "".join(x if x.startswith("``") else x.replace("|", r"\|") for x in re.split(r"(``.*?``)", line))


@cache
def uses() -> dict[str, list[str]]:
    """Public name → pages whose executed code calls it."""
    pages = {path.relative_to(DOCS).with_suffix("").as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
    code = {}
    for page, path in pages.items():
        if not page.startswith(("recipes/", "api/")):
            text = path.read_text(encoding="utf-8").splitlines()
            code[page] = "\n".join(line for line in text if line.startswith((">>>", "...")))
    for path in sorted((DOCS.parent / "examples/gallery").glob("recipe_*.py")):
        code[f"recipes/{path.stem}"] = path.read_text(encoding="utf-8")
    found = {}
    for name, value in public().items():
        if callable(value):
            home, _, short = name.rpartition(".")
            calls = re.compile(rf"\b{re.escape(home.rpartition('.')[2])}\.{short}\b")
            found[name] = [page for page, text in code.items() if calls.search(text)]
    return found
