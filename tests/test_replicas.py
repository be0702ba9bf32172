"""Replicas: n networks at once are n networks, each what it would be alone."""

import copy
import io
import pickle
import random
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tether.ensemble import products
from tether.ensemble.replicas import Layer, Replicas, build, layers_of

ROUNDING = {torch.float32: 2e-5, torch.float64: 1e-12}  # of sums of some tens of numbers of order 1


def mlp():
    return nn.Sequential(nn.Linear(2, 7), nn.Tanh(), nn.Linear(7, 3))


def deep():
    body = nn.Sequential(nn.Linear(7, 6, bias=False), nn.GELU(approximate="tanh"), nn.Dropout(0.0))
    return nn.Sequential(nn.Flatten(), nn.Linear(2, 7), nn.LeakyReLU(0.3, inplace=True), body, nn.Linear(6, 3))


def convolutional():
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    )


def normalised():
    # no bias under the mean, whose gradient would be nothing but rounding
    return nn.Sequential(nn.Linear(2, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def normalised_2d():
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))


def cumulative():
    return nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5, momentum=None), nn.Linear(5, 3))


def untracked():
    return nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 3))


def transformer():
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        x = self.norm(x)
        return self.attention(x, x, x, need_weights=False)[0]


class Tied(nn.Module):
    """A language model in miniature: the embedding is also the output layer."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(11, 4), nn.Linear(4, 11, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids, mask=None):
        hidden = self.embed(ids)
        return self.out(hidden if mask is None else hidden * mask.unsqueeze(-1))


class Counting(nn.Module):
    """Sets its buffer anew instead of changing it in place, and returns more than tensors."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2))
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x):
        self.seen = self.seen + (x * self.weight).mean(0).detach()
        return {"y": x * self.weight, "nothing": None, "kind": "product"}


def frozen():
    net = mlp()
    net[0].weight.requires_grad_(False)
    return net


def twice():
    layer = nn.Linear(2, 2)
    return nn.Sequential(layer, nn.Tanh(), layer)


def recurrent():
    return nn.LSTM(3, 4, batch_first=True)


BATCHES = {  # the shape of a batch for each net
    **dict.fromkeys((mlp, deep, twice, frozen, normalised, cumulative, untracked), (5, 2)),
    **dict.fromkeys((convolutional, normalised_2d), (5, 2, 6, 6)),
    **dict.fromkeys((Attention, transformer), (5, 3, 8)),
    Tied: (5, 3),
    recurrent: (5, 2, 3),
}
nets = pytest.mark.parametrize(("factory", "shape"), BATCHES.items(), ids=[net.__name__ for net in BATCHES])


def data(factory, shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if factory is Tied:
        return torch.randint(11, shape, generator=generator)
    return torch.randn(shape, generator=generator, dtype=dtype)


def loss(out):
    """Of one replica, or the sum over those stacked in `out`; gradients of all signs and sizes."""
    out = out[0] if isinstance(out, tuple) else out
    return (out.sin() + out).square().sum()


def gradients(factory, ens, inputs):
    """The stacked outputs, gradients and buffers of a plain loop over the replicas."""
    outs, grads, buffers = [], [], []
    for module, x in zip(ens, inputs, strict=True):
        out = module(x)
        loss(out).backward()
        outs.append(out[0] if isinstance(out, tuple) else out)
        grads.append({name: p.grad for name, p in module.named_parameters()})
        buffers.append(dict(module.named_buffers()))
    return torch.stack(outs), *({k: _stack([x[k] for x in xs]) for k in xs[0]} for xs in (grads, buffers))


def _stack(tensors):
    return None if tensors[0] is None else torch.stack(tensors)


def close(got, want, dtype=torch.float32):
    if want is None:
        assert got is None
    else:
        torch.testing.assert_close(got, want, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])


# building


def test_replica_i_is_what_the_factory_builds_under_its_own_seed_whatever_n_is():
    for n in (1, 3, 6):
        ens = Replicas(mlp, n, seed=4)
        for i in range(n):
            alone = build(mlp, 4, i).state_dict()
            for name, x in ens.state_dict().items():
                assert torch.equal(x[i], alone[name])
                assert torch.equal(ens[i].state_dict()[name], alone[name])


def test_no_two_replicas_or_seeds_are_alike():
    weights = [build(mlp, seed, i)[0].weight.flatten().tolist() for seed in range(4) for i in range(12)]
    assert len({tuple(w) for w in weights}) == 48


