# Two commands on a fresh machine: `make demo` and `make test`. Neither needs root or a system MPI.

PYTHON ?= python3
VENV ?= .venv
ifeq ($(origin SET),undefined)
SET := $(shell $(PYTHON) constraints/choose.py)
endif
SEED := $(or $(SEED),$(shell date +%s))
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count() or 1, 8))')
# Real jobs wait for a large part of their time; those on several hosts for nearly all of it.
JOB_WORKERS ?= $(shell expr $(WORKERS) + 2)
GROUPS := test-style test-units test-jobs
UNITS := tests/popdist/ tests/popdist_onnx/ tests/popdist_torch/ tests/popdist_tf/
PAGES := tests/benchmarks/ tests/docs/ tests/packaging/ tests/programs/
# All others, also new ones: they start real jobs.
JOBS = $(filter-out $(UNITS) $(PAGES) tests/zoo/ tests/__pycache__/,$(wildcard tests/*/))
SUMMARY := build/tests.txt
PYTEST = POPDIST_SUMMARY=$(abspath $(SUMMARY)) $(BIN)/python -m tests.again
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check -c $(SET) -e '.[all]'
# PyPI's PyTorch brings gigabytes of CUDA, and that of this index does not. Where pip is set up for
# another index, that one decides.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PIP_INDEX = $(shell $(PYTHON) -m pip config list 2>/dev/null | grep -E 'index.url|find.links|no.index')
CPU_TORCH = $(BIN)/python -m pip install --disable-pip-version-check --quiet --retries 0 --timeout 10 \
	-c $(SET) --index-url $(TORCH_INDEX) torch
ONE_OF_EACH := $(addprefix tests/distributed/,test_run.py test_torch_as_written.py \
	test_onnx_agreement.py test_tf_strategies.py::test_replicas_have_global_ids)

# Wheels of Horovod that another machine has built with --export: none is compiled then.
ifneq ($(wildcard wheels/*.whl),)
export POPDIST_HOROVOD_WHEELS ?= $(abspath wheels)
endif
# Programs of the environment come first, so that Horovod finds the environment's mpicxx and cmake.
export PATH := $(abspath $(BIN)):$(PATH)
# Hundreds of processes import this project; without its bytecode each compiles it again.
unexport PYTHONDONTWRITEBYTECODE

# The groups of tests share the machine badly.
.NOTPARALLEL:
.PHONY: demo test $(GROUPS) test-pages test-fast test-all test-latest test-tf-latest test-zoo test-backend test-public test-faults \
	lint format bench docs \
	clean help

help:
	@echo "make demo         set up, then train on handwritten digits in 2 instances with 4 replicas"
	@echo "make test         set up what is missing, then check style and types and run all tests"
	@echo "make test-fast    the unit tests, and one real job of each kind"
	@echo "make test-all     both of these, with random examples in place of recorded ones; SEED=n repeats"
	@echo "make test-latest  the same with the newest frameworks, in an environment of its own"
	@echo "make test-tf-latest  the tests of the TensorFlow adapter alone, in that environment"
	@echo "make test-zoo     small networks of transformers and timm against torch; writes docs/zoo.md"
	@echo "make test-backend  ONNX's whole backend suite; writes docs/onnx-backend-suite.md"
	@echo "make test-public SOURCES=folder  public programs, from your checkouts; writes docs/programs.md"
	@echo "make test-faults  every fault of the launcher, on one host and on two; writes docs/failures.md"
	@echo "make lint         style and types only"
	@echo "make bench        all benchmarks, side by side with their peers; QUICK=1 for a look"
	@echo "make docs         the documentation as a site, in build/site"
	@echo "make clean        remove what was made here (built Horovod wheels stay in the cache)"

demo: $(READY)
	$(BIN)/poprun --num-instances 2 --num-replicas 4 --print-topology yes \
		$(BIN)/python examples/torch_digits.py
	@echo "poprun and python are in $(BIN); for this terminal: source $(BIN)/activate"

# Every group runs, whatever the others have found; the end repeats what each of them has found.
test: $(READY)
	@rm -f $(SUMMARY)
	@$(MAKE) --no-print-directory --keep-going $(GROUPS); code=$$?; \
		echo "== $(words $(GROUPS)) groups"; cat $(SUMMARY); exit $$code

test-style: $(READY)
	@mkdir -p $(dir $(SUMMARY))
	@$(MAKE) --no-print-directory --keep-going lint; code=$$?; \
		echo "style and types: exit code $$code" >> $(SUMMARY); exit $$code

# Files with jobs stay whole, as their tests share jobs; tests/conftest.py puts the longest first.
test-units: $(READY)
	$(PYTEST) -n $(WORKERS) --dist worksteal $(UNITS)

# A part of the next one.
test-pages: $(READY)
	$(PYTEST) -n $(JOB_WORKERS) --dist loadfile --no-loadscope-reorder $(PAGES)

test-jobs: $(READY)
	$(PYTEST) -n $(JOB_WORKERS) --dist loadfile --no-loadscope-reorder $(PAGES) $(JOBS)

# All test functions, with fewer examples of each.
test-fast: export HYPOTHESIS_PROFILE = quick
test-fast: $(READY)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(UNITS)
	$(BIN)/python -m pytest -q -n $(JOB_WORKERS) --dist loadfile $(ONE_OF_EACH)

# What a random example finds becomes an explicit one, so that `make test` has it from then on.
test-all: export HYPOTHESIS_PROFILE = explore
test-all: export POPDIST_EXHAUSTIVE = 1
test-all: export POPDIST_LARGE_TESTS = 1
test-all:
	@echo "== random examples: make test-all SEED=$(SEED) repeats them"
	$(MAKE) test PYTEST_ADDOPTS=--hypothesis-seed=$(SEED)
	$(MAKE) test-latest PYTEST_ADDOPTS=--hypothesis-seed=$(SEED)
	$(MAKE) test-zoo

test-latest:
	$(MAKE) test SET=constraints/latest.txt VENV=.venv-latest

test-tf-latest:
	$(MAKE) .venv-latest/.ready SET=constraints/latest.txt VENV=.venv-latest
	PATH=$(abspath .venv-latest/bin):$$PATH .venv-latest/bin/python -m pytest tests/popdist_tf tests/popdist/sdk \
		$(wildcard tests/distributed/test_tf_*.py)

# All faults, on one host and on two, over both generations of Open MPI (half an hour; two hosts need
# root). docs/failures.md has the record.
test-faults: $(READY)
	POPDIST_EXHAUSTIVE=1 POPDIST_RECORD_FAULTS=$(abspath tests/distributed/faults.json) \
		$(BIN)/python -m pytest tests/distributed/test_faults.py tests/hosts/test_faults_on_two_hosts.py
	$(BIN)/python docs/generate.py

# The newest exporter of torch needs packages that TensorFlow 2.15 excludes, so the environment is one
# of its own. torch's trace logs are left out: writing them takes longer than the export.
test-zoo: .venv-zoo/.ready
	rm -rf build/zoo
	.venv-zoo/bin/python -m pytest -n $(WORKERS) -p no:logging tests/zoo; \
		code=$$?; .venv-zoo/bin/python -m tests.zoo.page && exit $$code

test-backend: $(READY)
	$(BIN)/python -m tests.popdist_onnx.conformance.backend_page

# The folder has checkouts as OWNER/REPOSITORY/TAG; ONLY="words" chooses programs,
# and SUITES=1 runs published test suites in their place.
test-public: $(READY)
	$(BIN)/python -m tests.public $(if $(SUITES),--suites) $(SOURCES) $(ONLY)

.venv-zoo/.ready: pyproject.toml constraints/latest.txt
	$(PYTHON) -m venv .venv-zoo
	.venv-zoo/bin/python -m pip install --disable-pip-version-check -c constraints/latest.txt \
		-e '.[onnx,torch,zoo]' pytest pytest-timeout pytest-xdist hypothesis
	@touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) .venv-ort-training/.ready
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick) $(BENCH)

# A peer of the benchmark `onnx`, which replaces onnxruntime and so cannot live beside it.
.venv-ort-training/.ready:
	$(PYTHON) -m venv .venv-ort-training
	.venv-ort-training/bin/python -m pip install --disable-pip-version-check -c constraints/default.txt torch
	.venv-ort-training/bin/python -m pip install --disable-pip-version-check \
		onnxruntime-training-cpu==1.19.2 onnx==1.16.2 'numpy<2'
	@touch $@

docs: $(READY)
	$(BIN)/python docs/generate.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

clean:
	rm -rf .venv .venv-latest .venv-zoo .venv-ort-training build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

$(READY): setup.py pyproject.toml $(SET) $(wildcard popdist/horovod_build/horovod-*/*.patch)
	@echo "== 1/3 environment $(VENV) with $(SET)"
	$(PYTHON) -m venv $(VENV)
	@echo "== 2/3 frameworks, Open MPI and tools from PyPI (a few minutes the first time)"
	@$(if $(PIP_INDEX)$(PIP_INDEX_URL),true,$(CPU_TORCH) || echo "== PyPI's PyTorch, as $(TORCH_INDEX) failed")
	$(INSTALL) || { echo "== once more, as an index may not answer for one of the packages"; $(INSTALL); }
	@echo "== 3/3 Horovod (a few minutes the first time, seconds from the cache)"
	$(BIN)/python -m popdist.horovod_build
	@touch $@
