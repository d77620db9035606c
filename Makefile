# Targets that a developer types; `make help` lists them.
VENV ?= .venv
BUILD ?= build
JOBS ?= $(shell nproc)
PYTHON ?= python3

BIN := $(VENV)/bin
REQUIREMENTS := $(VENV)/.piper-requirements
CONFIGURED := $(BUILD)/build.ninja
CPP_SOURCES = $(shell git ls-files --cached --others --exclude-standard -- '*.cpp' '*.h')
REFERENCE := dialect passes
TORCHRUN := $(BIN)/python -m torch.distributed.run
# A file stays with one process: its tests share what they compile.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(JOBS) --dist loadfile
IMPORTED := benchmarks/bound.py benchmarks/paired.py benchmarks/two_stages.py
ON_RANKS := benchmarks/data_parallel.py
BOUNDED := $(addprefix benchmarks/,compile_time.py kernel_host_time.py runtime_overhead.py step_time.py)

.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-all test-gpu lint format docs bench

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

setup: build ## create the virtual environment (VENV=.venv), install what is needed, build

# A new pyproject.toml may change the requirements, the scripts or the packages.
$(REQUIREMENTS): pyproject.toml
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' > $(VENV)/build-requires.txt
	$(BIN)/pip install --quiet -r $(VENV)/build-requires.txt
	# Puts python/ and runtime/ on the path; the C++ parts are built and linked below.
	$(BIN)/pip install --quiet --no-build-isolation -C wheel.cmake=false -C editable.mode=inplace -e '.[dev]'
	touch $@

$(CONFIGURED): $(REQUIREMENTS)
	$(BIN)/cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DPython_EXECUTABLE=$(abspath $(BIN))/python -DPython3_EXECUTABLE=$(abspath $(BIN))/python
	for tool in piper-opt piper-reduce piper-lsp-server; do ln -sfn $(abspath $(BUILD))/bin/$$tool $(BIN)/$$tool; done
	ln -sfn $(abspath $(BUILD))/python_packages/piper/mlir python/piper/mlir
	touch $@

build: $(CONFIGURED) ## rebuild what changed
	$(BIN)/ninja -C $(BUILD) -j $(JOBS)

demo: build ## train a small language model on this machine
	$(BIN)/python examples/train_lm.py

test: build ## run lit, then pytest without the slow tests
	$(BIN)/lit -v test
	$(PYTEST)

test-all: build ## run every test
	$(BIN)/lit -v test
	$(PYTEST) -m ''

test-gpu: build ## run the tests for a GPU, in under 5 minutes
	$(BIN)/pytest -q -s -rs test/gpu

lint: build ## check style, types, spelling and the generated reference
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy python/piper runtime/piper_runtime test examples benchmarks
	$(BIN)/clang-format --dry-run -Werror $(CPP_SOURCES)
	$(BIN)/codespell
	for page in $(REFERENCE); do diff -u docs/reference/$$page.md $(BUILD)/$$page/$$page.md || { echo "stale reference: run 'make docs'"; exit 1; }; done

format: $(REQUIREMENTS) ## rewrite Python and C++ in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP_SOURCES)

docs: build ## regenerate docs/reference from TableGen
	mkdir -p docs/reference
	for page in $(REFERENCE); do cp $(BUILD)/$$page/$$page.md docs/reference/$$page.md; done

bench: build ## run the benchmarks; fail if a bound does not hold
	for script in $(filter-out $(IMPORTED) $(ON_RANKS) $(BOUNDED),$(wildcard benchmarks/*.py)); do $(BIN)/python $$script || exit 1; done
	for script in $(BOUNDED); do $(BIN)/python $$script --check || exit 1; done
	for options in llama "--kernels inductor" "llama --kernels inductor"; do $(BIN)/python benchmarks/kernel_host_time.py $$options --check || exit 1; done
	for script in $(ON_RANKS) benchmarks/step_time.py; do $(TORCHRUN) --nproc-per-node 2 $$script --check || exit 1; done
	$(TORCHRUN) --nproc-per-node 4 benchmarks/data_parallel.py --memory
