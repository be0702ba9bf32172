"""Rows of text and the transformer of table-4.2."""

import torch

from tether_studies import language
from tether_studies.language import RADII, Rows, Transformer, cola


def test_rows_are_read_in_parallel_and_every_word_but_the_first_is_predicted_once():
    data = Rows(torch.arange(21), rows=2, length=4)
    pairs = [(x.tolist(), y.tolist()) for x, y in data]
    assert len(data) == 3
    assert pairs[0] == ([[0, 1, 2, 3], [10, 11, 12, 13]], [[1, 2, 3, 4], [11, 12, 13, 14]])
    assert pairs[2] == ([[8], [18]], [[9], [19]])


def test_the_transformer_sees_only_what_came_before():
    torch.manual_seed(0)
    net = Transformer(words=11, width=8, length=6).eval()
    x = torch.randint(0, 11, (3, 6))
    other = x.clone()
    other[:, 4] = (x[:, 4] + 1) % 11
    with torch.no_grad():
        a, b = net(x), net(other)
    torch.testing.assert_close(a[:, :4], b[:, :4])
    assert not torch.allclose(a[:, 4], b[:, 4])


def test_a_transformer_that_knows_nothing_has_the_entropy_of_its_vocabulary():
    net = Transformer(words=11, width=8, length=6)
    with torch.no_grad():
        net.decoder.weight.zero_()
        net.decoder.bias.zero_()
    data = Rows(torch.arange(40) % 11, rows=3, length=6)
    assert abs(language.tested(net, data) - torch.tensor(11.0).log()) < 1e-5


def test_every_weight_has_a_radius_and_no_bias_has():
    torch.manual_seed(0)
    net = Transformer(words=11, width=8, length=6)
    opt = cola(1.0)(net, 0)
    for x, y in Rows(torch.arange(400) % 11, rows=4, length=6):
        opt.zero_grad()
        torch.nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten()).backward()
        opt.step()
    bounds = {"norm": 1.0, "self_attn": 1.0, "linear": 0.1}
    for name, p in net.named_parameters():
        if name.endswith("weight"):
            bound = next((r for kind, r in bounds.items() if kind in name), 0.5)
            assert float(p.detach().abs().max()) <= bound * (1 + 1e-6), name
    assert sorted(RADII.values()) == [0.1, 0.5, 1.0, 1.0]
    assert float(net.decoder.bias.detach().abs().max()) > 0
