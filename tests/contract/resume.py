"""A process of its own that takes every method's checkpoint from step 50 on to step 100: resume.py IN OUT."""

import sys

import torch
from rows import ROWS, network, snapshot, train


def main(source: str, target: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(12345)  # must not matter
    results = {}
    for name, saved in torch.load(source).items():
        model = network(name, seed=99)
        opt = ROWS[name].build(model, seed=99)  # the checkpoint's seed is the one that counts
        model.load_state_dict(saved["model"])
        opt.load_state_dict(saved["optimizer"])
        train(model, opt, 50, start=50)
        results[name] = snapshot(model, opt)
    torch.save(results, target)


if __name__ == "__main__":
    main(*sys.argv[1:])
