# The two commands are `make book` and `make test`. Each but help and clean makes its environment on first use.
# PIP_ARGS passes options to pip, for example: make book PIP_ARGS="--index-url ..."

SHELL := /bin/bash
.SHELLFLAGS := -eo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help book test check lab serve notebooks bench pdf lock clean

# The first Python on the path that the lock is for; or say which: make book PYTHON=/path/to/python3.12
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do $$p -c '$(SUPPORTED)' 2>/dev/null && echo $$p && break; done)
PIP_ARGS ?=
LOCK_ARGS ?=
PORT ?= 8000
# How many files are tested at once.
export JOBS ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

BIN := .venv/bin
READY := .venv/ready
BUILD = $(BIN)/jupyter-book build . -W -n --keep-going -q
PYTEST = $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -rfEs --no-fold-skipped

# One thread a process: the chapters and tests share the cores, and sums keep their last digits.
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export TF_NUM_INTRAOP_THREADS := 1
export TF_NUM_INTEROP_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

LINT = $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/python -m mypy

help:  ## list the commands
	@sed -n 's/^\([a-z]*\):.*## /  make \1|/p' $(MAKEFILE_LIST) | column -t -s '|'

book: $(READY)  ## execute the chapters that changed and build the site into _build/html
	$(BUILD)

test: $(READY)  ## everything that CI runs: lint, types, the build, all tests, every stored output
# The build needs one core; the other has the rules meanwhile. The chapters are executed by nbval.
	XENT_STORED=1 $(BUILD) & { $(LINT); } || failed=1; wait $$! && test -z "$$failed"
	$(PYTEST) --nbval --nbval-current-env --nbval-cell-timeout=240 tests code chapters

check: $(READY)  ## the quick part of the tests: no build, no browser, no chapters
	$(PYTEST) -m "not slow" tests code & { $(LINT); } || failed=1; wait $$! && test -z "$$failed"

lab: $(READY)  ## open the chapters in JupyterLab
	$(BIN)/jupyter lab chapters

serve: $(READY)  ## serve the built site on this machine (PORT=8000)
	$(BIN)/python -m http.server --directory _build/html $(PORT)

notebooks: $(READY)  ## execute the chapters that changed and store the outputs in them
	$(BIN)/python _ext/notebooks.py

bench: $(READY)  ## measure the losses beside other libraries, for the page of the benchmarks (half an hour)
	for part in arrays tensors linear tables; do $(BIN)/python -m experiments.bench.$$part; done

pdf: $(READY)  ## print the built site into one file, by Chromium (some minutes)
	$(BIN)/python _ext/book_pdf.py

# One version of each package for every Python, as there is one set of stored outputs. PyTorch is held: the records of
# the experiments are of this release. Left out are the libraries of one kind of GPU: they come with torch's build for it,
# and no other build needs them. Only wheels count: nothing of a source is run.
HELD := torch==2.13.0
lock: $(READY)  ## compile requirements.in to requirements.txt (LOCK_ARGS=--upgrade for the newest releases)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) uv==0.13.9
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest --prerelease disallow \
	    --only-binary :all: --constraint <(echo $(HELD)) --no-annotate $(LOCK_ARGS) \
	    --custom-compile-command "make lock" --output-file requirements.txt requirements.in > /dev/null
	grep -vE '^(cuda|nvidia|triton)' requirements.txt > requirements.new && mv requirements.new requirements.txt

clean:  ## remove what was built; the environment stays
	rm -rf _build chapters/ledger .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

# The stamp is newer than the lock and pyproject.toml, or pip runs again. It is written last: an interrupted
# installation is not taken for a finished one.
$(READY): requirements.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "this needs Python 3.11, 3.12 or 3.13 (PYTHON=...)" >&2; exit 1; }
	@$(BIN)/python -c '$(SUPPORTED)' 2>/dev/null || $(PYTHON) -m venv --clear .venv
	@echo "installing the locked environment into .venv (once; a few minutes)"
	@$(BIN)/python -m pip install --quiet $(PIP_ARGS) -r requirements.txt
	@touch $@
