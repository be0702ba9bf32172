"""The command ``tether``: it finds its sub-commands by their entry points and turns errors into exit codes.

A package adds a sub-command by an entry point of the group ``tether.commands``: a function that takes an `argparse`
parser, adds its arguments to it and returns the action. The first line of its docstring is its help. The studies'
``list``, ``run`` and ``report`` are such commands; nothing here knows them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points

__all__ = ["CODES", "main"]

GROUP = "tether.commands"
INSTALL = "pip install 'tether[studies]' (in a checkout: pip install -e '.[studies]')"
CODES = """exit codes:
  0    all that was asked for ran to its end
  1    something failed or did not run: data or a package missing, a folder in use, a full disk
  2    the command was wrong, or there is nothing to report; no study was begun
  130  interrupted (Ctrl-C); the same command goes on
  143  terminated (SIGTERM); the same command goes on"""

Action = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure") and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # not every terminal can show Greek
    points = {point.name: point for point in entry_points(group=GROUP)}
    if not points:
        asked = next((word for word in arguments if not word.startswith("-")), "")
        print(f"tether: no commands are installed, {asked or 'list'!r} among them: {INSTALL}", file=sys.stderr)
        return 2
    options = _parser(points).parse_args(arguments)
    try:
        code: int = options.action(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except (KeyError, ValueError, OSError) as error:
        print(f"tether: {error.args[0] if isinstance(error, KeyError) else error}", file=sys.stderr)
        return 1 if isinstance(error, OSError) else 2
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from here", file=sys.stderr)
        return 130


def _parser(points: dict[str, EntryPoint]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tether",
        description="Training dynamics by design.",
        epilog=CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, point in points.items():
        try:
            command = point.load()
        except ImportError as error:
            absent = commands.add_parser(name, help=f"not installed: {error}")
            absent.set_defaults(action=_absent(name, error))
            continue
        said = (command.__doc__ or "").partition("\n")[0].rstrip(".")
        own = commands.add_parser(name, help=said, description=said, epilog=CODES)
        own.formatter_class = argparse.RawDescriptionHelpFormatter
        own.set_defaults(action=command(own))
    return parser


def _absent(name: str, error: ImportError) -> Action:
    """The action of a command that cannot be loaded: it says what to install."""

    def action(options: argparse.Namespace) -> int:
        print(f"tether: `tether {name}` is not installed ({error}): {INSTALL}", file=sys.stderr)
        return 2

    return action


if __name__ == "__main__":
    sys.exit(main())
