"""The house: what the layout of src/tether promises, read from its source by ast."""

import ast
import fnmatch
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import torch
from torch import nn

import tether

HOME = Path(tether.__file__).parent
ROOF = 22  # entries at the top level: DESIGN's twenty, `constrain` and `layerwise`
LONGEST = 40  # lines of a function on the way of a step

# Private names that belong to torch or to Python: there is no public way to the same thing.
NOT_OURS = (
    *("_foreach_*", "_C", "_set_grad_enabled", "_increment_version", "_current_graph_task_id", "_version", "_assert"),
    *("_parameters", "_buffers", "_modules", "_schema", "_conv_forward", "_NormBase", "_BatchNorm"),
    *("_*_hooks", "_getframe", "_replace"),
)
# Names that several files may have, and why.
SHARED = {
    "parse": "words.parse and hamiltonian.parse are public: each reads the words of its own grammar",
    "finite": "one question, by the reference and by its kernel",
    "words": "one generator, by the reference and by its kernel",
    "product": "one product, by the reference and by its kernel",
}


@cache
def sources():
    """Each module of tether by its name: its file's path inside the package, and its tree."""
    found = {}
    for file in sorted(HOME.rglob("*.py")):
        inside = file.relative_to(HOME)
        name = ".".join(["tether", *inside.with_suffix("").parts]).removesuffix(".__init__")
        found[name] = (inside.as_posix(), ast.parse(file.read_text(encoding="utf-8")))
    return found


def imports(tree):
    """Every import of a tree, inside functions too, as (module, name or None, line); not those of type checkers."""
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped |= {id(inner) for statement in node.body for inner in ast.walk(statement)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, None, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not read here: write the whole name"
            yield from ((node.module, alias.name, node.lineno) for alias in node.names)


def uses(name):
    """The modules of tether that a module imports, each with the line; a package met from outside is imported too."""
    found = {}
    for module, attribute, line in imports(sources()[name][1]):
        target = f"{module}.{attribute}" if f"{module}.{attribute}" in sources() else module
        if target in sources() and target != name:
            found.setdefault(target, line)
            package = target.rpartition(".")[0]
            if package not in ("tether", "") and not name.startswith(package):
                found.setdefault(package, line)
    return found


def cycles(graph):
    """The sets of modules that reach each other."""
    reach = {name: set(graph[name]) for name in graph}
    for middle in graph:
        for name in graph:
            if middle in reach[name]:
                reach[name] |= reach[middle]
    return {frozenset(other for other in reach[name] if name in reach[other]) for name in graph if name in reach[name]}


def test_a_cycle_is_found():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == {frozenset("bc")}
    assert cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == set()
    lazy = "def f():\n    from tether import part\nif TYPE_CHECKING:\n    import tether.words\n"
    assert list(imports(ast.parse(lazy))) == [("tether", "part", 2)]


def test_no_cycle_in_the_import_graph_lazy_imports_included():
    graph = {name: uses(name) for name in sources()}
    assert [sorted(cycle) for cycle in cycles(graph)] == []


def test_the_core_never_imports_the_studies():
    met = [
        f"{file}:{line}"
        for file, tree in sources().values()
        for module, _, line in imports(tree)
        if module.partition(".")[0] == "tether_studies"
    ]
    assert met == []


def private(name):
    return name.startswith("_") and not name.startswith("__")


def own_names(tree):
    """The private names a file defines: functions, classes, variables, and attributes set on self or cls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            yield node.attr


def is_self(node):
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def foreign(tree):
    """Private names of others that a file uses, each with its line."""
    own = set(own_names(tree))
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Attribute) and not is_self(node.value):
            names = [node.attr]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "setattr"):
            names = [arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant)]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        for name in names:
            if private(name) and name not in own and not any(fnmatch.fnmatch(name, known) for known in NOT_OURS):
                yield f"{node.lineno} {name}"


def test_a_foreign_private_name_is_found():
    lines = ["x._a", "self._b", "self._c = 1", "y._c", "from tether.part import _d", "getattr(z, '_e')"]
    text = "\n".join([*lines, "torch._foreach_add_", "x.__dict__", "x._forward_hooks"])
    assert sorted(foreign(ast.parse(text))) == ["1 _a", "5 _d", "6 _e"]


def test_no_private_name_is_used_across_files():
    assert [f"{file}:{use}" for file, tree in sources().values() for use in foreign(tree)] == []


@cache
def definitions():
    """Where each public class and top-level function is defined."""
    found = defaultdict(list)
    for file, tree in sources().values():
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                found[node.name].append(f"{file}:{node.lineno}")
    return found


def test_no_two_things_of_one_name():
    several = {name: where for name, where in definitions().items() if len(where) > 1}
    assert {name: where for name, where in several.items() if name not in SHARED} == {}
    assert SHARED.keys() - several.keys() == set()  # a name that is no longer shared needs no reason


def test_about_twenty_entries_at_the_top():
    entries = sorted(entry.name for entry in HOME.iterdir() if not entry.name.startswith("__"))
    assert len(set(entries) - {"py.typed"}) <= ROOF, entries


# The way of a step


def plain_net():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


def on(surface):
    parts = [tether.Part("2.weight", on=surface), tether.Part("*")]
    return lambda net: tether.Optimizer(net, parts, lr=0.1, word="OBA", temperature=1e-3)


WALKS = {
    "X": lambda net: tether.Optimizer(net, lr=0.1),
    "BAOAB": lambda net: tether.Optimizer(net, lr=0.1, word="BAOAB", temperature=1e-3),
    "foreach": lambda net: tether.Optimizer(net.to(torch.bfloat16), lr=0.1, word="BAOAB", temperature=1e-3),
    "reference": lambda net: tether.Optimizer(net, lr=0.1, word="BAOAB", temperature=1e-3, foreach=False),
    "orthogonal": on(tether.Orthogonal()),
    "circle": on(tether.Circle(1.0)),
    "sphere": on(tether.Sphere(1.0)),
    "level": on(tether.Level(lambda w: w.square().sum() - 1)),
    "adlala": tether.methods.adlala,
    "every": lambda net: tether.methods.multirate_sgd(net, fast="4.*", k=5),
    "path": lambda net: tether.Optimizer(net, lr=0.1, word="OBA", metric=tether.Path()),
    "asleep": tether.methods.random_subset,
    "merge": lambda net: tether.Optimizer(net, lr=0.01, merge=5),
}


def called(make):
    """The functions of tether that a third step calls, as (file, first line)."""
    net = plain_net()
    opt, calls = make(net), set()

    def watch(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(HOME)):
            calls.add((Path(code.co_filename).relative_to(HOME).as_posix(), code.co_name, code.co_firstlineno))

    for step in range(3):
        opt.zero_grad()
        net(torch.ones(4, 8, dtype=net[0].weight.dtype)).square().mean().backward()
        sys.setprofile(watch if step == 2 else None)
        try:
            opt.step()
        finally:
            sys.setprofile(None)
    return calls


def lengths():
    """The lines of every function, by (file, name, line): of the first decorator, as Python counts, or of `def`."""
    found = {}
    for file, tree in sources().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                found[file, node.name, first] = node.end_lineno - node.lineno + 1
    return found


def test_no_long_function_on_the_way_of_a_step():
    size, way = lengths(), {call for make in WALKS.values() for call in called(make)}
    way &= size.keys()  # lambdas and comprehensions are parts of the functions around them
    assert len(way) > 100  # the walk has met the engine
    assert [f"{call}: {size[call]} lines" for call in sorted(way) if size[call] > LONGEST] == []
