# SPDX-License-Identifier: Apache-2.0
# Needs python3 (3.11 or newer), pip and make; each target does its own set-up.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
STAMP := .venv/.installed
DEMO_STAMP := .venv/.demo

# `make soak` draws a seed and prints it; SEED=… repeats one. A round takes half an hour; ROUNDS=…
# runs several, and MINUTES=… runs small ones until the time is over.
ROUNDS ?= 1
MINUTES ?=
SEED ?=

.DELETE_ON_ERROR:
.PHONY: install demo test lint bench docs notebooks paper cifar soak clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "making .venv (a few minutes the first time)"
	@$(PYTHON) -m venv .venv
	@$(PIP) 'pip>=25.1' # the first that knows --group
	@$(PIP) -c constraints.txt -e '.[all]' --group dev
	@touch $@

# The demo needs far less than the tests: no torch, no linters.
$(DEMO_STAMP): pyproject.toml constraints.txt
	@echo "making .venv (a minute the first time)"
	@$(PYTHON) -m venv .venv
	@$(PIP) -c constraints.txt -e '.[report]'
	@touch $@

demo: $(DEMO_STAMP)
	$(BIN)/pufferslice demo --out demo-output

# Tests start hundreds of processes; without bytecode on disk each compiles the package again.
test: lint
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n auto --dist worksteal

lint: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports --no-logo

bench: install
	$(BIN)/python benchmarks/run.py

docs: install
	$(BIN)/mkdocs build --strict

# Jupyter notebooks of sections of the documentation, into build/notebooks.
notebooks: install
	$(BIN)/python docs/notebooks.py build/notebooks

# Every experiment of the paper at its default scale; needs PUFFERSLICE_DATA. Results that are already
# in build/paper are not computed again.
paper: install
	$(BIN)/python -m reproduction gallery build/paper
	$(BIN)/python -m reproduction cifar-page reproduction/results

# The runs on CIFAR-10 that have no result yet: hours, resumed by the same command.
cifar: install
	$(BIN)/python -m reproduction cifar reproduction/results --scratch build/cifar
	$(BIN)/python -m reproduction cifar-page reproduction/results

soak: install
	@$(PIP) -c constraints.txt atheris
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m soak \
	  $(if $(MINUTES),--minutes $(MINUTES),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED))

clean:
	rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .nox .pytest_cache .ruff_cache build dist site demo-output
