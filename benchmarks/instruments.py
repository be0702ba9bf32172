"""What instruments cost on real networks, beside the best peer and a naive way, in time and memory.

    make bench-instruments           # benchmarks/results/instruments.json; three minutes
    python benchmarks/instruments.py --only ResNet-20 --out out/bench

ResNet-20 on 16 images, and an encoder of the shape of MiniLM-L6 on 4 sentences of 16 tokens. "naive" is what one writes
by hand: for products with the Hessian two backward passes each, as many products as `tether` needs; for a line a loop
over state dicts; for the path norm a copy with squared weights; for agreement a loop over images. Memory is the largest
growth of the process during one call, by Linux's count.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from measure import loop
from nets import Encoder, resnet20
from tether import measure
from timing import Candidates, Run, arguments, interleave

OURS, NAIVE = "tether", "naive"
PROBES, STEPS, POINTS = 2, 6, 11
CASES = ("ResNet-20", "encoder", "labels")
Data = tuple[torch.Tensor, torch.Tensor]


def network(case: str) -> tuple[nn.Module, Data]:
    torch.manual_seed(0)
    if case == "ResNet-20":
        return resnet20().eval(), (torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,)))
    return Encoder(dropout=0.0).eval(), (torch.randint(0, 30522, (4, 16)), torch.randint(0, 2, (4,)))


def memory(call: Callable[[], object]) -> float:
    """Megabytes by which the process grows at most during a call; nan where Linux does not count them."""

    def count(name: str) -> int:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))

    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what is free already would hide what the call takes
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak begins anew
        before = count("VmRSS")
        call()
        return (count("VmHWM") - before) / 1024
    except (OSError, AttributeError):
        return float("nan")


def products(net: nn.Module, data: Data, count: int) -> None:
    """As many products of the Hessian with a vector, each by two backward passes."""
    params = list(net.parameters())
    v = [torch.randn_like(param) for param in params]
    for _ in range(count):
        grads = torch.autograd.grad(cross_entropy(net(data[0]), data[1]), params, create_graph=True)
        v = list(torch.autograd.grad(grads, params, grad_outputs=v))
        size = torch.stack([x.square().sum() for x in v]).sum().sqrt()
        v = [x / size for x in v]


def largest_eigenvalue(net: nn.Module, data: Data, peers: bool) -> Candidates:
    needed = []

    def ours() -> None:
        needed.append(measure.hessian_spectrum(net, data, top=1, bottom=0, tolerance=1e-3).products)

    calls: Candidates = {OURS: ours}
    if peers:
        calls |= curvlinops_eigsh(net, data)
    return calls | {NAIVE: lambda: products(net, data, needed[-1])}


def curvlinops_hessian(net: nn.Module, data: Data) -> Any:
    from curvlinops import HessianLinearOperator

    return HessianLinearOperator(net, nn.CrossEntropyLoss(), list(net.parameters()), [data], check_deterministic=False)


def curvlinops_eigsh(net: nn.Module, data: Data) -> Candidates:
    from scipy.sparse.linalg import eigsh

    def call() -> None:
        H = curvlinops_hessian(net, data).to_scipy()
        eigsh(H, k=1, which="LA", tol=1e-3, ncv=10, return_eigenvectors=False)

    return {"curvlinops, eigsh with 10 vectors": call}


def density(net: nn.Module, data: Data, peers: bool) -> Candidates:
    """Beside curvlinops, which is told the ends of the spectrum. PyHessian needs a torch before 1.9."""

    def theirs() -> None:
        from curvlinops import lanczos_approximate_spectrum

        lanczos_approximate_spectrum(
            curvlinops_hessian(net, data), STEPS, num_points=400, num_repeats=PROBES, boundaries=(-10.0, 100.0)
        )

    calls: Candidates = {OURS: lambda: measure.spectral_density(net, data, probes=PROBES, steps=STEPS)}
    return calls | ({"curvlinops": theirs} if peers else {}) | {NAIVE: lambda: products(net, data, PROBES * STEPS)}


def line(net: nn.Module, data: Data, peers: bool) -> Candidates:
    start, end = (nn.Module.state_dict(network_like(net, seed)) for seed in (1, 2))
    calls: Candidates = {OURS: lambda: measure.linear_path(net, start, end, data, POINTS)}
    if peers:
        from loss_landscapes import linear_interpolation
        from loss_landscapes.metrics import Loss

        ends = [copy.deepcopy(net) for _ in range(2)]
        for one, state in zip(ends, (start, end), strict=True):
            one.load_state_dict(state)
        metric = Loss(cross_entropy, *data)
        calls["loss-landscapes"] = torch.no_grad()(
            lambda: linear_interpolation(*ends, metric, POINTS, deepcopy_model=True)
        )
    own = copy.deepcopy(net)
    return calls | {NAIVE: lambda: loop(own, start, end, data, points=POINTS)}


def network_like(net: nn.Module, seed: int) -> nn.Module:
    """A copy with other weights, buffers included."""
    torch.manual_seed(seed)
    twin = copy.deepcopy(net)
    with torch.no_grad():
        for param in twin.parameters():
            param.mul_(1 + 0.1 * torch.randn_like(param))
    return twin


def path_norm(net: nn.Module, data: Data, peers: bool) -> Candidates:
    shape = data[0].shape[1:]

    @torch.no_grad()
    def naive() -> None:
        squared = copy.deepcopy(net)
        for param in squared.parameters():
            param.square_()
        squared(torch.ones(1, *shape)).sum().sqrt()

    return {OURS: lambda: measure.path_norm(net, 2, shape), NAIVE: naive}


def agreement() -> Candidates:
    """Ten models and ten people, 10,000 images."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 10, 10_000)
    models, people = (np.where(rng.random((10, 10_000)) < 0.05, rng.integers(0, 10, (10, 10_000)), truth) for _ in "ab")

    def naive() -> tuple[int, int, int]:
        found = [0, 0, 0]
        for i in range(10_000):
            ours, theirs = len(set(models[:, i])) > 1, len(set(people[:, i])) > 1
            found[0] += ours and not theirs
            found[1] += theirs and not ours
            found[2] += ours and theirs
        return tuple(found)  # type: ignore[return-value]

    return {OURS: lambda: measure.agreement(models, people), NAIVE: naive}