def test_the_seed_of_a_replica_is_63_bits_of_the_hash():
    seeds = []

    def factory():
        seeds.append(torch.initial_seed())
        return mlp()

    build(factory, 0, 1)
    build(factory, 3, 12)
    # hashlib.blake2b(b"0/1", digest_size=8), little endian, without the lowest bit; written down once and for all
    assert seeds == [7359998640416684799, 4416388992898676223]


def test_the_generators_are_left_as_they_were():
    torch.manual_seed(5)
    random.seed(5)
    before = torch.get_rng_state(), random.getstate()
    ens = Replicas(normalised, 3)
    ens(torch.ones(4, 2))
    ens.subset([1])[0]
    build(mlp, 0, 1)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_names_shapes_and_kinds_are_those_of_the_module():
    ens = Replicas(normalised, 4)
    plain = normalised()
    assert [(name, p.shape[1:]) for name, p in ens.named_parameters()] == [
        (name, p.shape) for name, p in plain.named_parameters()
    ]
    assert [(name, x.shape[1:], x.dtype) for name, x in ens.state_dict().items()] == [
        (name, x.shape, x.dtype) for name, x in plain.state_dict().items()
    ]
    assert all(len(x) == 4 for x in ens.state_dict().values())
    assert isinstance(ens.get_parameter("0.weight"), nn.Parameter)
    assert not isinstance(ens.get_buffer("1.running_var"), nn.Parameter)


def test_dtypes_and_what_is_not_saved_are_kept():
    def mixed():
        net = nn.Linear(2, 3).double()
        net.register_buffer("scratch", torch.ones(2, dtype=torch.int16), persistent=False)
        net.coarse = nn.Linear(1, 1, dtype=torch.bfloat16)
        return net

    ens = Replicas(mixed, 2)
    assert ens.get_parameter("weight").dtype is torch.float64
    assert ens.get_parameter("coarse.bias").dtype is torch.bfloat16
    assert ens.get_buffer("scratch").tolist() == [[1, 1], [1, 1]]
    assert "scratch" not in ens.state_dict()
    assert "scratch" not in ens[0].state_dict()


def test_tied_weights_are_one_stacked_parameter():
    ens = Replicas(Tied, 3)
    assert ens.get_parameter("embed.weight") is ens.get_parameter("out.weight")
    assert [name for name, _ in ens.named_parameters()] == ["embed.weight"]
    for other in (copy.deepcopy(ens), ens.subset([2, 0]), ens[1], pickle.loads(pickle.dumps(ens)), ens.double()):
        assert other.get_parameter("embed.weight") is other.get_parameter("out.weight")


def test_frozen_parameters_stay_frozen():
    ens = Replicas(frozen, 3)
    kinds = {name: p.requires_grad for name, p in ens.named_parameters()}
    assert kinds == {"0.weight": False, "0.bias": True, "2.weight": True, "2.bias": True}
    assert {name: p.requires_grad for name, p in ens[1].named_parameters()} == kinds
    assert {name: p.requires_grad for name, p in ens.subset([0]).named_parameters()} == kinds


def test_a_module_the_factory_shares_is_copied_not_changed():
    trunk = nn.Linear(2, 2)
    weight = trunk.weight
    ens = Replicas(lambda: nn.Sequential(trunk, nn.Linear(2, 1)), 3)
    assert trunk.weight is weight
    assert not hasattr(weight, "replicas")
    ens.get_parameter("0.weight").data.zero_()
    assert weight.abs().sum() > 0


# computing


