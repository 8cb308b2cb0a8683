# Everything below sets itself up: the first call creates .venv and installs the locked versions, later calls reuse it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: install demo test faults lint bench

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: install
	$(BIN)/icrl run --config demo --run-dir runs/demo

test: install
	$(BIN)/python -m pytest -m 'not faults'

# Kills processes, nodes and writes in every stage and compares the results; takes several times as long.
faults: install
	$(BIN)/python -m pytest -m faults

lint: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: install
	set -e; for benchmark in benchmarks/bench_*.py; do $(BIN)/python $$benchmark; done
