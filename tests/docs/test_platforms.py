"""What docs/devices.md says about other systems: the core needs no module and no call that only POSIX has."""

import ast
from pathlib import Path

HOME = Path(__file__).parents[2] / "src" / "tether"
POSIX = {"fcntl", "grp", "pwd", "resource", "termios", "tty", "pty"}


def needs(text):
    """Modules and calls of a source that only POSIX has."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from POSIX & {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            yield from POSIX & {node.module}
        elif isinstance(node, ast.Call):
            call = ast.unparse(node)
            yield from (bad for bad in ("os.fork(", "get_context('fork')") if bad in call)


def test_the_core_runs_without_posix():
    assert {
        path.name: found for path in HOME.rglob("*.py") if (found := [*needs(path.read_text(encoding="utf-8"))])
    } == {}


def test_what_needs_posix_is_noticed():
    text = "import fcntl\nfrom pwd import getpwall\nx = multiprocessing.get_context('fork')"
    assert [*needs(text)] == ["fcntl", "pwd", "get_context('fork')"]
