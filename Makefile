# Every target sets up what it needs, in .venv and .cache. Python 3.11+ is the only thing that must be there.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
COMPILED := $(CURDIR)/.cache/compiled

# Compiled modules are kept, whatever the shell says: to compile them anew takes as long as the rest of a start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run demo test faults compat check bench mutations schemas docs lock clean
.DEFAULT_GOAL := help

help: ## Show the targets.
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1	/' | expand -t 18

run: .venv/core.stamp ## Start a broker on localhost:9092, with its data in ./penstock-data.
	@$(BIN)/penstock serve

demo: .venv/spark.stamp ## Watch live events become a lake, counts and alerts on Spark. A minute, or until Ctrl-C.
	@$(BIN)/python scripts/demo.py $(if $(SECONDS),--seconds $(SECONDS))

# Two processors for most of it. Spark's gateway calls select(), which knows no more than 1,024 open files: it gets
# processes in which no other test has run. Faults are measured, so they have the machine for themselves; the brokers that
# are killed there are of the compiled build.
test: .venv/spark.stamp .cache/compiled.stamp ## Run all tests.
	$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup --ignore tests/spark --ignore tests/faults
	$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup tests/spark
	PYTHONPATH=$(COMPILED) $(BIN)/python -m pytest tests/faults

faults: .venv/spark.stamp ## Run all fault tests, also those that take minutes. HOURS=3: random mixes for so long.
	PENSTOCK_FAULT_HOURS=$(HOURS) $(BIN)/python -m pytest tests/faults -m ""
	$(BIN)/python -m pytest tests/spark -m long

compat: .venv/dev.stamp ## Run real clients and Kafka's tools against a broker. CLUSTER=3: against three with ZooKeeper.
	PENSTOCK_COMPAT_CLUSTER=$(or $(CLUSTER),1) $(BIN)/python -m pytest tests/compat

check: .venv/spark.stamp ## Lint, types and layering.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: export PYTHONPATH := $(COMPILED)
bench: .venv/bench.stamp .venv/spark.stamp .cache/compiled.stamp ## Measure Penstock beside its peers, and Spark on it. QUICK=1: the peers alone, three minutes.
	QUICK=$(QUICK) $(BIN)/python -m bench
	$(if $(QUICK),,$(BIN)/python -m bench.spark && $(BIN)/python -m bench.groups && $(BIN)/python -m bench.cluster)

mutations: .venv/spark.stamp ## Put known bugs into a copy of the source: the tests must find each.
	$(BIN)/python scripts/mutations.py

schemas: .venv/dev.stamp ## Renew the tables of Kafka's messages and error codes from kio.
	$(BIN)/python scripts/generate_schemas.py

docs: .venv/dev.stamp ## Renew the generated pages of docs/.
	$(BIN)/python scripts/generate_docs.py

lock: .venv/dev.stamp ## Renew the lock files from pyproject.toml.
	$(PIP) install uv
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --no-annotate pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --no-annotate pyproject.toml --group dev -o requirements-dev.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --no-annotate --constraint requirements-dev.lock --group bench -o requirements-bench.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --no-annotate --constraint requirements-dev.lock --constraint requirements-bench.lock pyproject.toml --extra spark --group spark -o requirements-spark.lock

clean: ## Remove what the other targets made (not your data).
	rm -rf .venv .cache dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@echo "Setting up .venv ..."
	@$(PYTHON) -m venv .venv

.venv/core.stamp: pyproject.toml requirements.lock | .venv/bin/python
	@echo "Installing the broker ..."
	@$(PIP) install --require-hashes -r requirements.lock
	@$(PIP) install --no-deps --editable .
	@$(BIN)/python -m compileall -q src/penstock
	@touch $@

.venv/dev.stamp: requirements-dev.lock | .venv/core.stamp
	@echo "Installing the test and check tools ..."
	@$(PIP) install --require-hashes -r requirements-dev.lock
	@touch $@

.venv/spark.stamp: requirements-spark.lock | .venv/dev.stamp
	@echo "Installing Spark ..."
	@$(PIP) install --require-hashes -r requirements-spark.lock
	@touch $@

# Where there is no C compiler, or Python came without its headers, all is pure Python, and the tests say so.
.cache/compiled.stamp: hatch_build.py pyproject.toml $(shell find src -name '*.py') | .venv/dev.stamp
	@echo "Compiling the hot path ..."
	@rm -rf $(COMPILED)
	@PENSTOCK_COMPILE=1 $(PIP) install --no-deps --target $(COMPILED) . || echo "NOT COMPILED: see above."
	@mkdir -p $(@D) && touch $@

.venv/bench.stamp: requirements-bench.lock | .venv/dev.stamp
	@echo "Installing the peers' clients, and what draws the pictures ..."
	@$(PIP) install --require-hashes -r requirements-bench.lock
	@touch $@
