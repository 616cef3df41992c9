# Every target makes .venv with what it needs, from constraints.txt, the first time.

PYTHON ?= $(firstword $(shell command -v python3.11) $(shell command -v python3) python)
BIN := .venv/bin
SAMPLE ?= 1
SEED ?= 0

.PHONY: help demo test lint format conformance laws faults zoo bench docs clean

help:
	@echo "make demo | test | lint | format | conformance [SAMPLE=0.1 SEED=0] | laws | faults | zoo [SAMPLE=0.1 SEED=0] | bench [QUICK=1] | docs | clean"

$(BIN)/python:
	$(PYTHON) -m venv .venv

.venv/.installed-%: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@

demo: .venv/.installed-demo
	$(BIN)/python examples/digits.py

test: .venv/.installed-test
	$(BIN)/python -m pytest

lint: .venv/.installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: .venv/.installed-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

conformance: .venv/.installed-test
	CALQUE_SAMPLE=$(SAMPLE) CALQUE_SEED=$(SEED) $(BIN)/python -m pytest -m conformance tests/conformance

laws: .venv/.installed-test
	$(BIN)/python -m pytest -m "conformance or not conformance" tests/laws

faults: .venv/.installed-test
	$(BIN)/python -m pytest -m "conformance or not conformance" tests/faults

zoo: .venv/.installed-test .venv/.installed-models
	CALQUE_SAMPLE=$(SAMPLE) CALQUE_SEED=$(SEED) CALQUE_MODES=all $(BIN)/python -m pytest -m conformance tests/conformance/test_models.py

bench: .venv/.installed-bench
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick)

docs: .venv/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv site demo_output .pytest_cache .ruff_cache .hypothesis .import_linter_cache
