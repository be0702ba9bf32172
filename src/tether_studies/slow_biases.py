"""Figures 5.9 to 5.12: biases on the slow time scale."""

import math
from functools import partial
from typing import Any

import torch

import tether
from tether_studies.drawing import curves
from tether_studies.experiment import Experiment, Figures, Found, Lab, Recipe, Results, at, study
from tether_studies.images import Convolutional, pictures, tested
from tether_studies.judges import every, less, more
from tether_studies.planar import Task, learn
from tether_studies.quantities import Quantity, against, of_key

K, H = 5, 1.0
SLOW: dict[str, Any] = {"lr": H, "every": K, "drift": True}
LITTLE = 0.5  # points of accuracy: the least that "a small improvement" can mean
ACCURACY = of_key("accuracy", "test accuracy %", unit=" %")
WORST, BEST = (Quantity(name, ACCURACY.take, show=show) for name, show in (("worst", min), ("best", max)))


def sgd(*parts: tether.Part, lr: float = H / K, momentum: float = 0.0) -> Recipe:
    """SGD in which some parts differ from the rest."""
    friction = -math.log(momentum) if momentum else math.inf
    table = [*parts, tether.Part("*")]
    return lambda nets, seed: tether.Optimizer(nets, table, lr=lr, word="MS", friction=friction, seed=seed)


BASE, SLOWED, INPUT, OUTPUT = "SGD, h = 0.2", "slow biases", "slow input biases", "slow output bias"
LARGER, FROZEN = "biases with h = 1 at every step", "biases frozen for k, then h = 0.2"
SPIRAL = {
    BASE: sgd(),
    SLOWED: sgd(tether.Part("*.bias", **SLOW)),
    INPUT: sgd(tether.Part("0.bias", **SLOW)),
    OUTPUT: sgd(tether.Part("2.bias", **SLOW)),
    LARGER: sgd(tether.Part("*.bias", lr=H)),
    FROZEN: sgd(tether.Part("*.bias", lr=H / K, every=K, drift=False)),
}
late = tether.Part("head.bias", lr=1.0, every=10, drift=True)
PLAIN, LATE = "CIFAR-10, SGD, h = 0.1", "CIFAR-10, slow output biases, k = 10"
IMAGES = {  # with momentum, as the thesis has it where nothing else is said
    PLAIN: sgd(lr=0.1, momentum=0.9),
    LATE: sgd(late, lr=0.1, momentum=0.9),
}


@study("fig-5.9", "thesis, Figures 5.9–5.12", ("cifar10",))
class SlowBiases(Experiment):
    """biases on the slow time scale generalize better

    One hidden layer of ReLU nodes on the four-turn spiral. Multirate SGD (Algorithm 5.1, k = 5, h = 1, no momentum):
    the weights every step with h/k = 0.2, biases every five steps with h, spread over them. Beside it plain SGD with h
    = 0.2, and what is not it: biases with a larger step at every step, biases frozen for k steps without the larger
    one, only the input biases, only the output bias. And a convolutional network on CIFAR-10 with slow biases (k = 10)
    in its last layer.

    The thesis has 5 runs on the spiral, and a ResNet-34 on all of CIFAR-10 for Figure 5.12; here a network of three
    convolutions on 5,000 images. The number of nodes and steps of Figure 5.9 is not given. There is no momentum on the
    spiral. After 20,000 steps all methods are still rising. "No such improvement" is taken as less than half of it, "a
    little" as half a point or more.
    """

    says = """
        slow biases improve the test accuracy on the four-turn spiral | Figure 5.9: clearly higher
        it is the slow biases: a larger step for them at every step does not do it | Figure 5.10: no such improvement
        nor does freezing them for k steps without the larger step | Figure 5.10: no such improvement
        it is the biases of the input layer that matter | Figure 5.11: input alone as good as all, output alone not
        slow biases of the last layer help a convolutional network on CIFAR-10 a little
            | Figure 5.12: small improvement (ResNet-34)
    """
    label = ""
    columns = (ACCURACY, WORST, BEST)
    caption = "{runs} runs of {steps:,} steps"
    runs: int = at(20, quick=2, long=60)
    steps: int = at(20_000, quick=100, full=200_000)
    nodes: int = at(100, quick=20, full=500)
    image_runs: int = at(4, quick=2, long=120, full=120)
    images: int = at(5000, quick=256, full=50_000)
    epochs: int = at(8, quick=1, full=100)

    def run(self, lab: Lab) -> Results:
        """Test accuracies in per cent, one for each run; of the spiral also over time."""
        seed = lab.named_seed("spiral")
        spirals = lab.pieces({name: partial(self.spiral, made, seed) for name, made in SPIRAL.items()})
        return spirals | lab.runs(IMAGES, self.image_runs, self.network)

    def spiral(self, made: Recipe, seed: int) -> Results:
        """All runs at once, each with points of its own."""
        task = Task("spiral", {"turns": 4}, self.nodes, train=500, test=1000, batch=25)
        found = learn(task, made, self.steps, self.runs, seed, records=40)
        curve = found["accuracy"][:, 0]
        return {"steps": found["steps"], "curve": curve, "accuracy": curve[-1]}

    def network(self, name: str, seed: int) -> Results:
        """One run of a small convolutional network; the same start and minibatches for both methods."""
        data, test = (pictures(train, self.images) for train in (True, False))
        torch.manual_seed(seed)
        net = Convolutional()
        steps = self.epochs * -(-len(data[1]) // 128)
        tether.train(net, IMAGES[name](net, seed), data, steps=steps, batch=128, seed=seed, progress=False)
        return {"accuracy": tested(net, *test)[1]}

    def claims(self, results: Results) -> Found:
        of = ACCURACY.of(results)
        gain = of[SLOWED] - of[BASE]
        yield against(more, {"": (of[SLOWED], of[BASE])}, unit=" %")
        for name in (LARGER, FROZEN):
            said, above = against(more, {"": (of[SLOWED], of[name])}, unit=" %")
            small = less(of[name] - of[BASE], 0.5 * gain)
            told = f"it gains {ACCURACY.text(of[name] - of[BASE])} points on SGD, slow biases {ACCURACY.text(gain)}"
            yield f"{said}; {told}", every({"below": above, "less than half of the gain": small})
        for a, b, least in ((INPUT, OUTPUT, 0.0), (LATE, PLAIN, LITTLE)):
            yield against(more, {"": (of[a], of[b])}, unit=" %", least=least)

    def draw(self, results: Results) -> Figures:
        title = "Slow biases on the four-turn spiral (Figures 5.9–5.11)"
        return {"spiral": curves({title: {x: results[x] for x in SPIRAL}}, {"curve": "test accuracy %"})[0]}