def installed(name: str) -> bool:
    found = importlib.util.find_spec(name) is not None
    if not found:
        print(f"{name} is not installed: peers are left out")
    return found


INSTRUMENTS = {"hessian_spectrum": largest_eigenvalue, "spectral_density": density, "linear_path": line}


def main() -> None:
    options = arguments(__doc__, rounds=3, quick=1, threads=(1,), cases=CASES)
    packages = ("curvlinops-for-pytorch", "loss-landscapes")
    options.peers = options.peers and all(map(installed, ("curvlinops", "loss_landscapes")))
    run = Run("instruments", "What instruments cost on real networks", options, packages if options.peers else ())
    for _ in run.threads():
        for case in options.only:
            if case == "labels":
                table = run.table("agreement of 10 models and 10 people on 10,000 images", OURS, "ms")
                table.add("agreement", interleave(agreement(), options.rounds, case, warm=1))
                continue
            net, data = network(case)
            table = run.table(f"instruments on {case}", OURS, "s")
            makers = INSTRUMENTS | ({"path_norm": path_norm} if case == "ResNet-20" else {})
            for name, make in makers.items():
                calls = make(net, data, options.peers)
                with sdpa_kernel(SDPBackend.MATH):  # the others have no second derivative, which the peers need
                    peaks = {
                        label: memory(call) for label, call in calls.items()
                    }  # and the first call, which is slower
                    times = interleave(calls, options.rounds, name, warm=0)
                table.add(name, times, peak_MB=peaks)
    run.write()


if __name__ == "__main__":
    main()
