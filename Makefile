# Everything a fresh machine needs comes from here: Python 3.11 or newer, git and make are enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PORT ?= 8000
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: serve test check format load clean

serve: $(VENV)/.serve
	$(BIN)/neuronserve serve --device inf2.xlarge --port $(PORT)

test: $(VENV)/.test
	$(BIN)/python -m pytest

check: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

format: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# A short load test of a server that it starts itself. MODEL: checkpoint directory or hub id (default: the built-in one).
load: $(VENV)/.serve
	$(BIN)/python -m loadtests --scenario smoke --serve "$(MODEL)"

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e .
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e '.[test,dev]'
	@touch $@ $(VENV)/.serve

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
