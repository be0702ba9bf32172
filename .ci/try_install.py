"""Tries an installed tether away from its clone: `kernel` if it shall have its compiled kernel, `none` if it cannot."""

import sys
import warnings

import torch

import tether

warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as heard:
    model = torch.nn.Sequential(torch.nn.Linear(2, 20), torch.nn.ReLU(), torch.nn.Linear(20, 1))
    parts = [tether.Part("2.weight", on=tether.Circle(0.5)), tether.Part("*")]
    opt = tether.Optimizer(model, parts, lr=0.1, word="BAOAB", temperature=1e-4)
    x, y = tether.data.spiral(50)
    for _ in range(3):
        opt.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y.float()).backward()
        opt.step()
told = [str(one.message) for one in heard if "compiled kernel" in str(one.message)]
assert opt.violation() < 1e-6
assert "Leimkuhler" in tether.methods.citation("adlala")  # references.bib was packed
assert bool(told) == (sys.argv[1] == "none"), told
print(f"tether {tether.__version__} from {tether.__path__[0]}: {tether.native.describe()}"[:160])
