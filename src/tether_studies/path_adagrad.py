"""PathAdaGrad: AdaGrad in the geometry of paths, the question of the Path-SGD slides' last page."""

from typing import Any

import torch
from torch import nn

from tether import Path

__all__ = ["PathAdaGrad"]


class PathAdaGrad(torch.optim.Optimizer):
    """AdaGrad in the coordinates √γ w: with u = g/√γ, S ← S + u² and w ← w − (h/√γ) u/(√S + ε).

    γ is that of Path-SGD (`tether.Path`). Under a rescaling of the units w, 1/g and 1/√γ are multiplied by one factor,
    so u and S stay, and the step is rescaled as w is: the function that is computed goes the same way. A parameter
    through which no path leads stays.
    """

    def __init__(self, model: nn.Module, lr: float = 0.01, p: float = 2, eps: float = 1e-10) -> None:
        super().__init__(list(model.named_parameters()), {"lr": lr, "eps": eps})
        self.model, self.path = model, Path(p)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scales = self.path.scales(self.model)
        for group in self.param_groups:
            for name, w in zip(group["param_names"], group["params"], strict=True):
                if w.grad is None:
                    continue
                root = scales[name].to(w).sqrt()
                u = torch.where(root > 0, w.grad / root, 0.0)
                S = self.state[w].setdefault("sum", torch.zeros_like(w))
                S.addcmul_(u, u)
                w -= torch.where(root > 0, group["lr"] * u / (root * (S.sqrt() + group["eps"])), 0.0)
        return loss
