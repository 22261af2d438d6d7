# The two commands are `make book` and `make test`; each makes its own environment on first use. `make help` lists
# the rest. PIP_ARGS passes options to pip, for example: make book PIP_ARGS="--index-url ..."

SHELL := /bin/bash
.SHELLFLAGS := -eo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help book test check repeat serve lighthouse axe notebooks ledger bench mutants fuzz lock drift audit workflows clean

PYTHON ?=
PIP_ARGS ?=
MODULES ?=
PORT ?= 8000
REPEAT ?=
DRIFT ?=
AUDIT ?=
TIME ?= 60
FUZZ ?=
JOBS ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

BIN := .venv/bin
READY := .venv/ready
# Tools that look at the repository from outside, away from the locked environment.
TOOLS := .venv/tools
# The fuzzer lies beside the locked environment, not in it: nothing of the book needs it.
ATHERIS := 3.0.0
FUZZER := _build/fuzz/site/atheris-$(ATHERIS).dist-info

# One BLAS thread a process: the chapters and tests share the cores, and sums keep their last digits.
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

help:  ## list the commands
	@sed -n 's/^\([a-z]*\):.*## /  make \1|/p' $(MAKEFILE_LIST) | column -t -s '|'

book: $(READY)  ## execute the chapters and build the site into _build/html
	@$(BIN)/python tools/book.py --jobs $(JOBS)

test: $(READY)  ## everything that CI runs: lint, types, the build, all tests, every stored output
	@$(BIN)/python tools/test.py --jobs $(JOBS)

check: $(READY)  ## the quick part of the tests: no build, no browser, no notebooks
	@$(BIN)/python tools/test.py --jobs $(JOBS) --quick

repeat: $(READY)  ## execute the book again in other surroundings and compare it byte for byte (REPEAT=--fresh)
	@$(BIN)/python tools/repeat.py --jobs $(JOBS) $(REPEAT)

serve: $(READY)  ## serve the built site on this machine
	@$(BIN)/python tools/serve.py --port $(PORT)

lighthouse: $(READY)  ## score the landing page and the longest chapter as a phone on a slow network sees them
	@$(BIN)/python tools/lighthouse.py

axe: $(READY)  ## look for barriers on every page, wide and narrow, light and dark
	@AXE=all $(BIN)/python -m pytest -q tests/book/test_accessibility.py

notebooks: $(READY)  ## execute the chapters in place and store their outputs in the normal form
	@$(BIN)/python tools/notebooks.py --jobs $(JOBS)

ledger: $(READY)  ## run the equations' tests and store their worst errors in the ledger
	@$(BIN)/python tools/ledger.py --write

bench: $(READY)  ## measure the speed of the losses against other libraries
	@$(BIN)/python experiments/bench/bench.py

mutants: $(READY)  ## change one thing in the package at a time and see whether a test notices (MODULES="losses ...")
	@$(BIN)/python tools/mutants.py --jobs $(JOBS) $(MODULES)

fuzz: $(READY) $(FUZZER)  ## call every function with hostile arguments, led by coverage; TIME=60 seconds a group
	@$(BIN)/python tools/fuzz.py --time $(TIME) $(FUZZ)

lock: $(READY)  ## write requirements.txt from a fresh environment with the newest releases
	@$(BIN)/python tools/lock.py $(PIP_ARGS)

drift:  ## what the newest releases would change, in a fresh environment (DRIFT="--constrain torch==...")
	@$(or $(PYTHON),python3) tools/drift.py --jobs $(JOBS) $(foreach option,$(PIP_ARGS),--pip=$(option)) $(DRIFT)

audit: $(READY) $(TOOLS)/ready  ## the licences and known vulnerabilities of what the lock brings in
	@PATH="$(CURDIR)/$(TOOLS)/bin:$$PATH" $(BIN)/python tools/audit.py $(AUDIT)

workflows: $(TOOLS)/ready  ## check the workflows of .github with actionlint and zizmor
	@$(TOOLS)/bin/actionlint
	@$(TOOLS)/bin/zizmor --offline --persona pedantic --no-progress .github

clean:  ## remove what was built; the environment stays
	rm -rf _build .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

$(FUZZER): | $(READY)
	@echo "installing atheris $(ATHERIS) into _build/fuzz/site"
	@$(BIN)/python -m pip install --quiet $(PIP_ARGS) --no-deps --upgrade --target _build/fuzz/site atheris==$(ATHERIS)

# The stamp is newer than the lock and pyproject.toml, or pip runs again. It is written last: an interrupted
# installation is not taken for a finished one.
$(READY): requirements.txt pyproject.toml
	@tools/venv.sh "$(PYTHON)"
	@echo "installing the locked environment into .venv (once; about two minutes)"
	@$(BIN)/python -m pip install --quiet $(PIP_ARGS) -r requirements.txt
	@touch $@

$(TOOLS)/ready: tools/requirements.txt
	@tools/venv.sh "$(PYTHON)"
	@$(BIN)/python -m venv $(TOOLS)
	@$(TOOLS)/bin/python -m pip install --quiet $(PIP_ARGS) -r $<
	@touch $@
