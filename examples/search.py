"""Find friction, temperature and coupling of AdLaLa with Optuna: forty settings cost one run.

    python examples/search.py                    120 settings, 40 at once
    python examples/search.py --compare          and then the same settings one at a time: the same best, far slower
    python examples/search.py --searchers 2      two threads search in one study; with --processes, two processes

Every field of a method may be a tensor with a number for each replica. So a batch of trials is one run of
`tether.Replicas`, and to prune a trial is to stop its replica. Optuna comes with `pip install 'tether[cluster]'`.
"""

import argparse
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import optuna
import torch
from optuna.distributions import FloatDistribution
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as loss

import tether

RANGES = {"friction": (1e-2, 1e2), "temperature": (1e-8, 1e-2), "coupling": (1e-3, 1.0)}
COMPLETE, PRUNED = optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED
SPACE = {name: FloatDistribution(*ends, log=True) for name, ends in RANGES.items()}
TRAIN, (x, y) = tether.data.spiral(500, turns=2.0, seed=0), tether.data.spiral(1000, turns=2.0, seed=1)


def network():
    return nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 1))


def train(settings, seed, replicas, steps, every, watch):
    """Train these replicas, each with its own setting; `watch` sees the accuracies on other points now and then."""
    nets = tether.Replicas(network, max(replicas) + 1, seed).subset(replicas)
    fields = {name: torch.tensor([one[name] for one in settings], dtype=torch.float64) for name in RANGES}
    opt = tether.methods.adlala(nets, lr=0.25, seed=seed, **fields)

    def look(step, nets, opt):
        with torch.no_grad():
            right = (nets(x, each=False).squeeze(-1) > 0) == (y > 0.5)
        watch(step, (100 * right.double().mean(1)).tolist(), opt)

    tether.train(nets, opt, TRAIN, loss, steps, batch=25, log_every=every, callbacks=[look], progress=False)


def one_batch(study, count, steps):
    """Ask for `count` settings, train all of them in one run, and tell Optuna what each was worth."""
    trials = [study.ask(SPACE) for _ in range(count)]
    seed, going = trials[0].number, dict(enumerate(trials))  # no other batch has this seed

    def watch(step, values, opt):
        for i, trial in going.items():
            trial.report(values[i], step)
            trial.set_user_attr("run", (seed, i, step))
        pruned = [i for i, trial in going.items() if step < steps and trial.should_prune()]
        opt.stop(pruned)
        for i in pruned:
            study.tell(going.pop(i), state=PRUNED)
        for i in going if step == steps else ():
            study.tell(going[i], values[i])

    train([trial.params for trial in trials], seed, range(count), steps, steps // 4, watch)


def alone(trial, steps):
    """The last accuracy of a trial that is run again by itself, as far as it went."""
    (seed, i, last), found = trial.user_attrs["run"], []
    train([trial.params], seed, [i], last, steps // 4, lambda step, values, opt: found.extend(values))
    return found[-1]


def search(number, storage, batches, *options):
    """Search in the study of a storage: one that threads share, or a journal, a file which processes share."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if isinstance(storage, str):
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(storage))
    kind = {"sampler": optuna.samplers.TPESampler(seed=number, n_startup_trials=40), "direction": "maximize"}
    study = optuna.create_study(storage=storage, study_name="AdLaLa", load_if_exists=True, **kind)
    for _ in range(batches):
        one_batch(study, *options)
    return study.trials


def show(how, trials, values, began):
    minutes = (time.perf_counter() - began) / 60
    ended = [trial for trial in trials if trial.state == COMPLETE]
    best = max(ended, key=lambda trial: values[trial.number])
    cells = f"{len(trials):>8}{len(trials) - len(ended):>8}{values[best.number]:>8.1f}{len(trials) / minutes:>12.0f}"
    print(f"{how:<15}{cells}  {', '.join(f'{name} {best.params[name]:.3g}' for name in RANGES)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Tune AdLaLa on the two-turn spiral.")
    for name, default in {"batch": 40, "batches": 3, "steps": 2000, "searchers": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--processes", action="store_true", help="searchers are processes, not threads")
    parser.add_argument("--compare", action="store_true", help="run the same settings one at a time, too")
    options = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        storage, pool = optuna.storages.InMemoryStorage(), ThreadPoolExecutor(options.searchers)
        if options.processes:
            spawn = multiprocessing.get_context("spawn")
            storage, pool = f"{folder}/journal", ProcessPoolExecutor(options.searchers, spawn)
        given = storage, options.batches, options.batch, options.steps
        with pool:
            for one in [pool.submit(search, i, *given) for i in range(options.searchers)]:
                one.result()
        trials = search(0, storage, 0)
    print("settings         trials  pruned  best %  trials/min  best setting")
    show(f"{options.batch} at once", trials, [trial.intermediate_values[trial.last_step] for trial in trials], began)
    if options.compare:
        began = time.perf_counter()
        show("one at a time", trials, [alone(trial, options.steps) for trial in trials], began)


if __name__ == "__main__":
    main()
