# Every target makes a virtual environment with what it needs the first time, with the exact versions
# that are tested with that Python: constraints.txt for 3.11, constraints-3.12.txt and so on.
#
#   make test                        python3.11 (or python3), in .venv
#   make test PYTHON=python3.13      in .venv-3.13

PYTHON ?= $(firstword $(shell command -v python3.11) $(shell command -v python3) python)
# pyenv's python3.13 answers only where it is chosen: ask pyenv for the one it has.
FOUND := $(shell $(PYTHON) -c 'import sys; print(sys.executable)' 2>/dev/null \
	|| echo "$$(pyenv prefix $(patsubst python%,%,$(PYTHON)) 2>/dev/null)/bin/$(PYTHON)")
VERSION := $(shell $(FOUND) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
VENV := $(if $(filter file,$(origin PYTHON)),.venv,.venv-$(VERSION))
BIN := $(VENV)/bin
# Without a file for this Python, pip takes the newest versions; calque warns of what is not tested.
CONSTRAINTS := $(wildcard $(if $(filter 3.11,$(VERSION)),constraints.txt,constraints-$(VERSION).txt))
# A hundred processes of the tests import the package: without its bytecode half a second more each.
export PYTHONDONTWRITEBYTECODE :=
SAMPLE ?= 1
SHARE ?= 1
SEED ?= 0

.PHONY: help demo test test-quick test-newest lint format conformance laws faults zoo programs bench docs release clean

help:
	@echo "make demo | test | test-quick | test-newest | lint | format | laws | faults"
	@echo "     conformance [SAMPLE=0.1 SEED=0] | zoo [SAMPLE=0.1 SEED=0] | bench [QUICK=1] | docs | release | clean    [PYTHON=python3.13]"
	@echo "     programs CHECKOUTS=\"FOLDER ...\""

$(BIN)/python:
	@test -n "$(VERSION)" || { echo "$(PYTHON) is not installed here"; exit 1; }
	$(FOUND) -m venv $(VENV)

$(VENV)/.installed-%: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS:%=-c %) -e '.[$*]'
	@touch $@

demo: $(VENV)/.installed-demo
	$(BIN)/python examples/digits.py

# Most of the time of the tests is XLA's compilation for the CPU. Here it takes less than half: nothing is
# optimized by LLVM, and with JAX 0.10 (later ones have no such flag, and end the process where one is unknown)
# operations are fused by the older of XLA's two emitters. The same holds for `make conformance` and `make laws`.
# All other targets compile as users do, and so do these with `FAST_COMPILES=`, of all their tests or of SHARE=0.1 of
# them.
# Nor has every program an MLIR context of its own (tests/shared_context.py).
FAST_COMPILES ?= --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true \
	$(if $(filter 3.11,$(VERSION)),--xla_cpu_use_fusion_emitters=false) --xla_cpu_parallel_codegen_split_count=1

FAST := CALQUE_SHARED_CONTEXT=$(if $(FAST_COMPILES),1) XLA_FLAGS="$(strip $(FAST_COMPILES) $$XLA_FLAGS)"

test: $(VENV)/.installed-test
	@echo "Every test but the conformance suite (make conformance), in two processes of up to 2 GB."
	@echo "make test-quick takes one or two minutes."
	$(FAST) CALQUE_SHARE=$(SHARE) CALQUE_SEED=$(SEED) $(BIN)/python -m pytest

# Some of each door. What is here is cheap: a file that grows past ten seconds leaves.
QUICK_TESTS := tests/errors tests/state tests/test_hint.py tests/device/test_views.py \
	tests/jitting/test_jit_calls.py tests/dynamo/test_compile_layouts.py tests/tracing/test_tracer.py \
	tests/tracing/record/test_graphs.py tests/interop/test_functional.py tests/federated/types

test-quick: $(VENV)/.installed-test
	$(BIN)/python -m pytest $(QUICK_TESTS)

lint: $(VENV)/.installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	@# Every public symbol has a declared type; with --verifytypes pyright asks the Python of PATH.
	PATH="$(abspath $(BIN)):$$PATH" pyright --verifytypes calque --ignoreexternal \
		> $(VENV)/verifytypes.txt || { cat $(VENV)/verifytypes.txt; exit 1; }
	$(BIN)/mypy --python-executable $(BIN)/python --cache-dir $(VENV)/mypy_cache tests/typing
	$(BIN)/lint-imports

format: $(VENV)/.installed-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

conformance: $(VENV)/.installed-test
	$(FAST) CALQUE_SAMPLE=$(SAMPLE) CALQUE_SHARE=$(SHARE) CALQUE_SEED=$(SEED) \
		$(BIN)/python -m pytest -m conformance tests --ignore=tests/laws --ignore=tests/faults

laws: $(VENV)/.installed-test
	$(FAST) CALQUE_SHARE=$(SHARE) CALQUE_SEED=$(SEED) $(BIN)/python -m pytest -m "conformance or not conformance" tests/laws

faults: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m "conformance or not conformance" tests/faults

zoo: $(VENV)/.installed-test $(VENV)/.installed-models
	CALQUE_SAMPLE=$(SAMPLE) CALQUE_SEED=$(SEED) CALQUE_MODES=all $(BIN)/python -m pytest -m conformance tests/conformance/test_models.py

# Programs of other repositories, from checkouts that you name: see tests/programs/README.md.
programs: $(if $(CHECKOUTS),$(VENV)/.installed-test)
	@test -n "$(CHECKOUTS)" || { sed -n '/^```/,/^```/{/^```/d;p}' tests/programs/README.md; exit 1; }
	$(BIN)/python -m tests.programs $(ARGUMENTS) $(CHECKOUTS)

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick)

# What .ci/run tries with the newest versions: some of each door, and what once was different there.
NEWEST_TESTS := tests/errors tests/test_hint.py tests/device/test_views.py \
	tests/dynamo/test_compile_layouts.py tests/graph/test_interpreter.py tests/federated/test_closures.py \
	tests/comparing/test_versions.py tests/distributed/test_hooks.py tests/ops/test_facts.py \
	tests/cli/test_verbs.py::test_what_scripts_ask_of_cuda_is_answered_or_refused_by_name \
	tests/device/test_sizes.py::test_what_is_refused_for_the_compilers_sake_ends_a_process_of_jax_alone \
	tests/ops/test_pointwise.py::test_dtype_of_a_product_is_torch_result_type \
	tests/ops/test_pointwise.py::test_in_place_cast_is_refused_where_pytorch_refuses

test-newest: $(VENV)/.installed-test
	$(BIN)/python -m pytest $(NEWEST_TESTS)

release: $(VENV)/.installed-release
	rm -rf dist build/release
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(FOUND) -m venv build/release
	build/release/bin/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS:%=-c %) dist/*.whl
	cd build/release && bin/calque --version && bin/calque doctor

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv .venv-3.* site demo_output .pytest_cache .ruff_cache .hypothesis .import_linter_cache
