# Two commands on a fresh machine: `make demo` and `make test`. Neither needs root or a system MPI.

PYTHON ?= python3
VENV ?= .venv
SET ?= $(shell $(PYTHON) constraints/choose.py)
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Programs of the environment come first, so that Horovod finds the environment's mpicxx and cmake.
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: demo test test-latest test-tf-latest lint format bench clean help

help:
	@echo "make demo         set up, then train on handwritten digits in 2 instances with 4 replicas"
	@echo "make test         set up what is missing, then check style and types and run all tests"
	@echo "make test-latest  the same with the newest frameworks, in an environment of its own"
	@echo "make test-tf-latest  the tests of the TensorFlow adapter alone, in that environment"
	@echo "make lint         style and types only"
	@echo "make bench        all benchmarks, side by side with their peers"
	@echo "make clean        remove what was made here (built Horovod wheels stay in the cache)"

demo: $(READY)
	$(BIN)/poprun --num-instances 2 --num-replicas 4 --print-topology yes \
		$(BIN)/python examples/torch_digits.py

test: $(READY) lint
	$(BIN)/python -m pytest

test-latest:
	$(MAKE) test SET=constraints/latest.txt VENV=.venv-latest

test-tf-latest:
	$(MAKE) .venv-latest/.ready SET=constraints/latest.txt VENV=.venv-latest
	PATH=$(abspath .venv-latest/bin):$$PATH .venv-latest/bin/python -m pytest tests/popdist_tf \
		$(wildcard tests/distributed/test_tf_*.py)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv .venv-latest build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

$(READY): setup.py pyproject.toml $(SET)
	@echo "== 1/3 environment $(VENV) with $(SET)"
	$(PYTHON) -m venv $(VENV)
	@echo "== 2/3 frameworks, Open MPI and tools from PyPI (a few minutes the first time)"
	$(BIN)/python -m pip install --disable-pip-version-check -c $(SET) \
		--config-settings editable_mode=compat -e '.[all]'
	@echo "== 3/3 Horovod (a few minutes the first time, seconds from the cache)"
	$(BIN)/python -m popdist.horovod_build
	@touch $@
