# Each target works on a fresh machine with nothing but Python and make.
PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
BENCHMARKS := algebra classification long_tubes models segmentation tensorize training
RECENT := import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.12")

.PHONY: help setup demo test test-all sanitize lint bench docs clean

help:            ## what can be made
	@awk -F ':[^#]*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.installed  ## create .venv and install tcpvit with the development tools

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c '$(RECENT)'
	@echo "Setting up .venv (about two minutes the first time) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP_INSTALL) -e ".[dev]"
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
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-all: setup  ## slow tests too
	$(BIN)/python -m pytest -n 2

sanitize: setup  ## the tests of our kernels under the address and undefined-behaviour sanitizers
	TCPVIT_KERNEL_FLAGS="-g -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined" \
	TCPVIT_CACHE=$$(mktemp -d) ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 \
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
	$(BIN)/python -m pytest tests/layers/kernels/test_attention.py tests/layers/kernels/test_layer_norm.py tests/layers/kernels/test_tubes.py -p no:cacheprovider

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
