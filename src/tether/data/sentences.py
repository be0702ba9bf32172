"""Sentence sets, read from a folder in their original formats."""

from __future__ import annotations

import gzip
from pathlib import Path

import torch

from tether.data.images import folder

__all__ = ["sst2"]

COLUMNS = {"train": "sentence\tlabel", "dev": "sentence\tlabel", "test": "index\tsentence"}


def sst2(split: str = "train", root: str | Path | None = None) -> tuple[list[str], torch.Tensor]:
    """SST-2 in GLUE's form: phrases of film reviews, and 1 where they are positive, 0 where negative.

    Args:
        split: ``"train"`` (67,349), ``"dev"`` (872) or ``"test"`` (1,821, published without labels: all are −1).
        root: the folder that holds ``sst2/``; without it the environment variable ``TETHER_DATA``.
    """
    if split not in COLUMNS:
        raise ValueError(f"split={split!r} must be one of {', '.join(map(repr, COLUMNS))}")
    path = folder("sst2", root) / f"{split}.tsv.gz"
    if path.exists():
        content = gzip.decompress(path.read_bytes()).decode()
    elif path.with_suffix("").exists():
        content = path.with_suffix("").read_text(encoding="utf-8")
    else:
        raise FileNotFoundError(
            f"{path} is missing, and so is the same without .gz: put those of GLUE's SST-2 there (gluebenchmark.com)"
        )
    head, *rows = content.rstrip("\n").split("\n")
    if head != COLUMNS[split]:
        raise ValueError(f"{path} is no file of SST-2: it begins with {head[:60]!r}, not with {COLUMNS[split]!r}")
    fields = [row.split("\t") for row in rows]  # on tabs alone: quotation marks are characters like others
    if split == "test":
        return [sentence for _, sentence in fields], torch.full((len(fields),), -1)
    return [sentence for sentence, _ in fields], torch.tensor([int(label) for _, label in fields])
