"""Who sleeps in the transformer of fig-5.8, and when it is tested."""

import torch

from tether.part import matches
from tether_studies import language
from tether_studies.language import Transformer


def test_the_matrices_of_the_encoder_sleep_and_nothing_else():
    params = dict(Transformer(words=11, width=8, length=6).named_parameters())
    asleep = {name for name in params if matches(name, language.MATRICES)}
    assert asleep == {name for name, p in params.items() if name.startswith("layers.") and p.dim() == 2}
    assert len(asleep) == 8


def test_it_is_tested_with_all_weights_awake(monkeypatch):
    seen = []
    words = [str(i) for i in range(11)]
    monkeypatch.setattr(language, "read", lambda text, split, count: (torch.arange(2000) % 11, words))

    def tested(net, data):
        seen.append(min(float((p != 0).double().mean()) for name, p in net.named_parameters() if p.dim() == 2))
        return 1.0

    monkeypatch.setattr(language, "tested", tested)
    study = language.SubsetsOfWords(epochs=4, tokens=2000, width=8, rows=4, length=20, k=3)
    found = study.piece(0.0, 0.5, seed=0)
    assert found["steps"] == list(range(3, 100, 4))
    assert len(seen) == 25
    assert min(seen) == 1
    assert found["loss"][-1] < found["loss"][0]


def test_the_best_setting_of_a_kind():
    found = {"dropout 0.1": torch.tensor([2.0, 1.0]), "dropout 0.3": torch.tensor([1.5, 2.0]), "SGD": torch.zeros(2)}
    assert language.best(found, "dropout") == "dropout 0.3"  # by the runs with even numbers; the others judge it
    assert language.best(found, "SGD") == "SGD"
