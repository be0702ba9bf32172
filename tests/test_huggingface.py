"""Models as Hugging Face makes them: a batch is a dict, the output an object with a loss, and weights may be tied."""

import types
import warnings

import pytest
import torch
from torch import nn

import tether
from tether import methods


class Masked(nn.Module):
    """A language model in the small: the decoder's weight is the embedding's."""

    def __init__(self, words=7, width=4, bias=True):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.body = nn.Linear(width, width)
        self.head = nn.Linear(width, width)
        self.decoder = nn.Linear(width, words, bias=bias)
        self.decoder.weight = self.embedding.weight

    def forward(self, input_ids, attention_mask=None, labels=None):
        hidden = self.body(self.embedding(input_ids)).tanh()
        if attention_mask is not None:
            hidden = hidden * attention_mask[..., None]
        logits = self.decoder(self.head(hidden).tanh())
        loss = None if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return types.SimpleNamespace(loss=loss, logits=logits)


def masked(**options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Masked(**options).double()


def batches(count, words=7):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        ids = torch.randint(0, words, (3, 5), generator=generator)
        yield {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids.roll(1, 1)}


K, H, MU = 3, 0.3, 0.9


def by_hand(model, fast, steps):
    """Algorithm 5.1 on each tensor once: at every K-th step all momenta, in between the fast ones; all drift."""
    momenta = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for n, batch in enumerate(batches(steps)):
        params = dict(model.named_parameters())
        grads = torch.autograd.grad(model(**batch).loss, list(params.values()))
        with torch.no_grad():
            for (name, param), grad in zip(params.items(), grads, strict=True):
                if n % K == 0 or name in fast:
                    momenta[name] = MU * momenta[name] + grad
                param -= H / K * momenta[name]


@pytest.mark.parametrize(
    ("fast", "names"),
    [
        ("head.*|decoder.bias", {"head.weight", "head.bias", "decoder.bias"}),
        ("embedding.*|decoder.*", {"embedding.weight", "decoder.bias"}),
    ],
    ids=["tied weight slow", "tied weight fast"],
)
def test_tied_weights_move_once(fast, names):
    model, twin = masked(), masked()
    opt = methods.multirate_sgd(model, fast=fast, k=K, lr=H, momentum=MU)
    assert sum(len(group["params"]) for group in opt.param_groups) == 6
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tied decoder is slow and comes last, or all is after a fast embedding
        for n, batch in enumerate(batches(7)):
            assert model.embedding.weight.requires_grad == (n % K == 0 or "embedding.weight" in names)
            opt.zero_grad()
            model(**batch).loss.backward()
            opt.step()
    by_hand(twin, names, 7)
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13, msg=name)
    assert model.decoder.weight is model.embedding.weight


@pytest.mark.parametrize(
    ("fast", "advice"),
    [
        ("head.*|decoder.*", r"match both, fast='head\.\*\|decoder\.\*\|embedding\.weight', or neither"),
        ("embedding.*", r"match both, fast='embedding\.\*\|decoder\.weight', or neither"),
    ],
)
def test_a_tied_weight_has_one_clock(fast, advice):
    model = masked()
    with pytest.raises(ValueError, match=f"'embedding.weight' and 'decoder.weight' are one tensor.*{advice}"):
        methods.multirate_sgd(model, fast=fast, k=K)
    assert all(param.requires_grad for param in model.parameters())


def test_a_slow_tied_decoder_is_named():
    # its weight waits, but the gradient of what comes before it must pass through it at every step
    model = masked(bias=False)
    methods.multirate_sgd(model, fast="head.*", k=K)
    with pytest.warns(UserWarning, match="'decoder' is slow but runs after 'head', which is fast"):
        model(**next(batches(1)))


def test_a_hybrid_of_torchs_optimizers_on_tied_weights():
    model, twin = masked(), masked()

    def two(net):
        fast = [*net.head.parameters(), net.decoder.bias]
        slow = [*net.embedding.parameters(), *net.body.parameters()]
        return torch.optim.AdamW(fast, lr=0.01), torch.optim.SGD(slow, lr=0.1, momentum=0.9)

    opt = tether.Multirate(dict(zip(("head", "body"), two(model), strict=True)), every={"body": K})
    head, body = two(twin)
    for n, batch in enumerate(batches(7)):
        opt.zero_grad()
        model(**batch).loss.backward()
        assert (model.decoder.weight.grad is not None) == (n % K == 0)
        opt.step()
        twin.zero_grad()
        twin(**batch).loss.backward()
        head.step()
        if n % K == 0:
            body.step()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)
    with pytest.raises(ValueError, match="belongs to two of the optimizers"):
        tether.Multirate(
            {
                "head": torch.optim.SGD(model.decoder.parameters(), lr=0.1),
                "body": torch.optim.SGD(model.embedding.parameters(), lr=0.1),
            }
        )


def test_a_real_masked_language_model(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    size = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=7, **size))
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    with pytest.raises(ValueError, match=r"'bert\.embeddings\.word_embeddings\.weight' and .* are one tensor"):
        methods.multirate_sgd(model, fast="cls.*", k=2)
    opt = methods.multirate_sgd(model, fast="cls.predictions.transform.*|cls.predictions*.bias", k=2, lr=0.1)
    words, query = model.bert.embeddings.word_embeddings.weight, model.bert.encoder.layer[0].attention.self.query.weight
    model.train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tied decoder is slow and comes last
        for n, batch in enumerate(batches(4)):
            before, opened = words.detach().clone(), model.cls.predictions.transform.dense.weight.detach().clone()
            opt.zero_grad()
            model(**batch).loss.backward()
            assert (query.grad is not None) == (words.grad is not None) == (n % 2 == 0)
            opt.step()
            assert not torch.equal(words, before)  # drifts at every step
            assert not torch.equal(model.cls.predictions.transform.dense.weight, opened)
