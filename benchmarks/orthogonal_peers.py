"""How other libraries keep weights orthogonal: makers of their optimizers for benchmarks/constraints.py.

Each takes a model, the names of the constrained modules and a learning rate. All other parameters get torch's SGD with
momentum. A library that is not installed raises ImportError. POGO is used through its public interface alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.utils import parametrizations


class Together:
    """Several optimizers that step as one."""

    def __init__(self, *opts: torch.optim.Optimizer) -> None:
        self.opts = opts

    def zero_grad(self) -> None:
        for opt in self.opts:
            opt.zero_grad()

    def step(self) -> None:
        for opt in self.opts:
            opt.step()


def sgd(params: object, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=lr, momentum=0.9, foreach=True)  # type: ignore[arg-type]


def split(model: nn.Module, names: list[str]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The constrained weights, and all other parameters."""
    weights = [model.get_submodule(name).weight for name in names]
    held = {id(weight) for weight in weights}
    return weights, [param for param in model.parameters() if id(param) not in held]


def muon(model: nn.Module, names: list[str], lr: float) -> Together:
    weights, others = split(model, names)
    return Together(torch.optim.Muon(weights, lr=lr / 10, weight_decay=0.0), sgd(others, lr))


def pogo(model: nn.Module, names: list[str], lr: float) -> Together:
    try:
        from pogo import POGO, base
    except ImportError:
        raise ImportError("pogo-torch is not installed") from None
    weights, others = split(model, names)
    peer = POGO(weights, base.SGD(momentum=0.9), lr, flatten_fn=lambda w: w.reshape(1, w.shape[0], -1))
    return Together(peer, sgd(others, lr))


def torch_parametrized(kind: str) -> Callable[[nn.Module, list[str], float], torch.optim.Optimizer]:
    def make(model: nn.Module, names: list[str], lr: float) -> torch.optim.Optimizer:
        for name in names:
            parametrizations.orthogonal(model.get_submodule(name), orthogonal_map=kind)
        return sgd(model.parameters(), lr)

    return make


def geotorch_expm(model: nn.Module, names: list[str], lr: float) -> torch.optim.Optimizer:
    try:
        import geotorch
    except ImportError:
        raise ImportError("geotorch is not installed") from None
    for name in names:
        geotorch.orthogonal(model.get_submodule(name), "weight", triv="expm")
    return sgd(model.parameters(), lr)


def geoopt_stiefel(manifold: str) -> Callable[[nn.Module, list[str], float], torch.optim.Optimizer]:
    """Its Stiefel manifolds have tall matrices: a wide weight is held as its transpose."""

    def make(model: nn.Module, names: list[str], lr: float) -> torch.optim.Optimizer:
        try:
            import geoopt
        except ImportError:
            raise ImportError("geoopt is not installed") from None
        stiefel = getattr(geoopt, manifold)()
        for name in names:
            module = model.get_submodule(name)
            if module.weight.dim() > 2:
                flatten(module)
            w = module.weight.detach()
            module.wide = w.shape[0] < w.shape[1]
            q = geoopt.ManifoldParameter(w.T.contiguous() if module.wide else w.clone(), manifold=stiefel)
            del module.weight
            module.q = q
            module.register_forward_pre_hook(lambda m, _: setattr(m, "weight", m.q.T if m.wide else m.q))
            module.weight = q.T if module.wide else q
        return geoopt.optim.RiemannianSGD(model.parameters(), lr=lr, momentum=0.9)

    return make


def flatten(module: nn.Module) -> None:
    """Let a convolution hold its weight as a matrix."""
    shape = tuple(module.weight.shape)
    module.weight = nn.Parameter(module.weight.detach().flatten(1))
    settings = (module.stride, module.padding)
    module.forward = lambda x: nn.functional.conv2d(x, module.weight.reshape(shape), module.bias, *settings)