@pytest.mark.parametrize("way", ["as it comes", "vmap", "in turn"])
@pytest.mark.parametrize("each", [False, True], ids=["shared", "each"])
@nets
def test_outputs_gradients_and_buffers_are_those_of_a_loop(factory, shape, each, way):
    n = 3
    ens = Replicas(factory, n, fast=way == "as it comes", vmap=way != "in turn")
    x = data(factory, (n, *shape) if each else shape)
    want, grads, buffers = gradients(factory, ens, x if each else [x] * n)
    got = ens(x, each=each)
    loss(got).backward()
    close(got[0] if isinstance(got, tuple) else got, want)
    for name, p in ens.named_parameters():
        close(p.grad, grads[name])
    for name, buffer in ens.named_buffers():
        close(buffer, buffers[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("each", [False, True], ids=["shared", "each"])
@pytest.mark.parametrize("factory", [mlp, deep, twice])
def test_products_and_vmap_agree(factory, each, dtype):
    fast, slow = Replicas(factory, 4).to(dtype), Replicas(factory, 4, fast=False).to(dtype)
    assert fast.layers is not None
    assert slow.layers is None
    runs = []
    for ens in (fast, slow):
        x = data(factory, (4, 9, 2) if each else (9, 2), dtype).requires_grad_()
        out = ens(x, each=each)
        assert out.dtype is dtype
        loss(out).backward()
        runs.append([out, x.grad, *[p.grad for p in ens.parameters()]])
    for got, want in zip(*runs, strict=True):
        close(got, want, dtype)


def test_every_elementwise_layer_is_that_of_the_module():
    x = torch.linspace(-4, 4, 10).view(5, 2)
    for kind in products.ELEMENTWISE:
        ens = Replicas(lambda kind=kind: nn.Sequential(nn.Linear(2, 4), kind(), nn.Linear(4, 1)), 2)
        assert [layer.kind for layer in ens.layers] == ["linear", "elementwise", "linear"]
        close(ens(x), torch.stack([module(x) for module in ens]))


@pytest.mark.parametrize("factory", [normalised, normalised_2d, cumulative, untracked])
def test_batchnorm_keeps_the_statistics_of_every_replica(factory):
    shape = BATCHES[factory]
    ens = Replicas(factory, 3)
    plain = list(ens)
    for seed in range(3):
        x = data(factory, (3, *shape), seed=seed)
        ens(x)
        for module, mine in zip(plain, x, strict=True):
            module(mine)
    for i, module in enumerate(plain):
        for name, buffer in module.named_buffers():
            close(ens.get_buffer(name)[i], buffer)
            assert name.endswith("var") or buffer.any()  # it moved
    ens.eval()
    x = data(factory, shape, seed=9)
    before = copy.deepcopy(dict(ens.named_buffers()))
    close(ens(x, each=False), torch.stack([module.eval()(x) for module in plain]))
    assert all(torch.equal(buffer, before[name]) for name, buffer in ens.named_buffers())


def test_a_cumulative_average_counts_for_every_replica():
    ens = Replicas(cumulative, 2)
    older = ens[0]
    older(torch.randn(6, 2))
    ens.load(0, older)
    plain = list(ens)
    x = data(cumulative, (6, 2))
    ens(x)
    for i, module in enumerate(plain):
        module(x)
        close(ens.get_buffer("1.running_mean")[i], module[1].running_mean)
    assert ens.get_buffer("1.num_batches_tracked").tolist() == [2, 1]


@pytest.mark.parametrize("vmap", [True, False])
def test_a_buffer_that_is_set_anew_is_kept_and_other_outputs_pass_through(vmap):
    ens = Replicas(Counting, 3, vmap=vmap)
    seen = ens.get_buffer("seen")
    x = data(Counting, (4, 2))
    for _ in range(2):
        out = ens(x)
    assert ens.get_buffer("seen") is seen
    close(seen, 2 * torch.stack([(x * m.weight).mean(0).detach() for m in ens]))
    assert out["nothing"] is None
    assert out["kind"] == "product"
    close(out["y"], x * ens.get_parameter("weight").unsqueeze(1))


@pytest.mark.parametrize("each", [False, True], ids=["shared", "each"])
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("first", [True, False], ids=["on the input", "inside"])
def test_dropout_draws_a_mask_for_every_replica(first, fast, each):
    def factory():
        layers = [nn.Dropout(0.5), nn.Linear(64, 64)] if first else [nn.Linear(64, 64), nn.Dropout(0.5)]
        nn.init.eye_(layers[first].weight)
        nn.init.ones_(layers[first].bias)
        return nn.Sequential(*layers)

    torch.manual_seed(0)
    ens = Replicas(factory, 3, fast=fast)
    x = torch.ones(3, 16, 64) if each else torch.ones(16, 64)
    masks = ens(x) > (1.5 if first else 0)
    assert 0.45 < masks.float().mean() < 0.55  # 3072 coins: 5 standard errors of 0.009
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert 0.42 < (masks[i] == masks[j]).float().mean() < 0.58  # 1024 coins
    again = ens(x) > (1.5 if first else 0)
    assert not torch.equal(masks, again)
    assert torch.equal(ens.eval()(x), torch.full((3, 16, 64), 2.0))


def test_a_transformer_has_gradients_in_evaluation_too_and_no_warnings(recwarn):
    ens = Replicas(transformer, 2).eval()
    for fused in (False, True):
        torch.backends.mha.set_fastpath_enabled(fused)
        ens(data(transformer, (5, 3, 8))).square().sum().backward()
        assert torch.backends.mha.get_fastpath_enabled() is fused
    assert all(p.grad.abs().sum() > 0 for p in ens.parameters())
    with torch.no_grad():
        x = data(transformer, (5, 3, 8))
        close(ens(x), torch.stack([module(x) for module in ens]))
    assert not [w for w in recwarn if "batching rule" in str(w.message)]


def test_hooks_are_called_and_turn_the_products_off():
    ens = Replicas(mlp, 3)
    shapes = []
    handle = ens.get_submodule("0").register_forward_hook(lambda module, args, out: shapes.append(out.shape))
    assert ens.layers is None
    hooked = ens(torch.ones(5, 2))
    assert shapes == [(5, 7)]
    handle.remove()
    close(ens(torch.ones(5, 2)), hooked)
    assert shapes == [(5, 7)]
    ens.register_forward_hook(lambda module, args, out: shapes.append(out.shape))
    ens(torch.ones(5, 2))
    assert shapes == [(5, 7), (3, 5, 3)]


def test_layers_are_the_stages_by_name():
    ens = Replicas(deep, 2)
    assert layers_of(ens) == ens.layers
    assert Replicas(deep, 2, fast=False).subset([0]).layers is None
    assert [(kind, weight, bias) for kind, _, weight, bias in ens.layers] == [
        ("flatten", None, None),
        ("linear", "1.weight", "1.bias"),
        ("elementwise", None, None),
        ("linear", "3.0.weight", None),
        ("elementwise", None, None),
        ("dropout", None, None),
        ("linear", "4.weight", "4.bias"),
    ]
    assert isinstance(ens.layers[1], Layer)
    assert ens.layers[1].module.weight is ens.get_parameter("1.weight")
    assert [layer.weight for layer in Replicas(twice, 2).layers] == ["0.weight", None, "0.weight"]
    assert Replicas(lambda: nn.Linear(2, 1), 2).layers[0].weight == "weight"


def test_a_net_may_use_the_names_of_ours():
    class Clash(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.seed = nn.Sequential(nn.Linear(2, 3), nn.ReLU()), nn.Linear(3, 1)
            self.load = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return self.seed(self.layers(x)) + self.load

    ens = Replicas(Clash, 2)
    assert layers_of(ens) is None
    assert isinstance(ens.layers, nn.Sequential)
    assert ens.get_parameter("layers.0.weight").shape == (2, 3, 2)
    assert isinstance(ens.get_submodule("seed"), nn.Linear)
    x = data(mlp, (5, 2))
    close(ens(x), torch.stack([module(x) for module in ens]))
    other = Replicas(Clash, 2, seed=1)
    other.load_state_dict(ens.state_dict())
    close(copy.deepcopy(other)(x), ens(x))
    held = {"layers.0.weight": ens.get_parameter("layers.0.weight")}
    close(torch.func.functional_call(ens, held, (x,)), ens(x))


def test_only_the_very_layers_are_computed_by_products():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    for odd in (lambda: Doubled(2, 2), lambda: nn.PReLU(), lambda: nn.LayerNorm(2), lambda: nn.Flatten(0)):
        ens = Replicas(lambda odd=odd: nn.Sequential(nn.Linear(2, 2), odd()), 2)
        assert ens.layers is None
        x = data(mlp, (3, 2))
        close(ens(x), torch.stack([module(x) for module in ens]))


def test_inputs_of_other_shapes_are_left_to_the_module():
    ens = Replicas(mlp, 4)
    x = data(mlp, (2, 5, 2))
    close(ens(x), torch.stack([module(x) for module in ens]))
    close(ens(x[0, 0], each=False), torch.stack([module(x[0, 0]) for module in ens]))
    for each in (False, True):
        with pytest.raises(
            ValueError, match=r"\(4, 5, 3\) does not fit Linear\(in_features=2, out_features=7, bias=True\)"
        ):
            ens(torch.ones(4, 5, 3), each=each)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("factory", [mlp, normalised, Tied])
def test_training_together_is_training_alone(factory, optimizer):
    shape = BATCHES[factory]
    ens = Replicas(factory, 3).double()
    plain = list(ens)
    opt = optimizer(ens.parameters(), lr=0.002)
    alone = [optimizer(module.parameters(), lr=0.002) for module in plain]
    for seed in range(5):
        x = data(factory, (3, *shape), torch.float64, seed)
        opt.zero_grad()
        loss(ens(x)).backward()
        opt.step()
        for module, mine, other in zip(plain, x, alone, strict=True):
            other.zero_grad()
            loss(module(mine)).backward()
            other.step()
    start = Replicas(factory, 3).double().state_dict()
    for name, x in ens.state_dict().items():
        torch.testing.assert_close(x, torch.stack([m.state_dict()[name] for m in plain]), rtol=1e-9, atol=1e-9)
        assert not torch.equal(x, start[name])


def test_functional_call_replaces_stacked_parameters():
    for fast in (True, False):
        ens = Replicas(mlp, 2, fast=fast)
        zeros = {name: torch.zeros_like(p) for name, p in ens.named_parameters()}
        zeros["2.bias"] = torch.arange(6.0).view(2, 3)
        out = torch.func.functional_call(ens, zeros, (torch.ones(4, 2),))
        assert torch.equal(out, zeros["2.bias"].unsqueeze(1).expand(2, 4, 3))
        assert ens.get_parameter("0.weight").abs().sum() > 0


# one batch for all or one for each


@pytest.mark.parametrize(
    ("factory", "shared"),
    [
        (mlp, (3, 2)),
        (deep, (3, 2)),
        (convolutional, (3, 2, 6, 6)),
        (lambda: nn.Conv1d(2, 1, 3), (3, 2, 5)),
        (lambda: nn.Conv3d(1, 1, 1), (3, 1, 2, 2, 2)),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(8, 1)), (3, 2, 2, 2)),
        (Tied, (3, 4)),
    ],
    ids=["Linear", "Flatten of vectors", "Conv2d", "Conv1d", "Conv3d", "Flatten", "Embedding"],
)
def test_a_batch_as_long_as_there_are_replicas_is_told_by_the_first_layer(factory, shared):
    ens = Replicas(factory, 3)
    x = data(factory, shared)
    each = torch.stack([x, x.flip(0), x])
    want = torch.stack([module(x) for module in ens])
    close(ens(x), want)
    close(ens(x, each=False), want)
    want[1] = want[1].flip(0)
    close(ens(each), want)


def test_a_batch_of_another_length_is_shared():
    ens = Replicas(mlp, 3)
    assert ens(torch.ones(5, 2)).shape == (3, 5, 3)
    assert ens(torch.ones(5, 4, 2)).shape == (3, 5, 4, 3)


def test_one_replica_takes_both():
    ens = Replicas(mlp, 1)
    x = data(mlp, (6, 2))
    want = ens[0](x).unsqueeze(0)
    close(ens(x), want)
    close(ens(x.unsqueeze(0)), want)
    close(ens(x[:1]), want[:, :1])


def test_a_shared_call_before_decides_where_no_layer_does():
    ens = Replicas(transformer, 3)
    x = data(transformer, (3, 4, 8))
    with pytest.raises(ValueError, match=r"\(3, 4, 8\) to 3 replicas .* ens\(x, each=True\)"):
        ens(x)
    ens(x[:2])
    assert ens(x).shape == (3, 3, 4, 8)
    assert ens(x.expand(3, 3, 4, 8)).shape == (3, 3, 4, 8)
    assert ens.subset([2, 1])(x[:2]).shape == (2, 2, 4, 8)


def test_a_call_before_that_contradicts_the_first_layer_is_an_error_in_a_module_of_its_own():
    class Sequence(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, x):
            return self.layer(x)

    ens = Replicas(Sequence, 3)
    ens(torch.ones(4, 5, 2))
    with pytest.raises(ValueError, match="each=False"):
        ens(torch.ones(3, 5, 2))  # three sequences for all, or five vectors for each?
    plain = Replicas(lambda: nn.Linear(2, 1), 3)
    plain(torch.ones(4, 5, 2))
    assert plain(torch.ones(3, 5, 2)).shape == (3, 5, 1)


@pytest.mark.parametrize("vmap", [True, False])
def test_keywords_and_dicts_are_shared_unless_each_is_said(vmap):
    ens = Replicas(Tied, 3, vmap=vmap)
    ids, mask = data(Tied, (3, 4)), torch.tensor([[1.0, 0, 1, 1]]).expand(3, 4)
    want = torch.stack([module(ids, mask) for module in ens])
    close(ens(ids=ids, mask=mask), want)
    close(ens(ids, mask=mask), want)
    both = {"ids": torch.stack([ids] * 3), "mask": torch.stack([mask, 0 * mask, mask])}
    want = torch.stack([module(ids, m) for module, m in zip(ens, both["mask"], strict=True)])
    close(ens(**both, each=True), want)
    close(ens(both["ids"], both["mask"]), want)
    close(ens(ids=both["ids"], mask=None, each=True), torch.stack([module(ids) for module in ens]))


def test_each_needs_a_batch_for_each():
    ens = Replicas(mlp, 3)
    with pytest.raises(ValueError, match=r"\(3, batch, …\), got \(5, 2\)"):
        ens(torch.ones(5, 2), each=True)


# one replica, some replicas


def test_a_replica_is_a_module_of_its_own():
    ens = Replicas(normalised, 3)
    ens.eval()
    ens.get_submodule("1").train()
    one = ens[-1]
    assert type(one) is nn.Sequential
    assert [m.training for m in one.modules()] == [False, False, True, False, False]
    with torch.no_grad():
        one[0].weight.zero_()
        one[1].running_mean.add_(1)
    assert ens.get_parameter("0.weight")[2].abs().sum() > 0
    assert ens.get_buffer("1.running_mean")[2].sum() == 0
    assert one[0].weight.grad is None
    assert one[0].weight.is_leaf
    assert len(list(ens)) == len(ens) == 3


def test_a_module_is_put_back_in_place():
    ens = Replicas(normalised, 3)
    held = ens.get_parameter("0.weight")
    others = held[::2].clone()
    module = ens[0]
    module(torch.randn(6, 2))
    ens[1] = module
    assert ens.get_parameter("0.weight") is held
    for name, x in ens[1].state_dict().items():
        assert torch.equal(x, module.state_dict()[name])
    assert torch.equal(held[::2], others)
    before = copy.deepcopy(ens.state_dict())
    for other in (mlp(), nn.Sequential(*normalised(), nn.Linear(3, 1)), nn.Linear(2, 5)):
        with pytest.raises(ValueError, match=r"in the module and .* load a module like ens\[2\]"):
            ens.load(2, other)
    assert all(torch.equal(x, before[name]) for name, x in ens.state_dict().items())


@pytest.mark.parametrize(
    ("indices", "numbers"),
    [
        ([3, 1], (3, 1)),
        (slice(None, None, 2), (0, 2, 4)),
        ([-1], (4,)),
        (2, (2,)),
        (range(1, 3), (1, 2)),
        (torch.tensor([4, 0]), (4, 0)),
        ([False, True, False, True, True], (1, 3, 4)),
        (torch.tensor([True, False, False, False, True]), (0, 4)),
        ((i for i in (0, 2)), (0, 2)),
    ],
    ids=["list", "slice", "from the end", "int", "range", "tensor", "mask", "tensor mask", "generator"],
)
def test_a_subset_keeps_values_and_numbers(indices, numbers):
    ens = Replicas(normalised, 5, seed=2).eval()
    some = ens.subset(indices)
    assert some.replicas == numbers
    assert (len(some), some.training, some.seed) == (len(numbers), False, 2)
    assert all(p.replicas == numbers for p in some.parameters())
    for name, x in ens.state_dict().items():
        assert torch.equal(some.state_dict()[name], x[list(numbers)])
    x = data(normalised, (6, 2))
    close(some(x), ens(x)[list(numbers)])
    some.get_parameter("0.weight").data.zero_()
    assert ens.get_parameter("0.weight").abs().sum() > 0
    assert all(p.replicas == numbers[-1:] for p in some[-1].parameters())
    assert some.subset([-1]).replicas == numbers[-1:]


def test_bad_indices_are_named():
    ens = Replicas(mlp, 3)
    for bad in (3, -4):
        for use in (lambda i: ens[i], lambda i: ens.subset([0, i]), lambda i: ens.load(i, mlp())):
            with pytest.raises(IndexError, match=f"no replica {bad}: 3 replicas"):
                use(bad)
    with pytest.raises(IndexError, match="a mask of 2 for 3 replicas"):
        ens.subset([True, False])
    with pytest.raises(IndexError, match="picks none of 3"):
        ens.subset([])
    with pytest.raises(IndexError, match="picks none of 3"):
        ens.subset([False] * 3)
    with pytest.raises(IndexError, match="replica 1 is picked twice"):
        ens.subset([1, 0, -2])
    for bad in (slice(1), 1.0, "0", True):
        with pytest.raises(TypeError, match=r"no number of a replica: ens\[3\]"):
            ens[bad]
    with pytest.raises(TypeError, match=r"1\.5"):
        ens.subset([0, 1.5])


# what torch does to modules


def numbered(ens, numbers):
    return [name for name, p in ens.named_parameters() if getattr(p, "replicas", None) != numbers] == []


def test_parameters_know_their_replicas_whatever_torch_does():
    ens = Replicas(normalised, 4).subset([3, 1])
    assert numbered(ens, (3, 1))
    assert numbered(ens[0], (3,))
    assert numbered(build(mlp, 0, 7), (7,))
    buffer = io.BytesIO()
    torch.save(ens, buffer)
    buffer.seek(0)
    others = [copy.deepcopy(ens), pickle.loads(pickle.dumps(ens)), torch.load(buffer, weights_only=False)]
    for other in [*others, copy.deepcopy(ens).double(), copy.deepcopy(ens).to("meta")]:
        assert numbered(other, (3, 1))
        assert other.replicas == (3, 1)
    ens.load_state_dict(others[0].state_dict(), assign=True)
    assert numbered(ens, (3, 1))
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        assert numbered(ens.double(), (3, 1))
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    x = data(normalised, (6, 2))
    for other in others:
        close(other(x), others[0](x))


def test_copies_are_independent_and_whole():
    ens = Replicas(normalised, 2)
    x = data(normalised, (6, 2))
    for other in (copy.deepcopy(ens), pickle.loads(pickle.dumps(ens))):
        with torch.no_grad():
            other.get_parameter("3.bias").zero_()
            other.get_parameter("3.weight").zero_()
        assert not other(x).any()  # its own shell uses its own tensors
        assert other.get_buffer("1.num_batches_tracked").tolist() == [1, 1]
        assert ens.get_buffer("1.num_batches_tracked").tolist() == [0, 0]
        assert ens.get_parameter("3.weight").abs().sum() > 0


def test_a_state_dict_goes_through_a_file():
    ens = Replicas(normalised, 3)
    ens(data(normalised, (6, 2)))
    buffer = io.BytesIO()
    torch.save(ens.state_dict(), buffer)
    buffer.seek(0)
    other = Replicas(normalised, 3, seed=1)
    held = other.get_parameter("0.weight")
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert other.get_parameter("0.weight") is held
    x = data(normalised, (6, 2), seed=1)
    assert torch.equal(other.eval()(x), ens.eval()(x))
    assert all(torch.equal(x, other.state_dict()[name]) for name, x in ens.state_dict().items())


def test_a_state_dict_of_something_else_is_refused():
    ens = Replicas(mlp, 3)
    with pytest.raises(RuntimeError, match=r"holds 5 replicas, this Replicas 3: .* Replicas\(factory, 5\)"):
        ens.load_state_dict(Replicas(mlp, 5).state_dict())
    with pytest.raises(RuntimeError, match=r"plain module; .* ens.load\(i, module\)"):
        ens.load_state_dict(mlp().state_dict())
    with pytest.raises(RuntimeError, match="Missing key"):
        ens.load_state_dict({})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        ens.load_state_dict({**ens.state_dict(), "more": torch.ones(3)})


def test_the_mode_reaches_every_layer():
    class Stubborn(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[1].training = False
            return self

    ens = Replicas(lambda: Stubborn(nn.Linear(2, 5), nn.BatchNorm1d(5)), 2)
    x = data(mlp, (6, 2))
    for mode in (True, False, True):
        ens.train(mode)
        assert (ens.training, ens[0].training, ens.get_submodule("1").training) == (mode, mode, False)
    ens(x)
    assert ens.get_buffer("1.num_batches_tracked").tolist() == [0, 0]
    assert not Replicas(lambda: normalised().eval(), 2).training
    assert not nn.Sequential(ens).eval()[0][0].training


def test_to_moves_everything():
    ens = Replicas(normalised, 2).double()
    assert {x.dtype for x in ens.state_dict().values()} == {torch.float64, torch.int64}
    assert ens(data(normalised, (6, 2), torch.float64)).dtype is torch.float64
    assert ens[0](data(normalised, (6, 2), torch.float64)).dtype is torch.float64


def test_an_error_leaves_the_module_whole():
    ens = Replicas(normalised, 2)
    with pytest.raises(RuntimeError):
        ens(torch.ones(5, 3))
    assert ens.get_parameter("0.weight").shape == (2, 5, 2)
    assert ens(torch.ones(5, 2)).shape == (2, 5, 3)


def test_repr_is_that_of_the_module_after_ones_own():
    assert repr(Replicas(lambda: nn.Linear(2, 1), 3, seed=7)) == (
        "Replicas(n=3, seed=7) Linear(in_features=2, out_features=1, bias=True)"
    )
    assert repr(Replicas(mlp, 4).subset([2])) == f"Replicas(n=1, seed=0, replicas=(2,)) {mlp()!r}"


# what it refuses


def alternating(*modules):
    made = iter(modules)
    return lambda: next(made)()


class Scaled(nn.Linear):
    def __init__(self, scale):
        super().__init__(2, 1)
        self.scale = scale


def varied():
    return alternating(lambda: mlp(), lambda: frozen())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Replicas(mlp, 0), ValueError, "n=0 must be at least 1"),
        (lambda: Replicas(mlp, 2.0), TypeError, r"n=2\.0 must be an int, e\.g\. n=100"),
        (lambda: Replicas(mlp, True), TypeError, "n=True must be an int"),
        (lambda: Replicas(mlp, 2, seed=0.5), TypeError, r"seed=0\.5 must be an int"),
        (lambda: Replicas(3, 2), TypeError, r"factory is a int; .* Replicas\(lambda:"),
        (lambda: Replicas(mlp(), 2), TypeError, r"factory is a module \(Sequential\).*deepcopy\(module\)"),
        (lambda: Replicas(lambda: 3, 2), TypeError, "returned a int; it must return a torch.nn.Module"),
        (lambda: Replicas(lambda: nn.LazyLinear(2), 2), ValueError, "'weight' is lazy"),
        (lambda: Replicas(nn.ReLU, 2), ValueError, "a ReLU without parameters"),
        (lambda: build(nn.ReLU, 0, 0), ValueError, "a ReLU without parameters"),
        (
            lambda: Replicas(alternating(lambda: nn.Linear(2, 1), lambda: nn.Linear(3, 1)), 2),
            ValueError,
            "'in_features' is 2 in replica 0 and 3 in replica 1",
        ),
        (
            lambda: Replicas(alternating(lambda: nn.Linear(2, 1), mlp), 2),
            ValueError,
            "is Linear in replica 0 and Sequential in replica 1",
        ),
        (
            lambda: Replicas(alternating(mlp, lambda: mlp().append(nn.ReLU())), 2),
            ValueError,
            "'3' is None in replica 0 and ReLU in replica 1",
        ),
        (lambda: Replicas(varied(), 2), ValueError, r"'0\.weight' is float32\[7, 2\], trained .* frozen in replica 1"),
        (
            lambda: Replicas(alternating(lambda: Scaled(0.5), lambda: Scaled(0.25)), 2),
            ValueError,
            r"'scale' is 0\.5 in replica 0 and 0\.25 in replica 1",
        ),
        (
            lambda: Replicas(alternating(lambda: Scaled(torch.ones(1)), lambda: Scaled(torch.zeros(1))), 2),
            ValueError,
            "'scale'.*only parameters and buffers may differ",
        ),
    ],
)
def test_what_cannot_be_stacked_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_equal_attributes_are_no_difference():
    for value in (float("nan"), torch.ones(3), 2):
        assert len(Replicas(lambda value=value: Scaled(copy.deepcopy(value)), 3)) == 3


