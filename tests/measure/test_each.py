"""Measures of replicas."""

import torch
from torch import nn

import tether
from tether.measure.each import each


@each("start", "end")
def span(model, start, data=(), *, end=None, **rest):
    """Of one network: its first weight, those of the two states, how many batches, what else was given."""
    end = model.state_dict() if end is None else end
    return model.weight[0, 0].item(), start["weight"].sum().item(), end["weight"].sum().item(), len(list(data)), rest


def test_every_replica_is_measured_with_its_slice_of_the_states():
    ens = tether.Replicas(lambda: nn.Linear(1, 1), n=3)
    with torch.no_grad():
        ens.weight.copy_(torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1))
    start = {name: 10 * x for name, x in ens.state_dict().items()}
    assert span(ens, start) == [(1.0, 10.0, 1.0, 0, {}), (2.0, 20.0, 2.0, 0, {}), (3.0, 30.0, 3.0, 0, {})]
    alone = {"weight": torch.full((1, 1), 7.0), "bias": torch.zeros(1)}
    once = (i for i in range(5))
    found = span(ens, alone, once, end=start, seed=4)
    assert found == [(i, 7.0, 10.0 * i, 5, {"seed": 4}) for i in (1.0, 2.0, 3.0)]


def test_a_plain_module_is_measured_as_it_is():
    net = nn.Linear(1, 1)
    state = net.state_dict()
    assert span(net, start=state) == (net.weight.item(), net.weight.item(), net.weight.item(), 0, {})
    assert span.__doc__.startswith("Of one network")


def test_a_state_of_one_network_of_scalars_goes_to_all():
    class Scalar(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))

    @each("start")
    def value(model, start):
        return start["weight"].item()

    ens = tether.Replicas(Scalar, n=2)
    assert value(ens, {"weight": torch.tensor(5.0)}) == [5.0, 5.0]
    assert value(ens, {"weight": torch.tensor([5.0, 6.0])}) == [5.0, 6.0]
