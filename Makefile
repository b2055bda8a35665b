# Turnkeeper: `make demo` shows it, `make test` proves it. Both install what they need into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
ARGS ?=
WORKERS ?= 4
CRASH_WORKERS ?= 4

# Many tests are about real processes and real time, and a busy machine can be too slow for their bounds. What failed beside
# others is run once more, alone, in plain sight; what fails then has failed.
ALONE = $(BIN)/python -m pytest -n 0 --last-failed --last-failed-no-failures none

.PHONY: demo test lint format bench test-agents test-cold-start test-crash lock docs clean

## demo: install, start everything, run a conversation of three turns in a sandbox. ONCE=1 ends afterwards, JSON=1 prints one object last.
demo: $(VENV)/.runtime
	@sh deploy/system-packages.sh demo
	@$(BIN)/turnkeeper demo $(if $(ONCE),--once) $(if $(JSON),--json) $(ARGS)

## test: lint, types, layers and the suite (ARGS="-k name" selects)
test: $(VENV)/.dev
	@sh deploy/system-packages.sh test
	@$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not agents and not crash" $(ARGS) || $(ALONE) -m "not agents and not crash" $(ARGS)
	@if [ -z "$(ARGS)" ]; then $(MAKE) --no-print-directory test-agents; fi

## test-cold-start: the first request of an owner of whom nothing exists yet; a failure comes with the product's logs
test-cold-start: $(VENV)/.dev
	@sh deploy/system-packages.sh test
	$(BIN)/python -m pytest -n 0 -m cold_start tests/e2e $(ARGS)

## test-crash: every cell of the crash matrix (about an hour; ARGS="-k first_turn" selects). `make test` draws ten by CRASH_SEED
test-crash: $(VENV)/.dev
	@sh deploy/system-packages.sh test
	$(BIN)/python -m pytest -n $(CRASH_WORKERS) --dist worksteal tests/crash $(ARGS)

## test-agents: real agents that nobody here wrote; installs those that can be installed here and says which it skipped
test-agents: $(VENV)/.dev
	@sh deploy/system-packages.sh test
	$(BIN)/python tests/e2e/agents/install.py
	$(BIN)/python -m pytest -m agents $(ARGS) || $(ALONE) -m agents $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright
	$(BIN)/python tests/requirements_map.py --check

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

## bench: latency, throughput and memory, as a table and as JSON
bench: $(VENV)/.dev
	@sh deploy/system-packages.sh demo
	$(BIN)/python -m bench $(ARGS)

## docs: the pages that are generated from the code
docs: $(VENV)/.dev
	$(BIN)/python -m turnkeeper.domain.diagram > docs/state-machines.md
	$(BIN)/python tests/requirements_map.py

## lock: pin again what pyproject.toml allows (uv is needed; the locks name no download host)
lock:
	uv pip compile --group build --python-version 3.11 --universal --generate-hashes --no-emit-index-url --no-header --quiet -o requirements-build.lock
	uv pip compile pyproject.toml --python-version 3.11 --universal --generate-hashes --no-emit-index-url --no-header --quiet -o requirements.lock
	uv pip compile pyproject.toml --extra dev -c requirements.lock --python-version 3.11 --universal --generate-hashes --no-emit-index-url --no-header --quiet -o requirements-dev.lock

$(VENV)/bin/python:
	@sh deploy/system-packages.sh demo
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else f"Python {sys.version.split()[0]} is too old: 3.11 or newer is needed (make PYTHON=python3.12)")'
	@echo "installing into $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)

# Hashes are checked for every file; the package itself is installed from this tree, without a build environment of its own.
$(VENV)/.runtime: requirements.lock requirements-build.lock pyproject.toml | $(VENV)/bin/python
	@$(PIP) install --require-hashes -r requirements.lock -r requirements-build.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.runtime
	@$(PIP) install --require-hashes -r requirements-dev.lock
	@touch $@

clean:
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