@pytest.mark.parametrize("vmap", [True, False])
def test_an_output_that_hides_tensors_is_refused(vmap):
    class Hidden(nn.Linear):
        def forward(self, x):
            return SimpleNamespace(y=super().forward(x))

    with pytest.raises(TypeError, match=r"returns a SimpleNamespace.*return tensors, or tuples"):
        Replicas(lambda: Hidden(2, 1), 3, vmap=vmap)(torch.ones(4, 2))


def test_what_vmap_refuses_runs_in_turn_when_told():
    class Branching(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return y if y.sum() > 0 else -y

    x = data(mlp, (5, 2))
    with pytest.raises(RuntimeError, match=r"vmap cannot run Branching .* Replicas\(\.\.\., vmap=False\)"):
        Replicas(lambda: Branching(2, 1), 4)(x)
    ens = Replicas(lambda: Branching(2, 1), 4, vmap=False)
    close(ens(x), torch.stack([module(x) for module in ens]))
    assert ens.get_parameter("weight").shape == (4, 1, 2)


def test_attention_multiplies_by_its_weights_once_for_each_replica():
    n, batch, tokens, width = 3, 4, 5, 8
    ens = Replicas(lambda: nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True), n)
    shapes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.bmm.default:
                shapes.append(tuple(args[0].shape))
            return func(*args, **(kwargs or {}))

    with Watch():
        ens(torch.randn(n, batch, tokens, width), each=True)
    assert shapes.count((n, batch * tokens, width)) == 3  # into attention, out of it, and the layer behind it
    assert {shape[0] for shape in shapes} == {n, n * batch * 2}  # the others are attention itself, by heads
