"""Sentence sets, read from a folder in their original formats."""

from __future__ import annotations

from pathlib import Path

import torch

from tether.data.files import folder, lines, present

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
    path = present(folder("sst2", root) / f"{split}.tsv", "put those of GLUE's SST-2 there (gluebenchmark.com)")
    head, *rows = lines(path)
    if head != COLUMNS[split]:
        raise ValueError(f"{path} is no file of SST-2: it begins with {head[:60]!r}, not with {COLUMNS[split]!r}")
    if not rows:
        raise ValueError(f"{path} holds no rows: get it again")
    sentences, labels = [], []
    for i, row in enumerate(rows, 1):
        fields = row.split("\t")  # on tabs only: quotation marks have no special meaning
        if len(fields) != 2 or (split != "test" and fields[1] not in ("0", "1")):
            raise ValueError(f"{path}, row {i}: {row[:60]!r} is not {COLUMNS[split]!r}")
        sentences.append(fields[1] if split == "test" else fields[0])
        labels.append(-1 if split == "test" else int(fields[1]))
    return sentences, torch.tensor(labels)
