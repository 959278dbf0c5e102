# Each target works on a fresh machine with nothing but Python and make.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
PIP_INSTALL := $(PIP) --quiet
# PyTorch's index of builds for the CPU, without gigabytes of CUDA: asked too where there is no NVIDIA GPU and it answers
# within seconds. `make setup TORCH_INDEX=` leaves it out.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
ANSWERS := import sys, urllib.request; urllib.request.urlopen(sys.argv[1] + "/torch/", timeout=5)
CPU_ONLY = test -n "$(TORCH_INDEX)" && ! command -v nvidia-smi > /dev/null && $(PYTHON) -c '$(ANSWERS)' $(TORCH_INDEX) 2> /dev/null
BENCHMARKS := algebra classification deploy long_tubes models segmentation tensorize training
# A file's tests in one process, which share what they stand on; the many small files of src come last and fill the gaps.
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder
RECENT := import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.12")

.PHONY: help setup demo test test-all test-browser fuzz soak sanitize lint bench docs clean

help:            ## what can be made
	@awk -F ':[^#]*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.installed  ## create .venv and install tcpvit with the development tools

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c '$(RECENT)'
	@echo "1/3  .venv, a virtual environment of $$($(PYTHON) --version)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@if $(CPU_ONLY); then \
	  echo "2/3  torch and torchvision for the CPU, from $(TORCH_INDEX)"; \
	  $(PIP) --extra-index-url $(TORCH_INDEX) torch torchvision; \
	else \
	  echo "2/3  torch and torchvision, as pip's own index has them"; \
	  $(PIP) torch torchvision; \
	fi
	@echo "3/3  tcpvit, and the tools for demo, tests and lint (a minute or two without a word)"
	@$(PIP_INSTALL) -e ".[dev]"
	@echo "done: .venv has $$(du -sh .venv | cut -f1); $(BIN)/tcpvit --help shows what there is"
	@touch $@

.venv/.docs: .venv/.installed
	@$(PIP_INSTALL) -e ".[docs]"
	@touch $@

.venv/.bench: .venv/.installed
	@$(PIP_INSTALL) -e ".[bench]"
	@touch $@

demo: setup      ## train a Std-ViT and its TCP twin, and compare them
	$(BIN)/tcpvit demo

test: setup      ## the whole suite but for slow tests
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow"

test-all: setup  ## slow tests too
	$(BIN)/python -m pytest $(PARALLEL)

test-browser: setup  ## the explorer in a real browser; installs Debian's chromium where there is none
	@command -v chromedriver > /dev/null || { apt-get update -q && apt-get install -y -q chromium chromium-driver; }
	$(BIN)/python -m pytest tests/inference/test_page.py

fuzz: setup      ## 2,000 bad command lines and 500 mutated files: no traceback, no hang, no harm
	$(BIN)/python tests/fuzz/fuzz.py --lines 2000 --files 500

sanitize: setup  ## the tests of our kernels under the address and undefined-behaviour sanitizers
	TCPVIT_KERNEL_FLAGS="-g -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined" \
	TCPVIT_CACHE=$$(mktemp -d) ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 \
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
	$(BIN)/python -m pytest tests/layers/kernels/test_attention.py tests/layers/kernels/test_halves.py tests/layers/kernels/test_joint_norm.py tests/layers/kernels/test_layer_norm.py tests/layers/kernels/test_tubes.py -p no:cacheprovider

soak: setup      ## hours: kill runs at random, resume and compare them; look for growing memory
	$(BIN)/python tests/soak/soak.py --kills 100 --torchrun 20 --steps 2000

lint: setup      ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/.bench  ## side by side with peers; writes results/bench
	@set -e; for name in $(BENCHMARKS); do echo "$$name"; $(BIN)/python -m benchmarks.$$name; done

docs: .venv/.docs  ## build the documentation into site/, without warnings
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:           ## remove what can be made again
	rm -rf .venv site build dist
