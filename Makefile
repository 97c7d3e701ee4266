# Entry point for building, testing and measuring. Every target first does the set-up that it needs, once.
#   CYFA_TORCH_DIR  folder of the Python package torch to build against, in place of the one in .venv
#   JOBS            number of parallel compile and test jobs
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PYTHON := $(if $(CYFA_TORCH_DIR),python3,.venv/bin/python)
SETUP := build/.setup-done
export JOBS PYTHON

.PHONY: help demo test build python wheel bench parity baselines-doc cli-doc benchmarks-doc evidence-doc scaling-doc \
  tokenizer format lint gpu-test gpu-bench setup clean

help:
	@echo "make demo           set up, build, and see what a CyFA remembers: start here (5 minutes after the build)"
	@echo "make test           build, check the format, run all tests, also under the sanitizers, compile the CUDA sources"
	@echo "make build          build the program build/cyfa and the libraries build/libcyfa_{ops,python}.so"
	@echo "make python         install the Python package into .venv, its Python files from this folder"
	@echo "make wheel          make a wheel of the Python package in build/wheel"
	@echo "make bench          measure speed and memory beside baselines on this CPU; writes build/bench.json"
	@echo "make parity         train every mixer on the same text, seven runs each; prints a table of held-out losses"
	@echo "make tokenizer      download the Mistral tokenizer (32,000 pieces) to build/tokenizer.model"
	@echo "make gpu-test       run the tests that need an NVIDIA GPU (set CYFA_TORCH_DIR to a CUDA build of torch)"
	@echo "make gpu-bench      measure the operator on that GPU"
	@echo "make baselines-doc  update the tables of docs/baselines.md"
	@echo "make cli-doc        update the option tables of docs/cli.md"
	@echo "make benchmarks-doc update docs/benchmarks.md, its pictures and README.md's table from bench/results"
	@echo "make evidence-doc   update the tables of docs/evidence.md from docs/evidence.toml"
	@echo "make scaling-doc    update the tables of docs/scaling.md from cyfa plan"
	@echo "make format         run clang-format over the sources"
	@echo "make lint           run clang-tidy over apps/, cyfa/ and bench/"
	@echo "make setup          install system packages and .venv with the pinned torch; needs the network the first time"
	@echo "make clean          remove the build folders (not .venv)"

setup: $(SETUP)

$(SETUP): scripts/setup.sh scripts/requirements.txt
	@scripts/setup.sh
	@mkdir -p $(@D) && touch $@

build: $(SETUP)
	@. scripts/stage.sh; \
	  rm -f build/configure.log build/build.log; \
	  stage "configuring" build/configure.log cmake --preset release; \
	  stage "building with $(JOBS) jobs (the first time takes some minutes)" build/build.log \
	    cmake --build --preset release --parallel $(JOBS) --target cyfa cyfa_python

python: $(SETUP)
	@$(PYTHON) -m pip install -e .

wheel: $(SETUP)
	@$(PYTHON) -m pip wheel --no-deps -w build/wheel .

demo: build
	@scripts/demo.sh

# Without clang-format or a browser, the checks that use them say that they are skipped.
test: build
	@scripts/setup.sh clang-format || true
	@scripts/setup.sh chromium || true
	@scripts/setup.sh python-tests
	@cmake --build --preset release --parallel $(JOBS)
	@scripts/test.sh

bench: build
	@scripts/bench.sh

parity: build
	@scripts/parity.py

baselines-doc: build
	@scripts/baselines_doc.py build/cyfa

cli-doc: build
	@scripts/cli_doc.py build/cyfa

scaling-doc: build
	@scripts/scaling_doc.py build/cyfa

benchmarks-doc: build
	@scripts/benchmarks_doc.py

evidence-doc:
	@scripts/evidence_doc.py

tokenizer: $(SETUP)
	@scripts/tokenizer.sh

gpu-test:
	@scripts/gpu.sh test

gpu-bench:
	@scripts/gpu.sh bench

format: $(SETUP)
	@scripts/setup.sh clang-format
	@echo "== formatting"
	@find apps bench cyfa python tests -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' | sort | \
	  xargs "$$(command -v clang-format-14 || echo clang-format)" -i

lint: build
	@scripts/setup.sh clang-tidy
	@scripts/lint.sh

clean:
	@echo "== removing build, build-asan, build-cuda, build-debug, build-python"
	@rm -rf build build-asan build-cuda build-debug build-python
