# Each target is sufficient on a fresh machine with Python >= 3.11 and a C++ compiler: it creates .venv, installs, runs.
# PYTHON=... picks the interpreter; VENV=... puts the environment elsewhere; VENV_FLAGS=--system-site-packages lets it see
# packages that are already installed (a CUDA build of torch, say; then also set CONSTRAINTS= to drop the pins).

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV ?= .venv
VENV_FLAGS ?=
CONSTRAINTS ?= --constraint constraints.txt
BIN := $(VENV)/bin
STAMP := $(VENV)/.tilefuse-installed

.PHONY: setup demo test test-array-standard test-onnx-full test-gpu sanitize lint bench docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 found; set PYTHON=/path/to/python"; exit 1; }
	@command -v $${CXX:-g++} >/dev/null 2>&1 || command -v clang++ >/dev/null 2>&1 || \
		{ echo "no C++ compiler found (g++ or clang++; or set CXX): the host executor needs one"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV_FLAGS) $(VENV)
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) hatchling editables
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --no-build-isolation --editable '.[test,dev,bench]'
	@touch $(STAMP)

demo: setup
	$(BIN)/python examples/demo.py --out demo-output

test: setup
	VENV=$(VENV) sh tests/run_all.sh

# The array standard's own test suite on tilefuse.array; git fetches it the first time (make test stays off the network).
test-array-standard: setup
	PYTHONPATH=src $(BIN)/python -m tests.array_standard

# Every expressible node test of the onnx package as compiled host code (make test runs one of each set of operators).
test-onnx-full: setup
	ONNX_FULL=1 $(BIN)/python -m pytest tests/end_to_end/onnx --timeout 900

# The tests that need a CUDA device (make test skips them elsewhere), by several processes; writes gpu-tests.txt.
test-gpu: setup
	PYTHONPATH=src $(BIN)/python -m tests.gpu --summary gpu-tests.txt

# A sample of generated kernels under compute-sanitizer (of the CUDA toolkit): memcheck and racecheck.
sanitize: setup
	PYTHONPATH=src $(BIN)/python -m tests.gpu.sanitize

lint: setup
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/mypy

bench: setup
	PYTHONPATH=src $(BIN)/python -m benchmarks patterns --quick

docs: setup
	$(BIN)/python -m tilefuse.tools.docs --write

clean:
	rm -rf demo-output build dist .mypy_cache .ruff_cache .pytest_cache
