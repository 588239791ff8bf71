# Every target works from a bare clone: it needs Python >= 3.10 and make.

PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help test test-all test-gpu test-versions corpus record-gpu demo demo-regression accept check docs format bench times times-table clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | awk -F'|' '{printf "make %-16s %s\n", $$1, $$2}'

# Workers share the processors: their OpenMP threads shall not spin while they wait. The tests start
# many processes, which compile all modules anew where nobody keeps their bytecode. A test that never
# ends fails with its stack.
ENDLESS_S := 900
PYTEST = $(BIN)/python -m compileall -q pytest_torchprof && \
	PYTHONDONTWRITEBYTECODE= GOMP_SPINCOUNT=1000 $(BIN)/python -m pytest -n auto --dist=worksteal \
	-o faulthandler_timeout=$(ENDLESS_S) -o faulthandler_exit_on_timeout=true

test: .venv/.stamp  ## run the tests, in two or three minutes
	@$(PYTEST)

test-all: .venv/.stamp  ## run what `make test` leaves out: the tests marked thorough
	@$(PYTEST) -m thorough

test-gpu: .venv/.stamp  ## on a machine with a GPU: run the tests that need it
	@$(PYTEST) -m gpu

test-versions: .venv/.stamp  ## run the tests with other versions of torch and Python (gigabytes each; VERSIONS="NAME …" selects)
	@$(BIN)/python tools/versions.py $(VERSIONS)

corpus: .venv/.stamp  ## rules on labelled examples, FLOPs of a zoo of modules beside FlopCounterMode
	@$(BIN)/python tools/labelled.py
	@$(BIN)/python tools/zoo.py

record-gpu: .venv/.stamp  ## on a machine with a GPU: record the traces of tests/data/gpu anew, in about a minute
	@$(BIN)/python tools/record_gpu_traces.py tests/data/gpu

demo: .venv/.stamp  ## profile the example tests
	@$(BIN)/python -m pytest --torchprof examples

demo-regression: .venv/.stamp  ## put a regression into a copy of an example and see it found
	@$(BIN)/python tools/demo_regression.py

accept: .venv/.stamp  ## write the measured values of the examples as their baselines
	@$(BIN)/python -m pytest --accept examples

check: .venv/.stamp  ## lint, format, types, layers, generated docs
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tools/docs.py --check
	@$(BIN)/python tools/size.py
	@$(BIN)/python -m pytest -q tests/project/test_architecture.py

docs: .venv/.docs  ## build the documentation site in build/docs; a warning is an error
	@$(BIN)/python -m sphinx -b html -W --keep-going -n -q docs build/docs
	@echo "build/docs/index.html"

format: .venv/.stamp  ## format, and mend what can be mended
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: .venv/.stamp  ## measure what the plugin and the trace reader cost
	@$(BIN)/python -m benchmarks

# Recorded for SECONDS each, without and beside a competing process; then judged.
SECONDS := 900
SERIES := build/times-free.gz build/times-hog.gz

times: .venv/.stamp build/rivals  ## record series of times, and judge procedures by them (half an hour)
	@$(BIN)/python -m benchmarks.procedures --record build/times-free.gz --seconds $(SECONDS)
	@$(BIN)/python -m benchmarks.procedures --record build/times-hog.gz --seconds $(SECONDS) --hog
	@$(BIN)/python -m benchmarks.procedures --from $(SERIES)

times-table: .venv/.stamp build/rivals  ## judge what `make times` has recorded again
	@$(BIN)/python -m benchmarks.procedures --from $(SERIES)

# Beside the environment, not in it: its plugin would load into our tests.
build/rivals: .venv/.stamp
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --upgrade \
		--target build/rivals pytest-benchmark
	@touch $@

clean:  ## remove the environment, caches and builds
	@rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Made anew when the dependencies change; the stamp comes last, so a broken install is tried again.
.venv/.stamp: pyproject.toml constraints.txt
	@echo "Installing into .venv (once; downloads torch)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[test,dev]'
	@touch $@

.venv/.docs: .venv/.stamp
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@
