"""What a script measured, as JSON: numbers with the date, the versions and the settings they come from."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import tether


def write(path: Path, options: argparse.Namespace, measured: Any) -> None:
    """Write measured numbers and where they come from; a reader never sees half a file."""
    settings = {name: value for name, value in vars(options).items() if not isinstance(value, Path)}
    versions = {"tether": tether.__version__, "torch": torch.__version__, "python": platform.python_version()}
    record = {
        "script": Path(sys.argv[0]).name,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": versions,
        "settings": settings,
        "measured": measured,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    draft.replace(path)
