# Each target does its own set-up: it needs Python 3.11 and nothing else.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: train test lint types docs clean

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

train: .venv/installed  ## the main job; options: make train ARGS="--context memory"
	$(BIN)/python examples/train_mempo.py $(ARGS)

test: .venv/installed  ## the fast suite; options: make test ARGS="-m slow"
	$(BIN)/python -m pytest -n 2 $(ARGS)

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

docs: .venv/installed  ## the site, into site/
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	$(BIN)/python scripts/generate_configuration.py
	$(BIN)/python scripts/draw_credit.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:
	rm -rf .venv outputs dist build .pytest_cache .mypy_cache .ruff_cache
