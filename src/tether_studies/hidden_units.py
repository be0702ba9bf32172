import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from torch.nn.functional import cross_entropy

import tether
from tether_studies.drawing import draw_means, subplots
from tether_studies.experiment import Experiment, Figures, Found, Lab, Results, at, study
from tether_studies.images import digits, errors, perceptron
from tether_studies.judges import less, plus_minus, undecided
from tether_studies.quantities import Quantity, given, of_key

CHANGE = Quantity("change, same images", lambda one: one["change"], show=lambda x: plus_minus(x, 2) if len(x) else "")


@study("hidden-units", "Path-SGD slides, Implicit Regularization – Experiment", ("mnist",))
class HiddenUnits(Experiment):
    """test error goes on falling with more hidden nodes than it takes to fit the images

    One hidden layer of H ReLU nodes on MNIST, SGD with momentum 0.9 and a step size that falls linearly to 0, without
    dropout, weight decay or early stopping, to a training error of (nearly) zero. The step size, 0.1 at the start, is
    the same for every H. Every replica has its own start and images that no other sees, the same at every H.

    The slides' loss is truncated, ours is the plain cross-entropy. They do not give the step size nor the numbers of
    images and epochs.
    """

    says = """
        test error goes on falling when there are more hidden nodes than it takes to fit the images
            | expected: falls at first, then rises; found, as a picture: goes on falling
        the larger network finds a solution of smaller complexity
            | “Increasing the network size might help lower this complexity”
    """
    label = ""
    columns = (
        *(given("replicas", "replicas"), of_key("training", "training error %", 2), of_key("test", "test error %", 2)),
        *(CHANGE, of_key("path norm", "path norm")),
    )
    caption = "{images:,} images, {epochs} epochs, h = {lr:g}; mean ± standard error"
    powers: tuple[int, int] = at((3, 12), quick=(6, 8))  # H from 2^a to 2^b
    runs: int = at(8, quick=4, long=12, full=12)  # up to H = 256; half as many to 1024, a third beyond
    images: int = at(5000, quick=100)  # for each
    tests: int = at(10_000, quick=500)
    epochs: int = at(25, quick=60, full=100)
    lr: float = 0.1

    def run(self, lab: Lab) -> Results:
        sizes = [2**power for power in range(self.powers[0], self.powers[1] + 1)]
        return lab.pieces({f"H = {H}": partial(self.piece, H, lab.named_seed("start")) for H in sizes})

    def piece(self, H: int, seed: int) -> Results:
        """Errors in per cent at the end, the lowest test error on the way, and the path norm, for each replica."""
        runs = self.runs if H <= 256 else max(2, self.runs // 2 if H <= 1024 else self.runs // 3)
        (x, y), test = digits(self.runs, self.images, self.tests)
        data = (x[:runs], y[:runs])
        nets = tether.Replicas(lambda: perceptron(784, H, 10), runs, seed=seed)
        opt = tether.Optimizer(nets, lr=self.lr, word="MS", friction=-math.log(0.9), seed=seed)
        anneal = tether.Schedule(opt, "lr", lambda epoch: 1 - epoch / self.epochs)
        per_epoch = math.ceil(self.images / 100)

        def each_epoch(step: int, *_: Any) -> Mapping[str, Any]:
            anneal.step()
            epoch = step // per_epoch
            looks = epoch == self.epochs or epoch % max(1, self.epochs // 5) == 0
            return {"test": errors(nets, *test)} if looks else {}

        options: dict[str, Any] = {"log_every": per_epoch, "callbacks": [each_epoch], "each": True}
        record = tether.train(nets, opt, data, cross_entropy, per_epoch * self.epochs, 100, **options)
        found = record.metrics["test"]
        norms = [tether.measure.path_norm(nets[i]) for i in range(runs)]
        return {"training": errors(nets, *data), "test": found[-1], "best": found.min(0).values, "path norm": norms}

    def claims(self, results: Results) -> Found:
        """From the first H that fits the images to the largest."""
        fits = next((name for name, one in results.items() if one["training"].mean() < 0.05), "")
        last = list(results)[-1]
        for key, unit in (("test", "%"), ("path norm", "path norm")):
            if not fits or fits == last:
                yield "no two sizes that fit the images", undecided("they would have to be compared")
                continue
            a, b = results[last][key], results[fits][key][: len(results[last][key])]  # on the same images
            said = f"{plus_minus(b, 2)} {unit} at {fits}, {plus_minus(a, 2)} at {last}, on the same images"
            yield said, less(a, b)

    def tabled(self, results: Results) -> Results:
        """The change is that of networks trained on the same images."""
        rows, before = {}, np.array([])
        for name, one in results.items():
            n = min(len(before), len(one["test"]))
            rows[name] = one | {"replicas": len(one["test"]), "change": one["test"][:n] - before[:n]}
            before = one["test"]
        return rows

    def draw(self, results: Results) -> Figures:
        figure, axis = subplots(figsize=(6, 4.2))
        curves = {"training": "training", "test": "test, at the end", "best": "test, best on the way"}
        sizes = [int(name.rpartition(" ")[2]) for name in results]
        for (key, label), style in zip(curves.items(), ("o-", "s-", "^:"), strict=True):
            draw_means(axis, sizes, [one[key] for one in results.values()], fmt=style, label=label)
        axis.set_xscale("log", base=2)
        axis.set(xlabel="hidden nodes H", ylabel="error, %", title="MNIST, one hidden layer", ylim=(0, None))
        axis.legend()
        return {"hidden_units": figure}
