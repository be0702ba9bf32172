from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tether
from tether_studies.drawing import curves
from tether_studies.experiment import Experiment, Figures, Found, Lab, Recipe, Results, at, recipe, study
from tether_studies.images import Pair, perceptron
from tether_studies.judges import POINT, plus_minus
from tether_studies.lab import called
from tether_studies.planar import ACCURACY, LOSS
from tether_studies.quantities import Quantity, within

adlala = partial(recipe, "adlala", coupling=0.01, noise=0.001, output_temperature=1e-6)
GAMES: dict[str, dict[str, Recipe]] = {
    "chess": {
        "Adam": recipe("Adam", lr=0.005),
        "SGD, momentum": recipe("SGD", lr=0.05, momentum=0.95),
        "AdLaLa": adlala(lr=0.2, friction=0.1, temperature=1e-5),
    },
    "poker": {
        "Adam": recipe("Adam", lr=0.005),
        "SGD, momentum": recipe("SGD", lr=0.005, momentum=0.9),
        "AdLaLa": adlala(lr=0.05, friction=5.0, temperature=1e-4),
    },
}
CLASSES, FIGURES = {"chess": 18, "poker": 10}, {"chess": "3.18", "poker": "3.19"}
AT_ONCE = {"chess": 12, "poker": 10}  # runs in a piece
KEYS = ("accuracy", "loss")


def best(found: Results) -> str:
    when = int(found["accuracy"].mean(1).argmax())
    return f"{plus_minus(found['accuracy'][when])} (epoch {found['epochs'][when]:.0f})"


@lru_cache(2)
def split(game: str, rows: int, seed: int) -> tuple[Pair, Pair]:
    """Four fifths to train on and one to test, shuffled; every column with mean 0 and deviation 1."""
    x, y = tether.data.krkopt() if game == "chess" else tether.data.poker_hand()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:rows]
    x, y = x[order].float(), y[order]
    x = (x - x.mean(0)) / x.std(0)
    cut = len(x) * 4 // 5
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


@study("fig-3.18", "thesis, Figures 3.18, 3.19", ("krkopt", "poker-hand"))
class Endgames(Experiment):
    """AdLaLa on chess endgames and poker hands

    Chess: two hidden layers of 500 and 200 ReLU nodes, batches of 1024. Poker: one hidden layer of 200, batches of 500.
    Adam and SGD with momentum have the step sizes that the thesis found best.

    Neither the split, nor the scaling of the inputs, nor the number of epochs is given: a fifth of the shuffled rows to
    test, and columns with mean 0 and deviation 1, are ours. The poker hands are the 25,010 of the training file.
    """

    says = """
        chess: AdLaLa has a higher test accuracy than Adam and SGD with momentum
            | Figure 3.18: enhanced performance may be obtained
        poker: AdLaLa has a higher test accuracy than Adam and SGD with momentum
            | Figure 3.19: enhanced performance may be obtained
    """
    label = ("", "method")
    columns = (
        Quantity("test accuracy %, end", ACCURACY.take),
        Quantity("test accuracy %, best", lambda found: found, show=best),
        Quantity("test loss, end", LOSS.take, 3),
    )
    rows: int = at(100_000, quick=1500)  # at most
    chess_nodes: tuple[int, ...] = at((500, 200), quick=(20, 10))
    chess_batch: int = at(1024, quick=200)
    chess_steps: int = at(1500, quick=20, long=6000, full=10_000)
    chess_runs: int = at(3, quick=2, long=18, full=18)
    poker_nodes: tuple[int, ...] = at((200,), quick=(20,))
    poker_batch: int = at(500, quick=100)
    poker_steps: int = at(5000, quick=20, long=100_000, full=100_000)
    poker_runs: int = at(5, quick=2, long=20, full=20)
    records: int = at(15, quick=4)

    def run(self, lab: Lab) -> Results:
        """What all runs of a method found, by (game, method), with the run as the last axis."""
        todo = {
            (game, method, first): partial(self.learn, lab, game, method, first)
            for game in GAMES
            for first in range(0, getattr(self, f"{game}_runs"), AT_ONCE[game])
            for method in GAMES[game]
        }
        done = lab.pieces({called(*names, first=first): work for (*names, first), work in todo.items()})
        found: dict[Any, list[Results]] = {}
        for game, method, first in todo:
            found.setdefault((game, method), []).append(done[called(game, method, first=first)])
        return {
            name: {"epochs": parts[0]["epochs"]} | {key: np.concatenate([x[key] for x in parts], -1) for key in KEYS}
            for name, parts in found.items()
        }

    def learn(self, lab: Lab, game: str, method: str, first: int) -> Results:
        """Some runs of a method at once, each from its own start and with its own minibatches."""
        nodes, batch, steps, runs = (getattr(self, f"{game}_{field}") for field in ("nodes", "batch", "steps", "runs"))
        runs = min(AT_ONCE[game], runs - first)
        data, (x, y) = split(game, self.rows, lab.named_seed(f"split of {game}"))
        widths = (x.shape[1], *nodes, CLASSES[game])
        nets = tether.Replicas(lambda: perceptron(*widths), runs, seed=lab.named_seed(called(game, first=first)))

        @torch.no_grad()
        def test(step: int, model: nn.Module, opt: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
            out = nets(x, each=False)
            losses = cross_entropy(out.flatten(0, 1), y.repeat(runs), reduction="none").view(runs, -1)
            return {"accuracy": 100 * (out.argmax(2) == y).float().mean(1), "loss": losses.mean(1)}

        seed = lab.named_seed(f"minibatches of {called(game, first=first)}")
        place = lab.checkpoint(called(game, method, first=first))
        options: dict[str, Any] = {"log_every": max(1, steps // self.records), "callbacks": [test], "seed": seed}
        opt = GAMES[game][method](nets, seed)
        log = tether.train(nets, opt, data, steps=steps, batch=batch, checkpoint=place, progress=False, **options)
        return {"epochs": torch.tensor(log.steps) * batch / len(data[0]), **log.metrics}

    def claims(self, results: Results) -> Found:
        for game in GAMES:
            found = within(results, game)
            after = f"after {found['AdLaLa']['epochs'][-1]:.0f} epochs: "
            yield ACCURACY.more(found, "AdLaLa", ("Adam", "SGD, momentum"), told=after, names=found, least=POINT)

    def draw(self, results: Results) -> Figures:
        groups = {f"{game} (Figure {FIGURES[game]})": within(results, game) for game in GAMES}
        return {"endgames": curves(groups, {"accuracy": "test accuracy %", "loss": "test loss"}, "epochs")[0]}
