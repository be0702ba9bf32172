"""Small things to train: a tiny BERT on phrases of SST-2, a convolution on MNIST, and methods that keep much state."""

import gzip
import struct

import torch
from torch import nn

import tether
from tether import methods

WORDS, LENGTH = 200, 8


def made_up(folder):
    """Data of random numbers in the original formats, where the real sets lie elsewhere."""
    generator = torch.Generator().manual_seed(0)
    (folder / "mnist").mkdir(parents=True)
    for part, n in (("train", 512), ("t10k", 512)):
        labels = torch.randint(0, 10, (n,), generator=generator, dtype=torch.uint8)
        pixels = torch.randint(0, 256, (n, 28, 28), generator=generator, dtype=torch.uint8)
        for kind, head, x in (("labels-idx1", (2049, n), labels), ("images-idx3", (2051, n, 28, 28), pixels)):
            packed = gzip.compress(struct.pack(f">{len(head)}I", *head) + x.numpy().tobytes())
            (folder / "mnist" / f"{part}-{kind}-ubyte.gz").write_bytes(packed)
    (folder / "sst2").mkdir()
    for part in ("train", "dev"):
        numbers = torch.randint(0, WORDS, (512, LENGTH), generator=generator).tolist()
        rows = [" ".join(f"word{i}" for i in row) + f"\t{row[0] % 2}" for row in numbers]
        (folder / "sst2" / f"{part}.tsv").write_text("\n".join(["sentence\tlabel", *rows, ""]))
    return folder


def phrases():
    """Phrases of SST-2 as numbers of their words, 0 for none and 1 for rare ones, and their labels."""
    sentences, labels = tether.data.sst2("dev")
    known = {}
    rows = [
        [2 + known.setdefault(word, len(known)) for word in sentence.split()[:LENGTH]] for sentence in sentences[:256]
    ]
    rows = [[i if i < WORDS else 1 for i in row] + [0] * (LENGTH - len(row)) for row in rows]
    return torch.tensor(rows), labels[:256]


def digits():
    """Images of MNIST between 0 and 1, and their labels."""
    pixels, labels = tether.data.mnist(train=False)
    return pixels[:512, None].float() / 255, labels[:512].long()


def convolution():
    torch.manual_seed(0)
    head = nn.Linear(128, 10)
    return nn.Sequential(nn.Conv2d(1, 4, 5, 2), nn.ReLU(), nn.Conv2d(4, 8, 5, 2), nn.ReLU(), nn.Flatten(), head)


def bert():
    import transformers

    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, num_labels=2, **size)
    return transformers.BertForSequenceClassification(config)


def orthogonal(model, free=()):
    return methods.orthogonal_cola_ud(model, lr=0.05, friction=1.0, temperature=1e-6, free=free)


def circle(model):
    return methods.circle_cola_ud(model, lr=0.05, radius=0.3, temperature=1e-6)


def adlala(model, output="5.*"):
    return methods.adlala(model, lr=0.1, output=output)


def multirate(model, fast="5.*"):
    return methods.multirate_sgd(model, fast=fast, k=3)


def subset(model):
    return methods.random_subset(model, k=3, momentum=0.9)
