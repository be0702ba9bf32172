"""The studies live beside the library: it does not import them, works without them, and finds them by entry points."""

import ast
import subprocess
import sys
from pathlib import Path

import tether
from tether import cli

CORE = Path(tether.__file__).parent


def imported(path):
    """The modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_the_core_never_imports_the_studies():
    found = {name for path in CORE.rglob("*.py") for name in imported(path)}
    assert "torch" in found
    assert not {name for name in found if name.startswith("tether_studies")}


def test_without_the_studies_the_library_works_and_the_command_says_what_to_install():
    program = """
import sys
sys.modules["tether_studies"] = None  # as if it were not there
import torch, tether
from tether.cli import main
net = torch.nn.Linear(2, 1)
opt = tether.methods.sgd(net, lr=0.1)
net(torch.ones(3, 2)).sum().backward()
opt.step()
assert "matplotlib" not in sys.modules
sys.exit(main(["list"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "`tether list` is not installed" in done.stderr
    assert "pip install 'tether[studies]'" in done.stderr


def test_without_any_command_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(cli, "entry_points", lambda group: [])
    assert cli.main(["list"]) == 2
    assert "'list' among them: pip install 'tether[studies]'" in capsys.readouterr().err


def test_another_package_adds_a_command(monkeypatch, capsys):
    def greet(parser):
        """Greet somebody."""
        parser.add_argument("name")
        return lambda options: print(f"hello {options.name}") or 0

    class Point:
        name = "greet"

        def load(self):
            return greet

    monkeypatch.setattr(cli, "entry_points", lambda group: [Point()] if group == "tether.commands" else [])
    assert cli.main(["greet", "world"]) == 0
    assert capsys.readouterr().out == "hello world\n"
